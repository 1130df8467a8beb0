"""`fedspend explain`: what an epsilon, or a plan, means for a person.

An epsilon is explained as odds and as the success of the best membership test; a plan is explained
from its own rounds, for every observer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.explanation.observed import Sight
    from fedspend.explanation.units import Subject
    from fedspend.planning.protocol import AnyPlan

HELP = "say in plain words what an epsilon, or a plan, means for a person"
DESCRIPTION = (
    "What could somebody find out? 'fedspend explain 10 --delta 1e-5' says what epsilon 10 means "
    "as odds and as the success of the best membership test, for any mechanism. 'fedspend explain "
    "PLAN.json' reads both from the plan's own noise and sampling, for each kind of observer; the "
    "result is far smaller. Every number is an upper bound."
)
EXAMPLES = """examples:
  fedspend explain 10 --delta 1e-5
  fedspend explain plan.json
  fedspend explain plan.json --client 17
  fedspend explain plan.json --group 10 --observer "participation revealed" --plot curve.png
  fedspend explain records.json --record 4711 --json
"""

PLAN_ONLY = ("client", "record", "group", "observer", "colluders")
MOST_GROUPS, BANDS = 6, 4  # shown one after the other if no client or record is named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="EPSILON | PLAN", help="a number, or a plan file (.json or .json.gz)")
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
    add("--plot", metavar="FILE", help="plot the trade-off curve, as .png, .svg or .pdf")
    add("--json", action="store_true", help="print JSON with full numbers instead of words")


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        from fedspend.cli.ledger import PLOTS, ending
        from fedspend.cli.outputs import check_writable

        ending(args.plot, "--plot", PLOTS)
        check_writable("--plot", args.plot)
    return run_claim(args) if is_number(args.what) else run_plan(args)


def is_number(text: str) -> bool:
    """
    >>> is_number("10"), is_number("1e-3"), is_number("plan.json")
    (True, True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- a bare epsilon -------------------------------------------------------------------------------


def run_claim(args: argparse.Namespace) -> int:
    for name in PLAN_ONLY:
        if getattr(args, name) is not None:
            raise InvalidInput(
                f"--{name} is for plans, and {args.what!r} is a number; name a plan file, or "
                f"drop --{name}"
            )
    if args.delta is None:
        raise InvalidInput(
            f"epsilon {args.what} means nothing without its delta; add --delta, for example "
            "--delta 1e-5"
        )
    from fedspend.explanation.meaning import Claim

    claim = Claim.checked(args.what, args.delta)
    if args.plot is not None:
        from fedspend.report.tradeoff_plot import tradeoff_plot

        title = f"epsilon {claim.epsilon:g}, delta {claim.delta:g}: the worst case"
        tradeoff_plot({"epsilon and delta alone": claim.curve}, args.plot, title)
    if args.json:
        print(json.dumps(claim.numbers(), indent=2, allow_nan=False))
        return 0
    from fedspend.cli.explain_views import show_claim

    show_claim(claim, args.plot)
    return 0


# --- a plan ---------------------------------------------------------------------------------------


def run_plan(args: argparse.Namespace) -> int:
    if args.delta is not None:
        raise InvalidInput(
            f"--delta {args.delta} is for a number; a plan has its own delta, so drop --delta"
        )
    if not Path(args.what).exists():
        raise InvalidInput(
            f"{args.what!r} is neither a number nor a file; give an epsilon, or a plan written by "
            "fedspend plan --output"
        )
    given = [name for name in ("client", "record", "group") if getattr(args, name) is not None]
    if len(given) > 1:
        raise InvalidInput(f"--{given[0]} and --{given[1]} were both given; choose one of them")
    if args.colluders is not None and args.colluders < 1:
        raise InvalidInput(f"--colluders must be at least 1, got {args.colluders}")
    from fedspend.cli.views import view_of
    from fedspend.explanation.observed import sights
    from fedspend.planning.plan import refuse_trial
    from fedspend.planning.protocol import load_any_plan

    plan = load_any_plan(args.what)
    refuse_trial(plan)
    if args.colluders is not None and (why := view_of(plan).no_colluders) is not None:
        raise InvalidInput(f"--colluders {why}")
    found = {
        one: chosen(sights(plan, one.schedule, args.colluders or 0), args.observer)
        for one in subjects(plan, args)
    }
    if args.plot is not None:
        plot(plan, found, args.plot)
    if args.json:
        print(json.dumps(document(plan, args.what, found), indent=2, allow_nan=False))
        return 0
    from fedspend.cli.explain_views import show_plan

    show_plan(plan, found, args.plot)
    return 0


def subjects(plan: AnyPlan, args: argparse.Namespace) -> list[Subject]:
    """The client, record or group that was named, or every group."""
    from fedspend.basics.choices import choose
    from fedspend.explanation.units import group, one_unit
    from fedspend.report.groups import group_clients

    for unit in ("client", "record"):
        if getattr(args, unit) is not None:
            return [one_unit(plan, unit, getattr(args, unit))]
    grouping = group_clients(plan, most=MOST_GROUPS, bands=BANDS)
    by_label = dict(zip(grouping.labels, grouping.members, strict=True))
    if args.group is not None:
        wanted = f"{float(args.group):.4g}" if is_number(args.group) else args.group
        by_label = {wanted: by_label[choose("group", wanted, by_label)]}
    return [group(plan, label, members) for label, members in by_label.items()]


def chosen(seen: tuple[Sight, ...], name: str | None) -> tuple[Sight, ...]:
    if name is None:
        return seen
    from fedspend.basics.choices import choose

    wanted = choose("observer", name, [one.observer for one in seen])
    return tuple(one for one in seen if one.observer == wanted)


def plot(plan: AnyPlan, found: dict[Subject, tuple[Sight, ...]], path: str) -> None:
    """The observers of one subject, or the first observer of several."""
    from fedspend.accounting.tradeoff import from_claim
    from fedspend.report.tradeoff_plot import tradeoff_plot

    if len(found) > 1:
        curves = {one.label: seen[0].curve for one, seen in found.items()}
        first = next(iter(found.values()))[0]
        tradeoff_plot(curves, path, f"Best membership test; observer: {first.observer}")
        return
    [(subject, seen)] = found.items()
    curves = {one.observer: one.curve for one in seen}
    curves["epsilon and delta alone"] = from_claim(seen[0].epsilon, plan.delta)
    tradeoff_plot(curves, path, f"Best membership test; {subject.label}")


def document(
    plan: AnyPlan, path: str, found: dict[Subject, tuple[Sight, ...]]
) -> dict[str, object]:
    from fedspend.explanation.meaning import Claim, sight_numbers

    return {
        "plan": path,
        "plan_hash": plan.hash,
        "unit": plan.unit,
        "delta": plan.delta,
        "subjects": [
            {
                "who": one.label,
                "members": one.members,
                "budget": one.budget,
                "epsilon": one.epsilon,
                "by_epsilon_alone": Claim(one.epsilon, plan.delta).numbers(),
                "observers": [sight_numbers(sight) for sight in seen],
            }
            for one, seen in found.items()
        ],
    }
