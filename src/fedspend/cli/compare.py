"""`fedspend compare`: methods, or values of a setting, side by side on the same data and seeds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

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
    "method uses is refused."
)
EXAMPLES = """examples:
  fedspend compare examples/quickstart.toml --methods fedavg,idp-fedavg,time-adaptive --seeds 5
  fedspend compare examples/quickstart.toml --methods idp-fedavg,time-adaptive --seeds 10 \\
    -o compare/ --set privacy.rate=0.5
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
        required=True,
        metavar="M,...",
        help="methods to compare; differences are to the first",
    )
    add(
        "--seeds",
        type=int,
        default=5,
        metavar="N",
        help="runs of each method, with seeds counting up from train.seed (default: 5)",
    )
    add("--workers", type=int, metavar="N", help="runs at the same time (default: one per core)")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="also write comparison.json, comparison.csv and accuracy.png to this directory",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="S.KEY=V",
        help="override one config value, for example train.lr=0.1",
    )
    add(
        "--vary",
        action="append",
        default=[],
        metavar="S.KEY=V,...",
        help="compare these values of a setting; may be repeated",
    )
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    for flag, number in (("--seeds", args.seeds), ("--workers", args.workers)):
        if number is not None and number < 1:
            raise InvalidInput(f"{flag} must be at least 1, got {number}")
    from fedspend.basics.extras import need
    from fedspend.cli.terminal import progress_bar
    from fedspend.runs.comparison import compare

    need("torch")  # which processes of their own import

    methods = [name.strip() for name in args.methods.split(",")]
    with progress_bar("training", args.quiet) as progress:
        result = compare(
            args.config, methods, args.seeds, args.set, args.workers, progress, args.vary
        )
    if args.output:
        write(result, Path(args.output))
    if args.json:
        found = {"methods": result.rows(), "seeds": list(result.seeds), "equal": result.twins()}
        print(json.dumps(found))
    else:
        show(result, methods[0] if args.vary and len(methods) == 1 else None)
    return 0


def show(result: Comparison, only: str | None) -> None:
    """`only` is the one method whose settings are compared; if None, rows are named by method."""
    from rich.table import Table

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console

    points = is_share(result.metric)
    table = Table(box=None, pad_edge=False)
    table.add_column("method" if only is None else f"{only} with")
    for heading in (result.metric, "95% interval", f"minus {result.methods[0]}", "95% interval"):
        table.add_column(heading, justify="right")
    for n, row in enumerate(result.rows()):
        table.add_row(
            row["method"],
            f"{row['mean']:.2%}" if points else f"{row['mean']:.4g}",
            half_width(row["interval"], points),
            (f"{100 * row['difference']:+.2f}" if points else f"{row['difference']:+.4g}")
            if n
            else "",
            half_width(row["difference_interval"], points) if n else "",
        )
    console().print(table)
    for name, first in result.twins():
        console().print(f"{name} is equal to {first} in every round: the difference has no effect")
    console().print(
        f"seeded simulation, {counted(len(result.seeds), 'seed')}, differences paired by seed"
        + (", in points" if points else "")
    )


def percent(half: float | None) -> str:
    """Half the width of an interval, in percentage points.

    >>> percent(0.0123), percent(None)
    ('± 1.23', 'needs 2 seeds')
    """
    return half_width(half, points=True)


def half_width(half: float | None, points: bool) -> str:
    """Half the width of an interval, in percentage points or in the metric's own unit.

    >>> half_width(0.0123, points=True), half_width(12.345, points=False)
    ('± 1.23', '± 12.35')
    >>> half_width(None, points=True)
    'needs 2 seeds'
    """
    if half is None:
        return "needs 2 seeds"
    return f"± {100 * half:.2f}" if points else f"± {half:.4g}"


def write(result: Comparison, folder: Path) -> None:
    import csv
    import io

    from fedspend.basics.files import write_whole
    from fedspend.report.plots import metric_plot

    folder.mkdir(parents=True, exist_ok=True)
    rows = result.rows()
    body = json.dumps(
        {
            "methods": rows,
            "seeds": list(result.seeds),
            "equal": result.twins(),
            "metric": result.metric,
            result.metric: result.curves(),
        },
        indent=1,
    )
    write_whole(folder / "comparison.json", body.encode())
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["method", "mean", "interval", "difference", "difference_interval"])
    table.writerows(
        [row["method"], row["mean"], row["interval"], row["difference"], row["difference_interval"]]
        for row in rows
    )
    write_whole(folder / "comparison.csv", text.getvalue().encode())
    metric_plot(
        {name: result.values[n] for n, name in enumerate(result.methods)},
        folder / f"{result.metric}.png",
        result.metric,
    )
