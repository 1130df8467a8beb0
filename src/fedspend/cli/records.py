"""`fedspend records rates | noise | draw`: rates and noise for records with their own budgets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_action
from fedspend.cli.outputs import PLOTS, check_writable, ending
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.records.budget_file import RecordBudgets

HELP = "find rates and noise for records that each have a budget"
DESCRIPTION = (
    "Work with a privacy budget for every record: find how often each may be sampled, find the "
    "noise that suits a set of budgets, or draw budgets to try this with. Reads a CSV file with "
    "one line per record: epsilon, and optionally record and client."
)
EXAMPLES = """examples:
  fedspend records draw three-levels 1000 -o budgets.csv
  fedspend records noise budgets.csv --delta 1e-3 --rounds 15 --local-steps 50
  fedspend records rates budgets.csv --delta 1e-3 --rounds 15 --local-steps 50 --noise 16.6 \\
    -o rates.csv --plot rates.png
  fedspend records rates budgets.csv --delta 1e-3 --rounds 20 --local-steps 5 \\
    --client-rate 0.5 --noise 1 --method scf
"""
TABLES = (".csv",)
KNOWN = ("three-levels", "bounded-pareto", "bounded-mix-gauss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, help: str) -> Any:
        return add_action(actions, name, help).add_argument

    add = action("rates", "give every record the largest sampling rate that its budget allows")
    _terms(add)
    add(
        "--noise",
        type=float,
        required=True,
        metavar="S",
        help="noise multiplier of a step; fedspend records noise suggests one",
    )
    add(
        "--method",
        default="exact",
        metavar="M",
        help=(
            "exact (default), search (record by record), scf (the paper's fit, which overspends; "
            "for comparison only) or scf-clamped"
        ),
    )
    _files(add, "save record, epsilon, rate and spent")
    add = action("noise", "suggest the noise multiplier that leaves the least noise in a step")
    _terms(add)
    add("--plot", metavar="FILE", help="plot the trade-off, as .png, .svg or .pdf")
    add("--json", action="store_true", help="print JSON instead of a table")
    add = action("draw", "draw budgets from one of the paper's preference distributions")
    add("preferences", metavar="DISTRIBUTION", help=", ".join(KNOWN))
    add("records", type=int, metavar="N", help="number of records")
    add("--seed", type=int, default=0, metavar="K", help="seed of the draw (default: 0)")
    _files(add, "save the budgets", needed=True)


def _terms(add: Any) -> None:
    add(
        "budgets",
        metavar="BUDGETS.csv",
        help="one line per record: epsilon, and optionally record and client",
    )
    add(
        "--delta",
        type=float,
        required=True,
        metavar="D",
        help="delta of every budget; keep it below 1/records",
    )
    add("--rounds", type=int, required=True, metavar="T", help="number of rounds")
    add(
        "--local-steps",
        type=int,
        required=True,
        metavar="K",
        help="noisy steps that a client takes in one round",
    )
    add(
        "--client-rate",
        type=float,
        default=1.0,
        metavar="P",
        help="probability that a client takes part in a round (default: 1)",
    )


def _files(add: Any, help: str, needed: bool = False) -> None:
    add("-o", "--output", required=needed, metavar="FILE.csv", help=help)
    add("--force", action="store_true", help="let --output overwrite a file")
    if not needed:
        add(
            "--plot",
            metavar="FILE",
            help="plot epsilon against rate with the paper's fit, as .png, .svg or .pdf",
        )
        add("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise InvalidInput(
            "'fedspend records' needs an action: "
            + ", ".join(ACTIONS)
            + "; see fedspend records --help"
        )
    check_files(args)
    return ACTIONS[args.action](args)


def check_files(args: argparse.Namespace) -> None:
    """Refuse output files that cannot be written, before any work is done."""
    for flag, name, endings in (
        ("--output", getattr(args, "output", None), TABLES),
        ("--plot", getattr(args, "plot", None), PLOTS),
    ):
        if name is None:
            continue
        ending(name, flag, endings)
        check_writable(flag, name)
        if flag == "--output" and Path(name).exists() and not args.force:
            raise InvalidInput(f"--output {name!r} exists; choose another name or add --force")


def rates(args: argparse.Namespace) -> int:
    from fedspend import records
    from fedspend.cli import records_views as views
    from fedspend.records.assignment import assign
    from fedspend.records.budget_file import read_record_budgets, write_rates
    from fedspend.records.summary import spending_of

    budgets = read_record_budgets(args.budgets)
    terms = records.Terms.checked(
        delta=args.delta,
        rounds=args.rounds,
        local_steps=args.local_steps,
        client_rate=args.client_rate,
        noise_multiplier=args.noise,
    )
    rate = assign(budgets.budget, terms, args.method)
    spent = spending_of(rate, terms)
    fit = views.fit_or_none(terms)
    document = views.rates_document(budgets, terms, args.method, rate, spent, fit)
    if args.output is not None:
        write_rates(Path(args.output), budgets, rate, spent["public"])
    if args.plot is not None:
        from fedspend.report.records_plot import rates_plot

        rates_plot(args.plot, terms, budgets.budget, rate, fit)
    document |= {"saved": args.output, "plot": args.plot}
    print(json.dumps(document, indent=2, allow_nan=False)) if args.json else views.show_rates(
        document
    )
    return 0


def noise(args: argparse.Namespace) -> int:
    from fedspend import records
    from fedspend.cli import records_views as views
    from fedspend.records.budget_file import read_record_budgets

    budgets: RecordBudgets = read_record_budgets(args.budgets)
    told = records.suggest_noise(
        budgets.budget,
        delta=args.delta,
        rounds=args.rounds,
        local_steps=args.local_steps,
        client_rate=args.client_rate,
        clients=budgets.clients,
    )
    if args.plot is not None:
        from fedspend.report.records_plot import noise_plot

        noise_plot(args.plot, told)
    document = views.noise_document(told) | {"records": len(budgets.records), "plot": args.plot}
    print(json.dumps(document, indent=2, allow_nan=False)) if args.json else views.show_noise(
        document
    )
    return 0


def draw(args: argparse.Namespace) -> int:
    import numpy as np

    from fedspend import records
    from fedspend.basics.choices import choose
    from fedspend.errors import whole_number
    from fedspend.records.budget_file import write_csv

    chosen = records.PREFERENCES[choose("distribution", args.preferences, records.PREFERENCES)]
    budget = chosen.draw(args.records, np.random.default_rng(whole_number("--seed", args.seed, 0)))
    write_csv(
        Path(args.output),
        ["record", "epsilon"],
        [[str(n) for n in range(args.records)], [repr(b) for b in budget.tolist()]],
    )
    print(
        f"{args.records:,} budgets from {budget.min():.4g} to {budget.max():.4g}, mean "
        f"{budget.mean():.4g}: {args.output}"
    )
    return 0


ACTIONS = {"rates": rates, "noise": noise, "draw": draw}
