"""PLD readings of many schedules, on two worker processes.

Guarantee: the answers are those of `pld_epsilon`, in the order of the schedules. A worker that dies
costs time, not an answer. A worker is a plain Python process that imports this module and runs
`serve`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from fedspend.verification.second_accountant.pld import pld_epsilon

# rates, noise multipliers and counts of a schedule's runs
Runs = tuple[Sequence[float], Sequence[float], Sequence[int]]
WORKERS = 2


def pld_epsilons(
    schedules: Sequence[Runs],
    delta: float,
    progress: Callable[[int, int], None],
    *,
    coarse: bool = False,
) -> list[float]:
    """`pld_epsilon` of every schedule, on worker processes if there are enough schedules."""
    if len(schedules) < 16 or (os.cpu_count() or 1) < 2:
        found = []
        for runs in schedules:
            found.append(pld_epsilon(*runs, delta, coarse=coarse))
            progress(len(found), len(schedules))
        return found
    idle: queue.Queue[subprocess.Popen[str]] = queue.Queue()
    # Plain child processes, not multiprocessing: that would import the caller's main script a
    # second time.
    command = [
        sys.executable,
        "-c",
        "from fedspend.verification.second_accountant.workers import serve; serve()",
    ]
    for _ in range(WORKERS):
        idle.put(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )

    def ask(runs: Runs) -> float:
        worker = idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps([*runs, delta, coarse]) + "\n")
            worker.stdin.flush()
            return float(worker.stdout.readline())
        except (OSError, ValueError):  # the worker died: slower, but the answer is the same
            return pld_epsilon(*runs, delta, coarse=coarse)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            asked = [pool.submit(ask, runs) for runs in schedules]
            try:
                for done, _ in enumerate(as_completed(asked), start=1):
                    progress(done, len(schedules))
            except BaseException:  # Ctrl-C: answers not yet begun are no longer needed
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [one.result() for one in asked]
    finally:
        while not idle.empty():
            worker = idle.get()
            worker.kill()
            worker.wait()


def serve() -> None:
    """The worker process: reads one JSON list of arguments per line, prints its `pld_epsilon`."""
    for line in sys.stdin:
        *schedule, coarse = json.loads(line)
        print(json.dumps(pld_epsilon(*schedule, coarse=coarse)), flush=True)
