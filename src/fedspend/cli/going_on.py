"""What Ctrl-C and SIGTERM say of a command that makes many runs: what is kept, and how to go on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from fedspend.basics.progress import OnProgress
from fedspend.cli.log_file import without_passwords
from fedspend.runs.stopping import Stopped


@contextmanager
def saying_how_to_go_on(args: argparse.Namespace, bar: OnProgress | None) -> Iterator[OnProgress]:
    """Yields a function that moves the bar and remembers how many runs are finished."""
    finished, total = 0, 0

    def progress(done: int, of: int) -> None:
        nonlocal finished, total
        finished, total = done, of
        if bar is not None:
            bar(done, of)

    try:
        yield progress
    except KeyboardInterrupt:
        raise Stopped(_said(args, finished, total)) from None


def _said(args: argparse.Namespace, finished: int, total: int) -> str:
    if total == 0:
        return "stopped before the first run"
    if args.output is None:
        return (
            f"stopped; the {finished} of {total} runs that were finished are lost, because no "
            "folder was named; with -o DIR they are kept, and the same command goes on"
        )
    # the line may be logged, and no password is
    again = shlex.join(["fedspend", *map(without_passwords, args.typed)])
    return f"stopped; {finished} of {total} runs are kept in {args.output}; go on with: {again}"
