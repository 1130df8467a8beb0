"""`fedspend sweep`: a run for every combination of the values of any keys."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedspend.cli.flags import add_set, add_table, add_workers

HELP = "run every combination of values of any settings, side by side, with resume"
DESCRIPTION = (
    "Run every combination of the values of any config keys, with every seed, as a seeded "
    "simulation, in parallel over cores. With -o, finished runs are kept in a folder: the same "
    "command goes on with the rest, and values may be added; sweep.csv there has a row for each "
    "run. On private rows each run would be a release that nobody is charged for, so those are "
    "refused; fedspend tune chooses settings there."
)
EXAMPLES = """examples:
  fedspend sweep examples/quickstart.toml --over train.lr=0.05,0.1 --over privacy.clip=0.5,1
  fedspend sweep examples/quickstart.toml --over method.name=dp-fedavg,time-adaptive --seeds 5 \\
    -o sweeps/methods
  fedspend sweep examples/quickstart.toml --over privacy.rate=0.5,0.9 --table latex
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG.toml", help="what to run")
    add(
        "--over",
        action="append",
        default=[],
        metavar="S.KEY=V,...",
        help="values of a setting; may be repeated for more settings",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="runs of each combination, with seeds counting up from train.seed (default: 1)",
    )
    add_workers(add)
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="keep finished runs in this folder, go on with the rest, and write sweep.csv",
    )
    add_set(add, "train.rounds=10", " in all runs")
    add_table(add)
    add("--json", action="store_true", help="print a JSON list with a row for each run")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from fedspend.cli.going_on import saying_how_to_go_on
    from fedspend.cli.terminal import progress_bar
    from fedspend.tuning.sweeping import FRAME, sweep

    with (
        progress_bar("training", args.quiet) as bar,
        saying_how_to_go_on(args, bar) as progress,
    ):
        found = sweep(
            args.config,
            args.over,
            seeds=args.seeds,
            overrides=args.set,
            output=args.output,
            workers=args.workers,
            progress=progress,
        )
    if args.json:
        print(json.dumps(found.rows(), allow_nan=False))
        return 0
    table = found.table()
    if args.table:
        print(getattr(table, args.table)(), end="")
        return 0
    from rich.table import Table

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console

    keys, out = len(found.settings[0].values()), console()
    shown = Table(box=None, pad_edge=False)
    for n, heading in enumerate(table.header):
        shown.add_column(heading, justify="left" if n < keys else "right")
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    if table.note:
        out.print(table.note)
    out.print(
        f"seeded simulations: {counted(len(found.settings), 'setting')}, "
        f"{counted(len(found.seeds), 'seed')} each"
    )
    if args.output is not None:
        out.print(f"Runs: {Path(args.output) / FRAME}")
    return 0
