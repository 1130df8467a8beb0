"""How far the trainings of a search or a comparison are, and how to go on after Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedspend.basics.progress import OnProgress
from fedspend.runs.stopping import Stopped


@contextmanager
def trainings_in(folder: Path, quiet: bool) -> Iterator[OnProgress | None]:
    """Shows how far the trainings are that `folder` keeps."""
    try:
        with _watching(quiet) as progress:
            yield progress
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped; finished trainings are kept in {folder}; run the same command to continue"
        ) from None


@contextmanager
def _watching(quiet: bool) -> Iterator[OnProgress | None]:
    """A bar with the time left, or one line per training if nobody is watching."""
    if quiet or sys.stderr.isatty():
        from fedspend.cli.terminal import progress_bar

        with progress_bar("training", quiet) as bar:
            yield bar
        return
    start, first = time.monotonic(), -1

    def line(done: int, total: int) -> None:
        nonlocal first
        first = done if first < 0 else first
        left = (
            (time.monotonic() - start) / (done - first) * (total - done) if done > first else None
        )
        words = (
            ""
            if left is None or done == total
            else f", about {left / 60:.0f} min left"
            if left >= 90
            else f", about {left:.0f} s left"
        )
        print(f"{done} of {total} trainings{words}", file=sys.stderr, flush=True)

    yield line
