"""`fedspend tune`: chooses settings by trying them, in simulations or privately."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_project, add_set, add_workers
from fedspend.errors import InvalidInput
from fedspend.stored.files import REPORT, TUNE

if TYPE_CHECKING:
    from fedspend.tuning.private import Price, PrivateTune
    from fedspend.tuning.simulated import Tuned

HELP = "choose settings by trying them: in simulations, or privately at an accounted price"
DESCRIPTION = (
    "Try every combination of the values that --grid lists. Without --private: in seeded "
    "simulations, each measured on rows held out of the training rows, never on the test rows; "
    "with -o, a tune that was interrupted goes on when the command is repeated, and best.toml has "
    "the best config. With --private: on the rows of the clients. A random number of trials, each "
    "of a random setting, is run, and only the best leaves: its model, setting and score. Every "
    "client pays once, beforehand, and each trial has more noise than a run that is not tuned; "
    "--price shows how much. The number of trials and the other trials stay secret; so should the "
    "running time. docs/how-to/tuning.md explains."
)
EXAMPLES = """examples:
  fedspend tune examples/quickstart.toml --grid train.lr=0.05,0.1,0.2 -o tunes/first
  fedspend tune examples/quickstart.toml --grid train.lr=0.1,0.2 --grid privacy.clip=0.5,1 --seeds 5
  fedspend tune examples/quickstart.toml --private --price --grid train.lr=0.1,0.2
  fedspend tune examples/quickstart.toml --private --grid train.lr=0.1,0.2 -o runs/tuned
  fedspend tune our-clinics.toml --private --grid train.lr=0.1,0.2 --trials-mean 5 \\
    -o runs/tuned --project clinics
