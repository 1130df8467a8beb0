"""Stopping a run from outside, between two rounds.

Guarantee: Ctrl-C and SIGTERM let the current round finish and be committed; a second one stops at
once, and the round that was under way stays charged.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from fedspend.errors import FedspendError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDERR = 2
NOTICE = b"fedspend: stopping after this round; press Ctrl-C again to stop at once\n"


class Stopped(FedspendError):
    """Somebody stopped the run; everything up to here is saved."""

    exit_code = 130


@contextmanager
def stop_after_round(
    at_once: Callable[[], bool] = lambda: False,
) -> Iterator[Callable[[], bool]]:
    """Yields whether somebody has asked to stop. A second time stops at once, and so does the first
    one if `at_once` says that the round cannot be finished.

    Only the main thread hears signals; elsewhere nothing ever asks.
    """
    asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or at_once():
            raise KeyboardInterrupt
        asked = True
        # a signal may come while a line is written, and `print` cannot be entered twice
        with suppress(OSError):
            os.write(STDERR, NOTICE)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked
        return
    before = {one: signal.signal(one, ask) for one in SIGNALS}
    try:
        yield lambda: asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
