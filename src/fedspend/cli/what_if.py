"""`fedspend what-if`: what a client or record that leaves has spent, and what it gets back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedspend.cli.flags import add_project

if TYPE_CHECKING:
    from fedspend.explanation.leaving import Leaving

HELP = "say what a client has spent and gets back if it leaves"
DESCRIPTION = (
    "If a client or record leaves after some round: show what it has spent by then, what it gets "
    "back, what it has left, and what changes for the others. With --ledger, its other runs "
    "count too. Nothing is written."
)
EXAMPLES = """examples:
  fedspend what-if plan.json --client 17 --leaves 8
  fedspend what-if plan.json --client north-clinic --leaves 8 --ledger accounts.db
  fedspend what-if records.json --record 4711 --leaves 0 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN", help="plan file, .json or .json.gz")
    add("--client", metavar="ID", help="the client that leaves")
    add("--record", metavar="ID", help="the record that leaves, if the plan is for records")
    add(
        "--leaves",
        type=int,
        required=True,
        metavar="ROUND",
        help="the last round that has begun when it leaves; 0: before the first",
    )
    add("--ledger", metavar="LEDGER", help="the ledger that the plan is charged to")
    add_project(add)
    add("--json", action="store_true", help="print JSON with full numbers instead of words")


def run(args: argparse.Namespace) -> int:
    from fedspend.explanation.entry import plan_of, what_if

    plan = plan_of(args.plan)
    found = what_if(
        plan,
        client=args.client,
        record=args.record,
        leaves=args.leaves,
        ledger=args.ledger,
        project=args.project,
    )
    if args.json:
        import json

        print(json.dumps({"plan": args.plan} | found.numbers(), indent=2, allow_nan=False))
        return 0
    show(found, with_ledger=args.ledger is not None, filters_by_norm=plan.by_norm)
    return 0


def show(found: Leaving, *, with_ledger: bool, filters_by_norm: bool) -> None:
    from rich.text import Text

    from fedspend.cli.terminal import console

    out = console()
    out.print(Text(f"{found.title}; epsilon at delta {found.delta:g}", style="bold"))
    out.print()
    to_come = rounds_words(found.begun + 1, found.rounds)
    over = " over all its runs" if with_ledger else ""
    facts = [
        (
            "spent",
            f"{amount(found.spent)} of {found.budget:g}{over}; rounds that have begun stay spent",
        )
    ]
    if found.begun < found.rounds:
        facts += [
            ("if it stays", f"{amount(found.if_it_stays)} once {to_come} done"),
            (
                "given back",
                "nothing: once it has begun, the run counts as a whole"
                if found.keeps_all
                else f"{amount(found.given_back)}, when the run is closed",
            ),
        ]
    else:
        facts.append(("given back", "nothing: every round has begun"))
    more = "; epsilons do not simply add up" if found.left > found.budget - found.spent else ""
    facts.append(
        ("then left", f"{amount(found.left)}: the most that a plan like this could claim{more}")
    )
    if found.elsewhere > 0:
        facts.append(("other runs", f"{amount(found.elsewhere)} spent and held, by themselves"))
    for name, words in facts:
        out.print(Text.assemble((f"{name:<13}", "bold"), words))
    out.print()
    for name, sentences in endings(found, filters_by_norm):
        out.print(Text(name, style="bold"))
        for sentence in sentences:
            out.print(Text(f"  {sentence}"))


def amount(epsilon: float) -> str:
    """An epsilon with four digits.

    >>> amount(0.0), amount(10.0), amount(3.2581)
    ('nothing', '10.00', '3.258')
    """
    from fedspend.cli.tables import figures

    return "nothing" if epsilon == 0 else figures(epsilon)


def rounds_words(first: int, last: int) -> str:
    return f"round {last} is" if first >= last else f"rounds {first} to {last} are"


def endings(found: Leaving, by_norm: bool) -> list[tuple[str, list[str]]]:
    """The two ways to leave, and what each means for everyone else."""
    unit = found.unit
    freed = (
        "all rounds of the run stay spent, for everyone"
        if found.keeps_all
        else "what the run held is free again for everyone"
    )
    if found.begun == found.rounds:
        stop = ["No round is left to stop."]
    elif found.stops_the_run:
        stop = [
            "The run can begin no further round for anybody. Close it (fedspend ledger close-run)",
            f"and plan again without this {unit}: {freed}.",
        ]
    else:
        stop = [f"This {unit} is in none of the remaining rounds, so the run continues without it."]
    withdraws = [
        *stop,
        "A withdrawn account takes part in no further round, so what it has left stays unused.",
    ]
    silent = [
        "Nothing is given back. Every round is charged to everyone in the plan, sampled or not:",
        "charging only those who took part would break the accounting and reveal who did.",
    ]
    sums = "mean" if unit == "client" else "step of its client"
    others = [
        "Their noise, rates, clips and epsilons are planned and stay as they are.",
        f"The {sums} loses a contribution, but is still divided by the planned number.",
    ]
    if by_norm:
        others.append(
            "Records pay for their own gradients here: the numbers are the most they can have paid."
        )
    return [
        ("If it withdraws (fedspend ledger withdraw)", withdraws),
        (
            "If it only stops answering" if unit == "client" else "If it is simply no longer used",
            silent,
        ),
        ("For the others, in the rounds that are still run", others),
    ]
