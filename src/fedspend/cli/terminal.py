"""The terminal: a console for tables, and a progress bar if somebody is watching."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fedspend.basics.progress import OnProgress

WIDE = 200  # columns, if there is no window to set a limit


class Pipe(Console):
    """A console that lets `main` handle a broken pipe."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console for tables, on stdout; in a file or a pipe, tables are as wide as they need."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Pipe(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


@contextmanager
def working(title: str, quiet: bool) -> Iterator[None]:
    """Shows on stderr that something goes on of which nobody knows how long it takes, while
    somebody is watching.
    """
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(title):
        yield


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[OnProgress | None]:
    """A callback `(done, total)` that moves a bar on stderr, or None when nobody is watching."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield progress
