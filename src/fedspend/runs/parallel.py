"""Seeded simulations side by side: one process for each, one thread in each.

Guarantee: runs share nothing, so how many run at a time, and in which order they end, changes no
result. With one worker they run in this process, which knows a user's own entries. Workers end with
the process that started them, however it ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from typing import Any

from fedspend.basics.progress import OnProgress
from fedspend.basics.registry import any_own
from fedspend.engines.local import cores
from fedspend.errors import Refused, whole_number


def in_parallel(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    on_done: Callable[[int, Any], None],
    *,
    workers: int | None = None,
    progress: OnProgress | None = None,
    before: int = 0,
) -> None:
    """Call `function` with every job, and `on_done` with its number and result, as they end.

    `workers` None: one for each core, or one where users have entries of their own, which other
    processes would not know. `before` is how many were done already.
    """
    if workers is not None:
        workers = whole_number("workers", workers, 1)
    count = min(workers or (1 if any_own() else cores()), max(len(jobs), 1))
    total = before + len(jobs)
    if progress is not None:
        progress(before, total)

    def done(number: int, result: Any) -> None:
        nonlocal before
        before += 1
        on_done(number, result)
        if progress is not None:
            progress(before, total)

    if count == 1:
        from fedspend.basics.threads import single_threaded

        for number, job in enumerate(jobs):
            with single_threaded():
                result = function(*job)
            done(number, result)
        return
    try:
        with ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=_prepare
        ) as pool:
            try:
                waiting = {pool.submit(function, *job): n for n, job in enumerate(jobs)}
                for future in as_completed(waiting):
                    done(waiting[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # what has not begun does not begin
                raise
    except BrokenExecutor:
        raise Refused(
            "a worker process ended before its run did: there may be too little memory, so try "
            "fewer --workers; a Python script also has to call this under "
            'if __name__ == "__main__":'
        ) from None


def _prepare() -> None:
    """One thread for the work, and one that ends this process when its parent is gone."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, which would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
