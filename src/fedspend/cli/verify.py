"""`fedspend verify`: recomputes a plan's claims with independent accountants.

They share no code with the planner. Exits with 0 if the plan passes, with 1 if it fails.
"""

from __future__ import annotations

import argparse

from fedspend.errors import InvalidInput

HELP = "check a plan with independent accountants"
DESCRIPTION = (
    "Recompute every claim of a plan with accountants that share no code with the planner. Exit "
    "code 0: all claims hold; 1: some do not."
)
EXAMPLES = """examples:
  fedspend verify plan.json
  fedspend verify plan.json --colluders 10
  fedspend verify plan.json.gz --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN", help="plan file, .json or .json.gz")
    add(
        "--colluders",
        type=int,
        default=0,
        metavar="K",
        help="also show what K clients who pool what they know could learn (default: 10)",
    )
    add("--json", action="store_true", help="print JSON with full numbers instead of tables")
    add("--quiet", action="store_true", help="print nothing; the exit code is the verdict")


def run(args: argparse.Namespace) -> int:
    if not args.colluders >= 0:
        raise InvalidInput(
            f"--colluders must be a whole number of at least 0, got {args.colluders}"
        )
    import fedspend
    from fedspend.cli.terminal import progress_bar
    from fedspend.cli.views import view_of
    from fedspend.planning.protocol import load_any_plan

    plan = load_any_plan(args.plan)
    view = view_of(plan)
    if args.colluders and view.no_colluders is not None:
        raise InvalidInput(f"--colluders {view.no_colluders}")
    with progress_bar("verifying", args.quiet) as progress:
        result = fedspend.verify(plan, colluders=args.colluders, progress=progress)
    if args.json:
        import json

        print(
            json.dumps(
                {"plan": args.plan} | result.to_dict() | view.verdict(plan),
                indent=2,
                allow_nan=False,
            )
        )
    elif not args.quiet:
        from fedspend.cli.verdict import show_verdict

        show_verdict(plan, result)
    return 0 if result.ok else 1
