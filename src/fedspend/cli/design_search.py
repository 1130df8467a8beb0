"""`fedspend design CONFIG.toml`: a search over the settings of its [design] section."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_set
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.design.analysis import Findings

FLAGS = ("output", "workers", "max_seconds", "set", "max_epsilon")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a search").add_argument
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write, or the search to continue (default: designs/ and the config's name); "
        "for influence: the file to write, .json",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="trainings at the same time (default: one per core)",
    )
    add(
        "--max-seconds",
        type=float,
        metavar="S",
        help="recommend a setting that trains within this time, as measured on this machine",
    )
    add_set(add, "design.seeds=10")


def run(args: argparse.Namespace) -> int:
    from fedspend.basics.extras import need
    from fedspend.cli.design_progress import trainings_in
    from fedspend.design.recommendation import config_of_point, recommend
    from fedspend.design.searching import run_search

    if not args.what.endswith(".toml") and not Path(args.what).exists():
        raise InvalidInput(
            f"{args.what!r} is neither a config file nor the word theory or influence; see "
            "fedspend design --help"
        )
    need("torch")  # which processes of their own import
    folder = Path(args.output) if args.output else Path("designs") / Path(args.what).stem
    with trainings_in(folder, args.quiet or args.json) as progress:
        outcome = run_search(
            args.what, folder, overrides=args.set, workers=args.workers, progress=progress
        )
    findings, chosen, paste = outcome.findings, None, None
    write_front(findings.points(findings.front | findings.real_front), folder)
    if args.max_epsilon is not None or args.max_seconds is not None:
        chosen = recommend(
            findings, outcome.seconds, max_epsilon=args.max_epsilon, max_seconds=args.max_seconds
        )
        paste = config_of_point(findings, chosen)
    draw(findings, folder, chosen)
    if args.json:
        document = findings.document()
        del document["candidates"]
        print(
            json.dumps(
                document | {"folder": str(folder), "recommended": chosen, "config": paste},
                allow_nan=False,
            )
        )
    elif not args.quiet:
        from fedspend.cli.design_tables import show_search

        show_search(findings, folder, chosen, paste)
    return 0


def write_front(points: list[dict[str, Any]], folder: Path) -> None:
    import csv
    import io

    from fedspend.basics.files import write_whole

    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for point in points for name in point)))
    table.writeheader()
    table.writerows(points)
    write_whole(folder / "front.csv", text.getvalue().encode())


def draw(findings: Findings, folder: Path, chosen: dict[str, Any] | None) -> None:
    from fedspend.report.design_plots import front_plot, solutions_plot

    front_plot(findings, folder / "front.png", chosen)
    solutions_plot(findings, folder / "solutions.png")
