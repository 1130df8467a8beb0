"""`fedspend explain`: what an epsilon, or a plan, means for a person.

An epsilon is explained as odds and as the success of the best membership test; a plan is explained
from its own rounds, for every observer. With `--leaves` it says what somebody who leaves has spent.
"""

from __future__ import annotations

import argparse
import json

from fedspend.cli.flags import add_project
from fedspend.errors import InvalidInput

HELP = "say in plain words what an epsilon, or a plan, means for a person"
DESCRIPTION = (
    "What could somebody find out? 'fedspend explain 10 --delta 1e-5' says what epsilon 10 means "
    "as odds and as the success of the best membership test, for any mechanism. 'fedspend explain "
    "PLAN.json' reads both from the plan's own noise and sampling, for each kind of observer; the "
    "result is far smaller. Every number is an upper bound. With --leaves: what a client or record "
    "that leaves after some round has spent, what it gets back and has left, and what changes for "
    "the others. Nothing is written."
)
EXAMPLES = """examples:
  fedspend explain 10 --delta 1e-5
  fedspend explain plan.json
  fedspend explain plan.json --client 17
  fedspend explain plan.json --group 10 --observer "participation revealed" --plot curve.png
  fedspend explain records.json --record 4711 --json
  fedspend explain plan.json --client 17 --leaves 8
  fedspend explain plan.json --client north-clinic --leaves 8 --ledger accounts.db
"""
ASKED = ("client", "record", "group", "observer", "colluders")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="EPSILON | PLAN", help="a number, a plan file, or a run directory")
    add("--delta", metavar="D", help="with a number: its delta")
    who = parser.add_argument_group("with a plan: who is protected, against whom")
    who.add_argument("--client", metavar="ID", help="one client")
    who.add_argument("--record", metavar="ID", help="one record, if the plan is for records")
    who.add_argument(
        "--group", metavar="BUDGET", help="everyone with this budget (default: all groups)"
    )
    who.add_argument("--observer", metavar="NAME", help="one observer only (default: all)")
    who.add_argument(
        "--colluders", type=int, metavar="K", help="clients who pool what they know (default: 10)"
    )
    leaving = parser.add_argument_group("with a plan: if a client or record leaves")
    leaving.add_argument(
        "--leaves",
        type=int,
        metavar="ROUND",
        help="the last round that has begun when it leaves; 0: before the first",
    )
    leaving.add_argument(
        "--ledger",
        metavar="LEDGER",
        help="the ledger that the plan is charged to; other runs count",
    )
    add_project(leaving.add_argument)
    add("--plot", metavar="FILE", help="plot the trade-off curve, as .png, .svg or .pdf")
    add("--json", action="store_true", help="print JSON with full numbers instead of words")


def run(args: argparse.Namespace) -> int:
    if args.leaves is not None:
        return explain_leaving(args)
    for name in ("ledger", "project"):
        if getattr(args, name) is not None:
            raise InvalidInput(f"--{name} is for who leaves; give --leaves ROUND, or drop --{name}")
    if args.plot is not None:
        from fedspend.cli.outputs import PLOTS, check_writable, ending

        ending(args.plot, "--plot", PLOTS)
        check_writable("--plot", args.plot)
    from fedspend.explanation.entry import ExplainedPlan, explain

    asked = {name: getattr(args, name) for name in ASKED}
    found = explain(args.what, delta=args.delta, **asked)
    if args.plot is not None:
        found.plot().save(args.plot)
    if args.json:
        where = {"plan": args.what} if isinstance(found, ExplainedPlan) else {}
        print(json.dumps(where | found.numbers(), indent=2, allow_nan=False))
        return 0
    from fedspend.cli.explain_views import show_claim, show_plan

    if isinstance(found, ExplainedPlan):
        show_plan(found.plan, found.seen, args.plot)
    else:
        show_claim(found.claim, args.plot)
    return 0


def explain_leaving(args: argparse.Namespace) -> int:
    for name in ("delta", "group", "observer", "colluders", "plot"):
        if getattr(args, name) is not None:
            raise InvalidInput(f"--leaves says what is spent and cannot go with --{name}; drop one")
    from fedspend.cli.leaving_views import show_leaving
    from fedspend.explanation.entry import plan_of, what_if

    plan = plan_of(args.what)
    who = {name: getattr(args, name) for name in ("client", "record", "ledger", "project")}
    found = what_if(plan, leaves=args.leaves, **who)
    if args.json:
        print(json.dumps({"plan": args.what} | found.numbers(), indent=2, allow_nan=False))
    else:
        show_leaving(found, with_ledger=args.ledger is not None, filters_by_norm=plan.by_norm)
    return 0
