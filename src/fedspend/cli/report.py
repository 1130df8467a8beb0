"""`fedspend report`: one HTML page about a run, or about several runs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedspend.stored.files import REPORT

HELP = "write a self-contained HTML page about one run or several"
DESCRIPTION = (
    "Write one HTML file that opens offline and prints well: the guarantee, accuracy and "
    "loss, privacy spent against the budgets, noise and clips by round, the certificate, what each "
    "observer could learn, what epsilon means, and the settings. It marks the numbers that only "
    "a simulation may show."
)
EXAMPLES = """examples:
  fedspend report runs/first
  fedspend report runs/uniform runs/adaptive -o comparison.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run directory that fedspend train wrote; it may still be running",
    )
    add(
        "-o",
        "--output",
        metavar="FILE.html",
        help=f"where to write (default: {REPORT} in the run directory; for several runs, here)",
    )
    add("--json", action="store_true", help="also print the key numbers of every run as JSON")
    add("--quiet", action="store_true", help="print nothing but errors and the --json output")


def run(args: argparse.Namespace) -> int:
    folders = [Path(name) for name in args.runs]
    from fedspend.report.dates import dates_of
    from fedspend.report.html import render, summary, write_page
    from fedspend.report.making import check_page
    from fedspend.report.run_data import load_runs

    runs = load_runs(folders)
    output = Path(args.output or (REPORT.of(folders[0]) if len(folders) == 1 else REPORT.name))
    check_page(output)
    write_page(render(runs, dates_of(folders, [one.name for one in runs])), output)
    if args.json:
        import json

        print(
            json.dumps(
                {"report": str(output), "runs": [summary(one) for one in runs]},
                indent=2,
                allow_nan=False,
            )
        )
    elif not args.quiet:
        print(f"Report: {output}")
    return 0
