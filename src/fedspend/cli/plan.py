"""`fedspend plan`: turns budgets into a schedule, as a table, a plan file or a plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_project, add_set
from fedspend.cli.outputs import PLOTS, check_writable, save_plan
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.configuration.plan_inputs import Inputs
    from fedspend.planning.plan import Plan
    from fedspend.planning.protocol import AnyPlan
    from fedspend.planning.request import PlanRequest

HELP = "make the spending schedule for a set of budgets"
DESCRIPTION = (
    "Make the whole schedule of noise, rates and clips before training, so that every client, or "
    "every single record, spends its budget and no more."
)
EXAMPLES = """examples:
  fedspend plan examples/quickstart.toml --output plan.json --plot spending.png
  fedspend plan --epsilon 10:34,20:43,30:23 --delta 1e-5 --rounds 25 --rate 0.9 \\
    --saving-rate 10:0.5,20:0.6,30:0.7
  fedspend plan --budgets clients.csv --delta 1e-6 --rounds 100 --rate 0.1 --json
  fedspend plan --epsilon 10:34,20:43,30:23 --delta 1e-5 --rounds 25 --rate 0.9 \\
    --policy optimal --contraction 0.9 --tail 4
  fedspend plan examples/quickstart.toml --ledger accounts.db --output next.json
  fedspend plan examples/saving.toml --compare uniform,optimal,spend-as-you-go --plot compare.svg
  fedspend plan examples/hospitals/hospitals.toml --output plan.json  # a budget for every record
