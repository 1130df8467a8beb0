"""`fedspend verify`: recompute what a plan claims with accountants that share no code with the planner. Exit 0 pass, 1 fail."""

from __future__ import annotations

import argparse

from fedspend.errors import InvalidInput

HELP = "check a plan with independent accountants"
DESCRIPTION = (
    "Recompute every claim of a plan with accountants that share no code with the planner. Exit code 0: it holds; 1: it does not."
)
EXAMPLES = """examples:
  fedspend verify plan.json
  fedspend verify plan.json --colluders 10
  fedspend verify plan.json.gz --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", metavar="PLAN", help="plan file, .json or .json.gz")
    add("--colluders", type=int, default=0, metavar="K", help="answer for K clients who pool what they know (default: 10)")
    add("--json", action="store_true", help="print JSON with full numbers instead of tables")
    add("--quiet", action="store_true", help="print nothing; the exit code is the verdict")


def run(args: argparse.Namespace) -> int:
    if not args.colluders >= 0:
        raise InvalidInput(f"--colluders must be a whole number of at least 0, got {args.colluders}")
    import fedspend
    from fedspend.cli.terminal import progress_bar
    from fedspend.records.plan_file import load_any_plan
    from fedspend.records.planning import RecordPlan
    from fedspend.records.verification import verify_records

    plan = load_any_plan(args.plan)
    if args.colluders and isinstance(plan, RecordPlan):
        raise InvalidInput(
            "--colluders is for plans of clients; noise on records is added at each client, so others know none of it"
        )
    with progress_bar("verifying", args.quiet) as progress:
        if isinstance(plan, RecordPlan):
            result = verify_records(plan)
        else:
            result = fedspend.verify(plan, colluders=args.colluders, progress=progress)
    if args.json:
        import json

        by_record = {"left_out": [plan.records[n] for n in plan.left_out]} if isinstance(plan, RecordPlan) else {}
        print(json.dumps({"plan": args.plan} | result.to_dict() | by_record, indent=2, allow_nan=False))
    elif not args.quiet:
        from fedspend.cli.verdict import show_verdict

        show_verdict(plan, result)
    return 0 if result.ok else 1
