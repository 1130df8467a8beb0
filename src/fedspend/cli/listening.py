"""What is said about a run while it goes on, to a reader who may go away.

Guarantee: whether somebody reads the progress of a run changes nothing about the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def to_whoever_listens() -> Iterator[None]:
    """For what is said about a run: rounds are charged, so a reader who goes away (`| head`) does
    not end it. Nothing more is said to them, also not by the interpreter's last flush.
    """
    try:
        yield
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())
