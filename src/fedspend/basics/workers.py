"""Worker processes that end at once when what they work for is stopped.

Guarantee: on Ctrl-C, SIGTERM or a failure, workers are ended, whatever they are doing, and the
caller does not wait for their work. They hear neither signal themselves: whoever started them
decides, and a Ctrl-C, which reaches all of them, shows no traceback of theirs. They end with the
process that started them, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class Submit(Protocol):
    def __call__(self, function: Callable[..., T], *args: Any) -> Future[T]: ...


@contextmanager
def workers(count: int, prepare: Callable[[], None] | None = None) -> Iterator[Submit]:
    """Yields a function that hands work to one of `count` processes, each of which has called
    `prepare` before.
    """
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawned, initializer=_begin, initargs=(prepare,))
    ours: set[BaseProcess] = set()

    def submit(function: Callable[..., T], *args: Any) -> Future[T]:
        # a worker is started here, and inherits what is blocked
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
        others = set(multiprocessing.active_children())
        try:
            return pool.submit(function, *args)
        finally:
            ours.update(set(multiprocessing.active_children()) - others)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield submit
    except BaseException:
        for worker in ours:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _begin(prepare: Callable[[], None] | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, which would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
