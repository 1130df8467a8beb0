"""`fedspend compare`: methods, or values of a setting, side by side on the same data and seeds."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from fedspend.cli.flags import add_set, add_table, add_workers
from fedspend.errors import InvalidInput
from fedspend.tasks.words import is_share

if TYPE_CHECKING:
    from fedspend.runs.comparison import Comparison

HELP = "train several methods or settings side by side and compare how good they are"
DESCRIPTION = (
    "Train every method with every seed as a seeded simulation, in parallel over cores, and show "
    "mean accuracy, its 95% interval, and the paired difference to the first method. With --vary, "
    "every value of a setting is compared: a method that does not use the setting appears once, "
    "without it; a policy is compared under the methods that can have it; a setting that no "
    "method uses is refused. Ctrl-C or SIGTERM stops at once. With -o, finished runs are kept in a "
    "folder: the same command goes on with the rest, and methods, values and seeds may be added; "
    "without it, nothing is kept."
)
EXAMPLES = """examples:
  fedspend compare examples/quickstart.toml --methods fedavg,idp-fedavg,time-adaptive --seeds 5
  fedspend compare examples/quickstart.toml --methods idp-fedavg,time-adaptive --seeds 10 \\
    -o compare/first --set privacy.rate=0.5    # stopped? the same command goes on
  fedspend compare examples/quickstart.toml --methods dp-fedavg --vary shape.lus=0,0.3,0.7 --seeds 5
  fedspend compare examples/quickstart.toml --methods idp-fedavg,time-adaptive --seeds 5 \\
    --vary privacy.policy=uniform,spend-as-you-go,spend-as-you-go-literal,geometric
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "config",
        metavar="CONFIG.toml",
        help="what to train; its policy is for its own method, other methods use their own",
    )
    add(
        "--methods",
        default="",
        metavar="M,...",
        help="methods to compare; differences are to the first (default: the config's own)",
    )
    add(
        "--seeds",
        type=int,
        default=5,
        metavar="N",
        help="runs of each method, with seeds counting up from train.seed (default: 5)",
    )
    add_workers(add)
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="keep finished runs in this folder, go on with the rest, and write comparison.json, "
        ".csv, .md and .tex, and a plot of every metric",
    )
    add_set(add, "train.lr=0.1")
    add(
        "--vary",
        action="append",
        default=[],
        metavar="S.KEY=V,...",
        help="compare these values of a setting; may be repeated",
    )
    add_table(add)
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    for flag, number in (("--seeds", args.seeds), ("--workers", args.workers)):
        if number is not None and number < 1:
            raise InvalidInput(f"{flag} must be at least 1, got {number}")
    from fedspend.basics.extras import need
    from fedspend.cli.going_on import saying_how_to_go_on
    from fedspend.cli.terminal import progress_bar
    from fedspend.runs.comparison import compare

    need("torch")  # which processes of their own import

    methods = [name.strip() for name in args.methods.split(",")] if args.methods else []
    with (
        progress_bar("training", args.quiet) as bar,
        saying_how_to_go_on(args, bar) as progress,
    ):
        result = compare(
            args.config,
            methods,
            args.seeds,
            args.set,
            args.workers,
            progress,
            args.vary,
            args.output,
        )
    if args.json:
        found = {"methods": result.rows(), "seeds": list(result.seeds), "equal": result.twins()}
        print(json.dumps(found))
    elif args.table:
        print(getattr(result.table(), args.table)(), end="")
    else:
        show(
            result, "method" if len(methods) > 1 or not args.vary else " ".join([*methods, "with"])
        )
    return 0


def show(result: Comparison, heading: str) -> None:
    from rich.table import Table

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console

    found = result.table(heading)
    table = Table(box=None, pad_edge=False)
    for n, heading in enumerate(found.header):
        table.add_column(heading, justify="right" if n else "left")
    for row in found.rows:
        table.add_row(*row)
    console().print(table)
    for name, first in result.twins():
        console().print(
            f"{name} is equal to {first} in every round: here the difference has no effect on "
            f"{result.metric}"
        )
    if found.note:
        console().print(found.note)
    console().print(
        f"seeded simulation, {counted(len(result.seeds), 'seed')}, differences paired by seed"
        + (", in points" if is_share(result.metric) else "")
    )