"""
FOR_PRIVATE = ("trials_mean", "distribution", "eta", "ledger", "project", "remaining", "price")
FOR_SIMULATIONS = ("seeds", "validation", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG.toml", help="what to train, as for fedspend train")
    add(
        "--grid",
        action="append",
        default=[],
        metavar="S.KEY=V,...",
        help="values of a setting to choose among, for example train.lr=0.1,0.2; may be repeated",
    )
    add(
        "--private",
        action="store_true",
        help="tune on the rows of the clients, at a price that is charged beforehand",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder for the runs and best.toml; with --private, for the winner (needed)",
    )
    add_set(add, "train.rounds=10", " in all settings")
    add("--seeds", type=int, metavar="N", help="runs of each setting (default: 3)")
    add(
        "--validation",
        type=float,
        metavar="SHARE",
        help="share of the training rows to hold out (default: the config's, else 0.2)",
    )
    add_workers(add)
    add(
        "--trials-mean",
        type=float,
        metavar="N",
        help="--private: how many trials are expected (default: 10)",
    )
    add(
        "--distribution",
        metavar="NAME",
        help=(
            "--private: of the number of trials: logarithmic (default), geometric, or "
            "negative-binomial with --eta"
        ),
    )
    add("--eta", type=float, metavar="ETA", help="--private: shape of negative-binomial, above -1")
    add(
        "--ledger",
        metavar="PATH|URL",
        help="--private: ledger to charge; as for fedspend train",
    )
    add_project(add)
    add(
        "--remaining",
        action="store_true",
        default=None,
        help="--private: spend what the ledger has left of each lifetime budget",
    )
    add(
        "--price",
        "--dry-run",
        dest="price",
        action="store_true",
        default=None,
        help="--private: show what the tune would cost; nothing is trained or charged",
    )
    add("--json", action="store_true", help="print JSON instead of words")
    add(
        "--quiet", action="store_true", help="no progress; with --private, print nothing but errors"
    )


def run(args: argparse.Namespace) -> int:
    unused = FOR_SIMULATIONS if args.private else FOR_PRIVATE
    given = next((name for name in unused if getattr(args, name) is not None), None)
    if given is not None:
        flag = "--" + given.replace("_", "-")
        needed = "is for tunes without --private" if args.private else "needs --private"
        raise InvalidInput(f"{flag} {needed}; drop it, or {'drop' if args.private else 'add'} that")
    return run_private(args) if args.private else run_simulated(args)


# --- in simulations -------------------------------------------------------------------------------


def run_simulated(args: argparse.Namespace) -> int:
    from fedspend.cli.going_on import saying_how_to_go_on
    from fedspend.cli.terminal import progress_bar
    from fedspend.tuning.grid import settings_of
    from fedspend.tuning.simulated import DEFAULT_SEEDS, DEFAULT_VALIDATION, tune_simulated

    settings = settings_of(args.config, args.set, args.grid)
    with (
        progress_bar("trying", args.quiet) as bar,
        saying_how_to_go_on(args, bar) as progress,
    ):
        found = tune_simulated(
            settings,
            DEFAULT_SEEDS if args.seeds is None else args.seeds,
            DEFAULT_VALIDATION if args.validation is None else args.validation,
            None if args.output is None else Path(args.output),
            workers=args.workers,
            progress=progress,
        )
    if args.json:
        print(
            json.dumps(
                {
                    "settings": found.rows(),
                    "tried": len(found.settings),
                    "seeds": list(found.seeds),
                    "validation": found.validation,
                    "best": found.best.values(),
                    "output": args.output,
                }
            )
        )
    else:
        show_simulated(found, args.output)
    return 0


def show_simulated(found: Tuned, output: str | None) -> None:
    from rich.table import Table

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console
    from fedspend.runs.comparison import DOUBT, FEW_SEEDS, half_width
    from fedspend.tuning.simulated import BEST

    table = Table(box=None, pad_edge=False)
    rows = found.rows()
    for name in rows[0]["setting"]:
        table.add_column(name)
    for heading in ("accuracy", "95% interval", "minus the best", "95% interval"):
        table.add_column(heading, justify="right")
    doubt = "*" if 1 < len(found.seeds) <= FEW_SEEDS else ""
    for n, row in enumerate(rows):
        table.add_row(
            *(str(value) for value in row["setting"].values()),
            f"{row['mean']:.2%}",
            half_width(row["interval"], points=True) + doubt,
            f"{100 * row['difference']:+.2f}" if n else "",
            half_width(row["difference_interval"], points=True) + doubt if n else "",
        )
    out = console()
    out.print(table)
    if doubt:
        out.print(DOUBT)
    out.print(
        f"{counted(len(found.settings), 'setting')} tried, "
        f"{counted(len(found.seeds), 'seed')} each, in simulations; measured on a share "
        f"{found.validation:g} of the training rows, held out. The best of many looks better than "
        "it is: measure it on the test rows once."
    )
    if output is not None:
        out.print(f"Best config: {Path(output) / BEST}")


# --- privately ------------------------------------------------------------------------------------


def run_private(args: argparse.Namespace) -> int:
    from fedspend.accounting.trials import DEFAULT, DEFAULT_MEAN, trials_of
    from fedspend.tuning.grid import settings_of
    from fedspend.tuning.private import price_tag, tune_private

    overrides = [*args.set, *(["ledger.spend=remaining"] if args.remaining else [])]
    settings = settings_of(args.config, overrides, args.grid)
    trials = trials_of(
        DEFAULT if args.distribution is None else args.distribution,
        DEFAULT_MEAN if args.trials_mean is None else args.trials_mean,
        args.eta,
    )
    if args.price:
        with waiting("looking for the price", args):
            tag = price_tag(settings, trials, ledger=args.ledger, project=args.project)
        show_price(tag, args)
        return 0
    if args.output is None:
        raise InvalidInput("a private tune needs a folder for its winner: give -o DIR")

    def on_note(note: str) -> None:
        if not args.quiet:
            print(f"{args.output}: {note}", file=sys.stderr)

    folder = Path(args.output)
    with charged_for_good(folder), waiting("tuning; how many trials are left is secret", args):
        found = tune_private(
            settings,
            trials,
            folder,
            ledger=args.ledger,
            project=args.project,
            on_note=on_note,
        )
    show_private(found, args)
    return 0


@contextmanager
def charged_for_good(folder: Path) -> Iterator[None]:
    """Says what an interrupted tune means, if it was charged."""
    before = TUNE.of(folder).exists()
    try:
        yield
    except KeyboardInterrupt:
        if TUNE.of(folder).exists() and not before:
            print(
                f"{folder}: the tune stays charged, and nothing of its trials is kept",
                file=sys.stderr,
            )
        raise


@contextmanager
def waiting(title: str, args: argparse.Namespace) -> Iterator[None]:
    """Shows that something is going on, and nothing about how far it is."""
    if args.quiet or args.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


def show_price(tag: Price, args: argparse.Namespace) -> None:
    from fedspend.cli.tables import figures, table
    from fedspend.cli.terminal import console

    if args.json:
        print(json.dumps(tag.document(), indent=2, allow_nan=False))
        return
    if args.quiet:
        return
    out = console()
    out.print(tag.words())
    out.print()
    rows = tag.rows()
    out.print(
        table(
            [
                ("budget", [figures(row["budget"]) for row in rows]),
                ("clients", [str(row["clients"]) for row in rows]),
                ("the tune\ncosts", [figures(row["tune"]) for row in rows]),
                ("one trial\nmay cost", [figures(row["trial"]) for row in rows]),
            ]
        )
    )
    out.print()
    out.print(
        f"A trial has {tag.noise:.2f} times the noise of a run that is not tuned. Nothing was "
        "trained or charged."
    )


def show_private(found: PrivateTune, args: argparse.Namespace) -> None:
    document: dict[str, Any] = {
        "folder": str(found.folder),
        "setting": list(found.setting),
        "score": found.score,
        "epsilon": float(found.plan.epsilon.max()),
        "delta": found.plan.delta,
        "ledger": found.ledger,
        "project": found.project or None,
        "run": found.run,
    }
    if args.json:
        print(json.dumps(document, allow_nan=False))
        return
    if args.quiet:
        return
    score = "no score" if found.score is None else f"score {found.score:.2%}"
    print(f"Winner: {', '.join(found.setting)} ({score}; the best of several looks better)")
    print(f"Report: {REPORT.of(found.folder)}")
    print(f"Charged to: {found.ledger}, run {found.run}: up to epsilon {document['epsilon']:.4g}")
