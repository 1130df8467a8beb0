"""`fedspend design influence CONFIG`: what part of a push in each round is left at the end."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from fedspend.design.influence import Measured

FLAGS = ("output", "set", "directions", "by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("influence").add_argument
    add("--directions", type=int, metavar="N", help="random pushes per round (default: 1)")
    add(
        "--by",
        choices=("loss", "model"),
        help="plan with what is left in excess loss (default, where it can be read), or of a push",
    )


def run(args: argparse.Namespace) -> int:
    from fedspend.basics.words import counted
    from fedspend.cli.outputs import check_writable
    from fedspend.cli.terminal import progress_bar
    from fedspend.configuration.config import load_config
    from fedspend.configuration.effects import refuse_without_effect
    from fedspend.design.influence import measure_influence

    if args.config is None:
        raise InvalidInput("'fedspend design influence' needs a config: name its file")
    if args.output is not None:
        if not args.output.endswith(".json"):
            raise InvalidInput(f"--output {args.output!r} must end in .json")
        check_writable("--output", args.output)
    config = load_config(args.config, args.set)
    refuse_without_effect(config)
    directions = 1 if args.directions is None else args.directions
    with progress_bar("pushing", args.quiet or args.json) as progress:
        found = measure_influence(config, directions=directions, by=args.by, progress=progress)
    if args.output is not None:
        found.save(args.output)
    if args.json:
        print(json.dumps(found.document() | {"saved": args.output}, indent=2, allow_nan=False))
    elif not args.quiet:
        show(found, args.output, counted(found.runs, "run"))
    return 0


def show(found: Measured, saved: str | None, runs: str) -> None:
    from rich.text import Text

    from fedspend.cli.tables import figures, table
    from fedspend.cli.terminal import console

    out = console()
    out.print(
        Text.assemble(
            ("influence   ", "bold"),
            f"{runs} without noise, from the pushed round to the end; "
            f"{'the last iterate' if found.tail == 1 else f'a tail of {found.tail}'} handed out",
        )
    )
    out.print(
        Text.assemble(
            ("plan by     ", "bold"),
            "what is left in excess loss" if found.by == "loss" else "what is left of a push",
            f"; the nearest contraction is {found.contraction:g}",
        )
    )
    out.print()
    shown = [t - 1 for t in found.measured]
    loss = [found.own.in_loss[t] for t in shown]
    columns = [
        ("round", [str(t + 1) for t in shown]),
        ("left of a push", [figures(found.own.of_model[t], "#.3g") for t in shown]),
        ("in excess loss", ["-" if x != x else figures(x, "#.3g") for x in loss]),
    ]
    out.print(table(columns))
    out.print()
    show_tails(out, found)
    if saved is None:
        out.print(Text("Next: add --output influence.json, to plan with it", style="dim"))
    else:
        out.print(Text(f"Influence: {saved}"))
        out.print(
            Text(f"Next: fedspend plan ... --policy optimal --influence {saved}", style="dim")
        )


def show_tails(out: Console, found: Measured) -> None:
    """What each tail promises."""
    from rich.text import Text

    from fedspend.cli.tables import figures, table

    best = found.best
    if best is None:
        return
    tails = found.proposals
    columns = [
        ("tail", [str(one.tail) for one in tails]),
        ("loss without\nnoise", [figures(one.loss, "#.4g") for one in tails]),
        ("noise adds\noptimal", [figures(one.noise, "#.3g") for one in tails]),
        ("noise adds\nuniform", [figures(one.uniform, "#.3g") for one in tails]),
        ("together\noptimal", [figures(one.total, "#.4g") for one in tails]),
    ]
    out.print(table(columns))
    out.print()
    out.print(
        Text.assemble(
            ("proposal    ", "bold"),
            f"train.tail_average = {best.tail}, policy optimal with its influence",
        )
    )
