"""What Ctrl-C and SIGTERM say of a command that makes many runs: what is kept, and how to go on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from fedspend.basics.progress import OnProgress
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
    again = shlex.join(["fedspend", *map(without_passwords, args.typed)])
    return f"stopped; {finished} of {total} runs are kept in {args.output}; go on with: {again}"


def without_passwords(argument: str) -> str:
    """An argument as it may be shown: addresses may hold passwords, in ways that only the driver of
    a database knows.

    >>> without_passwords("--ledger=postgresql://ann:secret@host/db"), without_passwords("a.toml")
    ('--ledger=postgresql://...', 'a.toml')
    >>> without_passwords("host=db.example password=secret")
    '...'
    """
    if "password" in argument.lower():
        return "..."
    scheme, address, _ = argument.partition("://")
    return f"{scheme}://..." if address else argument
