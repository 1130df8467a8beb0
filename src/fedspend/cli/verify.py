"""`fedspend verify`: checks a plan, a run directory or a publication, independently of its maker.

A plan's claims are recomputed by accountants that share no code with the planner. Exits with 0 if
everything that can be checked is right, with 1 if something is not or was altered, with 2 if there
is no plan, run or publication to check.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from fedspend.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from fedspend.publishing.checking import Checked
    from fedspend.runs.verifying import RunVerification

HELP = "check a plan, a run directory or a publication"
DESCRIPTION = (
    "Recompute every claim of a plan with accountants that share no code with the planner; check "
    "that everything in a run directory belongs together: plan, settings, certificate, ledger, "
    "releases, model and report; or check a publication (fedspend publish), as a stranger or, with "
    "--open, as one of its clients. Exit code 0: everything that can be checked is right; 1: "
    "something is not, or was altered; 2: there is nothing of that kind to check."
)
EXAMPLES = """examples:
  fedspend verify plan.json
  fedspend verify plan.json --colluders 10
  fedspend verify plan.json.gz --json
  fedspend verify runs/first
  fedspend verify runs/first --ledger accounts.db --json
  fedspend verify runs/first --key fedspend.pub
  fedspend verify public/first --key fedspend.pub
  fedspend verify public/first --open north.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "path",
        metavar="PATH",
        help="a plan file, .json or .json.gz; a run directory; or a publication",
    )
    add(
        "--colluders",
        type=int,
        metavar="K",
        help="plans: also show what K clients who pool what they know could learn (default: 10)",
    )
    add(
        "--key",
        metavar="PUBLIC",
        help="run directories and publications: must be signed by this public key",
    )
    add(
        "--open",
        metavar="OPENING.json",
        help="publications: also check this client's own budget, schedule and claim",
    )
    add(
        "--ledger",
        metavar="PATH|URL",
        help="run directories: where the run's ledger is; needed unless it is in the directory",
    )
    add("--json", action="store_true", help="print JSON with full numbers instead of tables")
    add("--quiet", action="store_true", help="print nothing; the exit code is the verdict")


def run(args: argparse.Namespace) -> int:
    from fedspend.publishing.verifying import OF_PLAN, OF_RUN, kind_of

    given = {name: getattr(args, name) for name in ("colluders", "ledger", "key", "open")}
    kind = kind_of(args.path, **given)
    if kind == OF_PLAN:
        return verify_plan(args)
    return verify_run(args) if kind == OF_RUN else verify_publication(args)


def verify_plan(args: argparse.Namespace) -> int:
    import fedspend
    from fedspend.cli.terminal import progress_bar
    from fedspend.cli.views import view_of
    from fedspend.planning.protocol import load_any_plan

    try:
        plan = load_any_plan(args.path)
    except Refused as altered:  # it is a plan, and the answer is no
        if args.json:
            print_json({"plan": args.path, "ok": False, "failures": [str(altered)]})
        elif not args.quiet:
            print(f"FAIL  {altered}")
        return 1
    view = view_of(plan)
    if args.colluders is not None and view.no_colluders is not None:
        raise InvalidInput(f"--colluders {view.no_colluders}")
    with progress_bar("verifying", args.quiet) as progress:
        result = fedspend.verify(plan, colluders=args.colluders, progress=progress)
    if args.json:
        print_json({"plan": args.path} | result.to_dict() | view.verdict(plan))
    elif not args.quiet:
        from fedspend.cli.verdict import show_verdict

        show_verdict(plan, result)
    return 0 if result.ok else 1


def verify_publication(args: argparse.Namespace) -> int:
    import fedspend
    from fedspend.cli.terminal import working

    with working("checking the publication", args.quiet):
        found = fedspend.verify(args.path, key=args.key, opening=args.open)
    result = cast("Checked", found)
    if args.json:
        print_json(result.to_dict())
    elif not args.quiet:
        from rich.text import Text

        from fedspend.cli.checked import show_checked

        out = show_checked(
            result,
            good="everything that a stranger can check is right"
            if args.open is None
            else "everything that this client and a stranger can check is right",
            bad="do not rely on this publication",
        )
        if result.ok:
            out.print()
            out.print(Text(result.words.rstrip()))
    return 0 if result.ok else 1


def verify_run(args: argparse.Namespace) -> int:
    """A run directory: whether everything in it belongs together, and who signed it."""
    import fedspend
    from fedspend.cli.terminal import working

    with working("checking the run", args.quiet):
        found = fedspend.verify(args.path, ledger=args.ledger, key=args.key)
    result = cast("RunVerification", found)
    if args.json:
        print_json(result.to_dict())
    elif not args.quiet:
        from fedspend.cli.checked import show_checked

        show_checked(
            result,
            good="everything in this run directory that can be checked belongs together",
            bad="do not rely on this run directory",
        )
    return 0 if result.ok else 1


def print_json(content: dict[str, Any]) -> None:
    import json

    print(json.dumps(content, indent=2, allow_nan=False))
