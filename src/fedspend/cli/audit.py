"""`fedspend audit`: an empirical lower bound on epsilon beside the claim.

Exits with 0 if no claim is contradicted, with 1 if one is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.cli.flags import add_set

if TYPE_CHECKING:
    from fedspend.auditing import Audit
    from fedspend.auditing.meters import Meter

HELP = "measure a lower bound on epsilon with the run's own code, and compare it with the claim"
DESCRIPTION = (
    "Play the config's run many times with canaries: clients (or records) whose contributions are "
    "crafted, and a coin toss decides whether each one takes part. Guess the coins from the "
    "releases: how often the guesses are right gives a lower bound on epsilon for each group of "
    "budgets. Exit code 0: no bound exceeds its claim; 1: one does, so the claim is broken. Audits "
    "are simulations on public or made-up data; real rows are refused."
)
EXAMPLES = """examples:
  fedspend audit examples/quickstart.toml --trials 200
  fedspend audit examples/quickstart.toml --set method.name=dp-fedavg --plot audit.png
  fedspend audit examples/audit.toml --trials 3000 --json -o audit.json
  fedspend audit examples/hospitals/hospitals.toml --trials 20           # records
  fedspend audit examples/quickstart.toml --canaries 3 --trials 2000     # one per group
"""
_EVERY = 10.0  # seconds between progress lines if nobody is watching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG.toml", help="the run to audit")
    add(
        "--canaries",
        type=int,
        metavar="N",
        help="canaries in each run, over all groups (default: as many as fit)",
    )
    add(
        "--trials",
        type=int,
        metavar="N",
        help="runs to play (default: enough for 4,000 coins in every group)",
    )
    add("--rounds", type=int, metavar="N", help="audit a plan with this many rounds instead")
    add(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="confidence of each group's bound (default: 0.95)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of coins, noise and cohorts (default: 0)",
    )
    add(
        "--train-others",
        action="store_true",
        help="clients that are not canaries train on their rows; by default they send nothing",
    )
    add_set(add, "privacy.noise=discrete")
    add("--plot", metavar="FILE", help="plot claims and measurements, as .png, .svg or .pdf")
    add("-o", "--output", metavar="FILE", help="write the --json output to a file")
    add("--json", action="store_true", help="print JSON with full numbers instead of tables")
    add("--quiet", action="store_true", help="print nothing; the exit code is the verdict")


def run(args: argparse.Namespace) -> int:
    check_files(args)
    from fedspend.auditing import audit

    with progress_of(args) as progress:
        found = audit(
            args.config,
            overrides=args.set,
            canaries=args.canaries,
            trials=args.trials,
            rounds=args.rounds,
            confidence=args.confidence,
            seed=args.seed,
            train_others=args.train_others,
            progress=progress,
        )
    body = json.dumps({"config": args.config} | found.to_dict(), indent=2, allow_nan=False)
    if args.output is not None:
        from fedspend.basics.files import write_whole

        write_whole(Path(args.output), f"{body}\n".encode())
    if args.plot is not None:
        from fedspend.auditing.plotting import audit_plot

        audit_plot(found, args.plot)
    if args.json:
        print(body)
    elif not args.quiet:
        show(found, args)
    return 0 if found.ok else 1


def check_files(args: argparse.Namespace) -> None:
    """Refuse output files that cannot be written, before minutes are spent."""
    from fedspend.cli.outputs import PLOTS, check_writable, ending

    for flag, name in (("--output", args.output), ("--plot", args.plot)):
        if name is not None:
            check_writable(flag, name)
    if args.plot is not None:
        ending(args.plot, "--plot", PLOTS)


@contextmanager
def progress_of(args: argparse.Namespace) -> Iterator[Callable[[int, int], None] | None]:
    """A bar if somebody is watching, otherwise a line every few seconds, with the time left."""
    from fedspend.cli.terminal import progress_bar

    with progress_bar("auditing", args.quiet) as bar:
        if bar is not None or args.quiet:
            yield bar
            return
        began = said = time.monotonic()

        def say(done: int, total: int) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= _EVERY:
                said = now
                left = (now - began) * (total - done) / done
                print(f"run {done}/{total}  {left:.0f} s left", file=sys.stderr, flush=True)

        yield say


def show(found: Audit, args: argparse.Namespace) -> None:
    from rich.table import Table
    from rich.text import Text

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console

    out = console()
    some = found.groups[0]
    facts = (
        f"{counted(found.runs, 'run')} of {counted(found.rounds, 'round')}, "
        f"{counted(found.canaries, 'canary').replace('canarys', 'canaries')} each, "
        f"{found.seconds:.0f} s"
    )
    out.print(Text.assemble(("audit       ", "bold"), f"{found.method}, {found.noise} noise"))
    out.print(Text.assemble(("runs        ", "bold"), facts))
    out.print(
        Text.assemble(
            ("promise     ", "bold"),
            f"one {found.unit}, {found.adjacency}, against {found.observer}; delta {some.delta:g}",
        )
    )
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("group")
    for heading in ("claimed", "measured\nat least", "", "coins", "guesses", "right"):
        table.add_column(heading, justify="right")
    for heading in ("clip\nof plan", "taking part\nof plan"):
        table.add_column(heading, justify="right")
    for group in found.groups:
        table.add_row(
            group.group,
            f"{group.claimed:.4g}",
            f"{group.measured:.3f}",
            Text("ok" if group.ok else "BROKEN", style="" if group.ok else "bold red"),
            f"{group.coins:,}",
            f"{group.guesses:,}",
            f"{group.right:,}",
            shown(group.clip),
            shown(group.sampled),
        )
    out.print(table)
    out.print()
    ratios = [meter.ratio for meter in found.noise_by_round if meter.ratio is not None]
    if ratios:
        out.print(
            f"Noise, of plan: {min(ratios):.3f} to {max(ratios):.3f} by round, "
            f"{shown(found.noise_over_rounds)} over all rounds."
        )
    verdict = (
        f"No claim is contradicted at {some.confidence:.0%} confidence. That does not prove that "
        "they hold; the verifier does."
        if found.ok
        else f"BROKEN: at {some.confidence:.0%} confidence epsilon is larger than claimed."
    )
    out.print(Text(verdict, style="" if found.ok else "bold red"))
    for name in (args.output, args.plot):
        if name is not None:
            out.print(Text(f"Written: {name}"))


def shown(meter: Meter) -> str:
    """
    >>> from fedspend.auditing.meters import Meter
    >>> shown(Meter(1.0021, 0.004)), shown(Meter(0.5)), shown(Meter(None))
    ('1.002 ± 0.008', '0.500', '')
    """
    if meter.ratio is None:
        return ""
    return f"{meter.ratio:.3f}" + ("" if not meter.error else f" ± {2 * meter.error:.3f}")
