"""Seeded simulations side by side: one process for each, one thread in each.

Guarantee: runs share nothing, so how many run at a time, and in which order they end, changes no
result. With one worker they run in this process, which knows a user's own entries. Workers end at
once on Ctrl-C or a failure, and with the process that started them, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from dataclasses import replace
from typing import Any

from fedspend.basics.progress import OnProgress
from fedspend.basics.registry import any_own
from fedspend.basics.workers import workers as started_workers
from fedspend.configuration.config import Config
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
        with started_workers(count, _prepare) as submit:
            waiting = {submit(function, *job): n for n, job in enumerate(jobs)}
            for future in as_completed(waiting):
                done(waiting[future], future.result())
    except BrokenExecutor:
        raise Refused(
            "a worker process ended before its run did: there may be too little memory, so try "
            "fewer --workers; a Python script also has to call this under "
            'if __name__ == "__main__":'
        ) from None


def one_run(config: Config, seed: int) -> Config:
    """The config of one of many runs: its seed, and no workers of its own."""
    values = {section: dict(config.values.get(section, {})) for section in ("train", "engine")}
    values["train"]["seed"], values["engine"]["workers"] = seed, 1
    return replace(config, values={**config.values, **values})


def _prepare() -> None:
    """One thread for the work."""
    import torch

    torch.set_num_threads(1)