"""
PLANS = (".json", ".json.gz")
AUTO_TAIL = "auto"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG.toml", help="config file; flags override its values")
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--epsilon",
        metavar="E:N,...",
        help="budgets as epsilon:clients, for example 10:34,20:43,30:23; or one epsilon for all",
    )
    who.add_argument(
        "--budgets",
        metavar="FILE.csv",
        help="budgets as CSV: client,epsilon[,saving_rate][,transition][,group]",
    )
    add("--clients", type=int, metavar="N", help="number of clients, if the budgets do not say")
    add("--rounds", type=int, metavar="T", help="number of rounds")
    add("--rate", type=float, metavar="Q", help="probability that a client takes part in a round")
    add("--delta", type=float, metavar="D", help="delta of every budget; keep it below 1/clients")
    add(
        "--policy",
        metavar="P",
        help="how a budget is spread over the rounds: {policies}",
    )
    add(
        "--method",
        metavar="M",
        help="what clients compute and how the server combines it: {methods}",
    )
    add_policy_arguments(parser)
    add("--clip", type=float, metavar="C", help="clip norm of the average client (default: 1)")
    add(
        "--clip-schedule",
        metavar="S",
        help=(
            "clip of each round: lr (follows train.lr_schedule; the default where that falls), "
            "constant, or factors such as 1,1,0.5"
        ),
    )
    add(
        "--accountant",
        metavar="A",
        help=(
            "auto, {accountants}; default auto: pld (less noise) for up to 20 distinct schedules, "
            "else rdp"
        ),
    )
    add(
        "--ledger",
        metavar="PATH|URL",
        help=(
            "plan with what this ledger has left of every lifetime budget; reads it and changes "
            "nothing"
        ),
    )
    add_project(add)
    add("-o", "--output", metavar="PLAN.json", help="save the plan, as .json or .json.gz")
    add("--force", action="store_true", help="let --output overwrite a different file")
    add("--json", action="store_true", help="print JSON with full numbers instead of a table")
    add("--plot", metavar="FILE", help="plot spending and noise by round, as .png, .svg or .pdf")
    add("--compare", metavar="P,...", help="show several policies side by side")
    add_set(add, "privacy.rate=0.5")
    add("--quiet", action="store_true", help="print nothing but errors and the --json output")


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """What some policies need to know."""
    add = parser.add_argument
    add(
        "--saving-rate",
        metavar="Q",
        help="rate before the transition round: one for all, or by epsilon as 10:0.5,20:0.6",
    )
    add(
        "--transition",
        metavar="T",
        help=(
            "first round at the full rate: one for all, or by epsilon as 10:13,20:10 (default: the "
            "middle)"
        ),
    )
    add(
        "--permute-rates",
        action="store_true",
        help="assign the saving rates so that the strictest budgets get the smallest (Eq. 8)",
    )
    add(
        "--weights",
        metavar="W,...",
        help="budget shares of the rounds, for example 1,1,2; or geometric:1.05",
    )
    add(
        "--contraction",
        type=float,
        metavar="R",
        help=(
            "policy optimal: part of a push against the model that one round leaves, in (0, 1] "
            "(default: do well for all from 0.5 to 1)"
        ),
    )
    add(
        "--influence",
        metavar="FILE",
        help="policy optimal, in place of --contraction: what fedspend design influence measured",
    )
    add(
        "--tail",
        type=tail_length,
        metavar="K",
        help=(
            "policy optimal: the final model is the mean of K last iterates (default: 1); auto: "
            "the tail that --influence proposes together with the noise for it"
        ),
    )


def tail_length(text: str) -> int | str:
    """A number of iterates, or `auto`."""
    try:
        return text if text == AUTO_TAIL else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or {AUTO_TAIL}; got {text!r}"
        ) from None


def run(args: argparse.Namespace) -> int:
    check_files(args)
    from fedspend.cli.terminal import progress_bar
    from fedspend.configuration.config import load_config
    from fedspend.configuration.effects import refuse_without_effect
    from fedspend.configuration.plan_inputs import Flags, resolve
    from fedspend.configuration.planned import by_number, ledger_of, planned
    from fedspend.server.methods.table import protects_records

    flags = Flags(
        **{name: value for name, value in vars(args).items() if name in Flags.__dataclass_fields__}
    )
    config = load_config(args.config, args.set)
    ledger, project = ledger_of(config, args.ledger, args.project)
    if protects_records(flags.method or config.method.name or ""):
        from fedspend.cli import plan_records

        config, flags = plan_records.read(args, ledger), Flags()
    elif args.compare:
        refuse_without_effect(config, flags.changes())
        if ledger is not None:
            raise InvalidInput(
                "--compare shows policies for given budgets and cannot go with --ledger; drop one "
                "of the two"
            )
        return compare(args, resolve(config, by_number(config, flags, on_note(args))))
    with progress_bar("planning", args.quiet) as progress:
        plan, labels = planned(config, flags, ledger, project, on_note(args), progress)
    return single(args, plan, labels)


def on_note(args: argparse.Namespace) -> Callable[[str], None]:
    import sys

    return lambda note: None if args.quiet else print(f"note: {note}", file=sys.stderr)


def single(args: argparse.Namespace, plan: AnyPlan, labels: Sequence[str] | None = None) -> int:
    """Save, plot and show one plan, of clients or of records."""
    from fedspend.cli.views import show_header, view_of
    from fedspend.report.groups import group_clients

    view = view_of(plan)
    saved = save_plan(plan, args.output, args.force)
    grouping = group_clients(plan, labels)
    if args.plot is not None:
        view.draw(plan, args.plot, labels)
    if args.json:
        print_json(view.numbers(plan, grouping) | {"saved": args.output, "plot": args.plot})
    elif not args.quiet:
        from fedspend.cli.tables import show_files
        from fedspend.cli.terminal import console

        out = console()
        show_header(out, plan)
        view.show(out, plan, grouping)
        show_files(out, args.output, saved, args.plot)
    return 0


def compare(args: argparse.Namespace, inputs: Inputs) -> int:
    from fedspend.configuration.plan_inputs import parse_policies
    from fedspend.report.groups import group_clients

    for flag in ("output", "policy", "method"):
        if getattr(args, flag) is not None:
            raise InvalidInput(
                f"--compare shows several policies and cannot go with --{flag}; drop one of the two"
            )
    asked = {policy: inputs.request_for(policy) for policy in parse_policies(args.compare)}
    plans = {policy: make(request, args.quiet) for policy, request in asked.items()}
    grouping = group_clients(next(iter(plans.values())), inputs.population.groups)
    if args.plot is not None:
        from fedspend.report.plots import spending_plot

        spending_plot(
            plans, args.plot, labels=inputs.population.groups_of(next(iter(plans.values())).clients)
        )
    if args.json:
        from fedspend.report.numbers import plan_numbers

        print_json(
            {
                "policies": {
                    policy: plan_numbers(plan, grouping) for policy, plan in plans.items()
                },
                "plot": args.plot,
            }
        )
    elif not args.quiet:
        from fedspend.cli.tables import show_comparison

        show_comparison(plans, grouping, args.plot)
    return 0


def make(request: PlanRequest, quiet: bool) -> Plan:
    from fedspend.cli.terminal import progress_bar

    with progress_bar("planning", quiet) as progress:
        return request.plan(progress)


# --- files ----------------------------------------------------------------------------------------


def check_files(args: argparse.Namespace) -> None:
    """Refuse output files that cannot be written, before any work is done."""
    for flag, name, endings in (
        ("--output", args.output, PLANS),
        ("--plot", args.plot, PLOTS),
    ):
        if name is None:
            continue
        if not Path(name).name.lower().endswith(endings):
            raise InvalidInput(f"{flag} {name!r} must end in {', '.join(endings)}")
        check_writable(flag, name)


def print_json(document: dict[str, Any]) -> None:
    import json

    print(json.dumps(document, indent=2, allow_nan=False))
