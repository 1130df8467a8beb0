"""`fedspend design choose CONFIG`: which rounds, rate, policy, schedule, tail and clip."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.basics.progress import OnProgress
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from fedspend.design.choosing import Chosen, Tried, Worth

SHOWN = 8  # candidates in the table
# flags that `fedspend.design.choose` has arguments of the same name for
OPTIONS = (
    "contraction",
    "distance",
    "approach",
    "slack",
    "stride",
    "parameters",
    "seeds",
    "most",
    "score",
)
TRAINING = ("output", "seeds", "most", "score")  # flags that need --simulate
FLAGS = ("output", "set", "vary", "simulate", "write", *OPTIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("choose").add_argument
    add(
        "--vary",
        action="append",
        metavar="AXIS=V,V",
        help="values to compare: of a config key, for example train.rounds=10,25,50; of policy "
        "(uniform, optimal, geometric:1.05, spend-as-you-go:0.5, individual-rates:rates); or of "
        "schedule (constant, linear/lr, linear/constant). One value: keep to it. What is not named "
        "has usual values",
    )
    add(
        "--simulate",
        action="store_true",
        default=None,
        help="train candidates on the config's public data and choose by held-out rows",
    )
    add("--write", metavar="FILE", help="write the config of the best, .toml")
    add(
        "--contraction",
        type=float,
        metavar="RHO",
        help="theory: part of a random push against the model that one round leaves; measured on "
        "public data if neither this nor --distance is given",
    )
    add(
        "--distance",
        type=float,
        metavar="D",
        help="theory: from the first model to the best, in the unit of the clip",
    )
    add(
        "--approach",
        type=float,
        metavar="RHO",
        help="theory: part of that distance that one round leaves (default: the contraction)",
    )
    add(
        "--slack",
        type=float,
        metavar="D",
        help="theory: length of a random push that would undo all training (default: the distance)",
    )
    add(
        "--stride",
        type=float,
        metavar="D",
        help="theory: norm of a client's update before clipping, at least (default: as far as all "
        "of them together go)",
    )
    add("--parameters", type=int, metavar="N", help="theory: number of the model's parameters")
    add("--seeds", type=int, metavar="N", help="simulation: seeds of the finalists (default: 3)")
    add("--most", type=int, metavar="N", help="simulation: candidates to try (default: 60)")
    add(
        "--score",
        choices=("accuracy", "loss"),
        help="simulation: what to choose by (default: accuracy)",
    )


def run(args: argparse.Namespace) -> int:
    from fedspend.design.choosing import choose

    if args.config is None:
        raise InvalidInput("'fedspend design choose' needs a config: name its file")
    check_flags(args)
    folder = None
    if args.simulate:
        folder = (
            Path(args.output)
            if args.output
            else Path("designs") / f"{Path(args.config).stem}-choose"
        )
    given = {name: getattr(args, name) for name in OPTIONS}
    with _progress(folder, args.quiet or args.json) as progress:
        found = choose(
            args.config,
            overrides=args.set,
            vary=varied(args.vary or []),
            simulate=bool(args.simulate),
            folder=folder,
            diagnose=bool(args.simulate),
            progress=progress,
            **{name: value for name, value in given.items() if value is not None},
        )
    if args.write is not None:
        found.write(args.write)
    if args.json:
        print(json.dumps(found.document() | {"written": args.write}, indent=1, allow_nan=False))
    elif not args.quiet:
        show(found, args.write)
    return 0


def _progress(folder: Path | None, quiet: bool) -> AbstractContextManager[OnProgress | None]:
    from fedspend.cli.design_progress import trainings_in
    from fedspend.cli.terminal import progress_bar

    return progress_bar("planning", quiet) if folder is None else trainings_in(folder, quiet)


def check_flags(args: argparse.Namespace) -> None:
    from fedspend.cli.outputs import check_writable

    for name in TRAINING:
        if getattr(args, name) is not None and not args.simulate:
            raise InvalidInput(f"--{name} is for trainings; add --simulate, or drop it")
    if args.write is not None:
        if not args.write.endswith(".toml"):
            raise InvalidInput(f"--write {args.write!r} must end in .toml")
        check_writable("--write", args.write)
        if Path(args.write).exists():
            raise InvalidInput(f"--write {args.write!r} exists already; choose another name")


def varied(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of `--vary`, by axis.

    >>> varied(["train.rounds=10,25", "policy=uniform,geometric:1.05"])
    {'train.rounds': [10, 25], 'policy': ['uniform', 'geometric:1.05']}
    """
    from fedspend.configuration.config import override_value

    axes: dict[str, list[Any]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        name = axis.strip()
        if not equals or not name:
            raise InvalidInput(
                f"--vary {text}: written AXIS=VALUE,VALUE, for example train.rounds=10,25,50"
            )
        if name in axes:
            raise InvalidInput(f"--vary {text}: {name} is listed twice; give all values at once")
        axes[name] = [
            override_value(value.strip(), f"--vary {text}") for value in values.split(",")
        ]
    return axes


# --- tables ---------------------------------------------------------------------------------------


def show(found: Chosen, written: str | None) -> None:
    from rich.text import Text

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console

    out = console()
    plan = found.plan
    if found.kind == "theory":
        how = f"{counted(len(found.tried), 'setting')} planned and forecast; nothing was trained"
    else:
        how = (
            f"{counted(len(found.tried), 'setting')} trained, "
            f"{counted(found.trainings, 'training')} in all, by {found.measure}"
        )
    out.print(Text.assemble(("compared    ", "bold"), how))
    out.print(
        Text.assemble(
            ("plan        ", "bold"),
            f"{plan.who} within their budgets at delta {plan.delta:g}, accountant "
            f"{plan.accountant}, verified",
        )
    )
    if found.start.score is None:
        reason = found.start.refused or "training diverges"
        out.print(Text.assemble(("config      ", "bold"), f"not compared: {reason}"))
    for note in found.notes:
        out.print(Text(note, style="dim"))
    out.print()
    show_candidates(out, found)
    show_worth(out, found)
    show_bias(out, found)
    if written is None:
        out.print(Text("Next: add --write best.toml, then fedspend train best.toml", style="dim"))
    else:
        out.print(Text(f"Config: {written}"))
        out.print(Text(f"Next: fedspend train {written}", style="dim"))


def show_candidates(out: Console, found: Chosen) -> None:
    """The best few, and what the config says."""
    from fedspend.cli.tables import table
    from fedspend.design.choices import said, short

    best = [one for one in found.tried if one.score is not None][:SHOWN]
    rows = [("", one) for one in best if one is not found.start]
    rows = [("best", best[0]), *[row for row in rows if row[1] is not best[0]]]
    if found.start.score is not None:
        rows.append(("config" if found.start is not best[0] else "config, too", found.start))
    several = [axis for axis, values in found.axes.items() if len(values) > 1]
    columns = [("", [name for name, _ in rows])]
    columns += [(short(axis), [said(one.candidate[axis]) for _, one in rows]) for axis in several]
    out.print(table(columns + scores([one for _, one in rows], found.kind)))
    out.print()


def scores(rows: list[Tried], kind: str) -> list[tuple[str, list[str]]]:
    if kind == "theory":
        parts = [one.forecast for one in rows]
        named = {
            "lost to\nbias": [part.bias for part in parts if part],
            "to noise": [part.noise for part in parts if part],
            "to sampling": [part.sampling for part in parts if part],
            "in all": [part.total for part in parts if part],
        }
        return [(name, [f"{share:.2%}" for share in shares]) for name, shares in named.items()]
    return [
        ("held-out\nscore", [f"{one.score:.4f}" for one in rows]),
        ("seeds", [str(one.seeds) for one in rows]),
    ]


def show_worth(out: Console, found: Chosen) -> None:
    from rich.text import Text

    from fedspend.cli.tables import table
    from fedspend.design.choices import said, short

    if not found.worth:
        return
    out.print(Text("What each choice is worth: the best with one thing changed", style="bold"))
    unit = "points" if found.kind == "simulation" else "% of what training gains"
    columns = [
        ("choice", [short(one.axis) for one in found.worth]),
        ("from", [said(found.best[one.axis]) for one in found.worth]),
        ("to", [said(one.value) for one in found.worth]),
        (unit, [difference(one) for one in found.worth]),
    ]
    if found.kind == "simulation":
        columns.append(("seeds", [str(one.seeds) for one in found.worth]))
    out.print(table(columns))
    out.print()


def show_bias(out: Console, found: Chosen) -> None:
    """Theorems 2 and 3 beside what clipping and individual rates really do to the best."""
    from rich.text import Text

    from fedspend.cli.tables import figures, table

    if not found.bias:
        return
    out.print(Text("Bias of a round of the best, in the unit of the clip", style="bold"))
    rows = {
        "measured": [one.measured for one in found.bias],
        "Theorem 2:\nby rates": [one.by_rates for one in found.bias],
        "by clips": [one.by_clips for one in found.bias],
        "Theorem 3:\non average": [one.on_average for one in found.bias],
        "length of the\nmean update": [one.update for one in found.bias],
    }
    columns = [("round", [str(one.round) for one in found.bias])]
    columns += [
        (name, [figures(value, "#.3g") for value in values]) for name, values in rows.items()
    ]
    out.print(table(columns))
    out.print()


def difference(worth: Worth) -> str:
    half = "" if worth.interval is None else f" ± {100 * worth.interval:.2f}"
    return f"{100 * worth.difference:+.2f}{half}"
