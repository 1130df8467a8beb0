"""Processes that train blocks of clients and hand back reduced sums through shared memory.

Guarantee: results arrive in the order of the blocks, whichever worker was faster; a worker that dies or raises ends the round with
an error that says so, never with a wait; after an error, an interrupt or `close` no worker is left. Raw updates stay in the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing as plain
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import multiprocessing

from fedspend.arrays import BoolArray, FloatArray, IntArray
from fedspend.engines.base import Reduce, Reduced
from fedspend.errors import FedspendError

Train = Callable[[torch.Tensor, IntArray, int, float, Reduce], Reduced]

_PATIENCE = 5.0  # seconds that an idle worker gets to leave by itself


class WorkerFailed(FedspendError):
    """A worker process died or raised; the round was not completed."""


@dataclass(frozen=True)
class _Task:
    block: int
    slot: int  # which shared buffer takes the sum
    clients: IntArray
    round: int
    lr: float
    reduce: Reduce


@dataclass(frozen=True)
class _Done:
    block: int
    slot: int
    norms: FloatArray
    clipped: BoolArray
    discarded: BoolArray
    error: str = ""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection[Any, Any]


class Workers:
    """`count` processes, started at the first use and kept until `close`."""

    def __init__(self, train: Train, size: int, sum_size: int, count: int) -> None:
        """`size` numbers are a model, `sum_size` are what a client sends."""
        self._train, self._count = train, count
        # Forked workers inherit the data for nothing. A GPU in use, or another system than Linux, does not survive a fork.
        forks = sys.platform == "linux" and torch.cuda.device_count() == 0
        self._context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self._parameters = _shared(size, torch.float32, forks)
        # twice as many buffers as workers: a slow block does not stop the others
        self._slots = [_shared(sum_size, torch.float64, forks) for _ in range(2 * count)]
        self._workers: list[_Worker] = []

    def map(self, parameters: torch.Tensor, blocks: list[IntArray], round: int, lr: float, reduce: Reduce) -> Iterator[Reduced]:
        """Reduced blocks in order. A result's `total` is valid until the next one is asked for."""
        if not self._workers:
            self._start()
        self._parameters.copy_(parameters)
        waiting = [_Task(number, 0, clients, round, lr, reduce) for number, clients in enumerate(blocks)][::-1]
        free = list(range(len(self._slots)))
        idle = list(self._workers)
        done: dict[int, _Done] = {}
        finished = False
        try:
            for number in range(len(blocks)):
                while number not in done:
                    while waiting and idle and free:
                        task = waiting.pop()
                        _send(idle.pop(), _Task(task.block, free.pop(), task.clients, task.round, task.lr, task.reduce))
                    for worker in self._ready(idle):
                        result = _receive(worker)
                        done[result.block] = result
                        idle.append(worker)
                result = done.pop(number)
                yield Reduced(self._slots[result.slot].numpy(), result.norms, result.clipped, result.discarded)
                free.append(result.slot)
            finished = True
        finally:
            if not finished:  # a worker may be in the middle of a block that nobody waits for
                self._stop(force=True)

    def close(self) -> None:
        self._stop(force=False)

    def _start(self) -> None:
        for _ in range(self._count):
            ours, theirs = plain.Pipe()
            process = self._context.Process(
                target=_serve,
                args=(theirs, self._train, self._parameters, self._slots, os.getpid()),
                name="fedspend-worker",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _ready(self, idle: list[_Worker]) -> list[_Worker]:
        """Busy workers that answered. Raises if any worker is dead."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_handle[worker.process.sentinel] = worker
            if worker not in idle:
                by_handle[worker.pipe] = worker
        ready = wait(list(by_handle))
        for handle in ready:
            if isinstance(handle, int):
                raise _death(by_handle[handle])
        return [by_handle[handle] for handle in ready]

    def _stop(self, force: bool) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            if force:
                worker.process.kill()
            else:
                with contextlib.suppress(OSError):  # it is gone already
                    worker.pipe.send(None)
        for worker in workers:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _send(worker: _Worker, task: _Task) -> None:
    try:
        worker.pipe.send(task)
    except (BrokenPipeError, ConnectionResetError):
        raise _death(worker) from None


def _receive(worker: _Worker) -> _Done:
    try:
        result: _Done = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        raise _death(worker) from None
    if result.error:
        raise WorkerFailed(f"a training worker raised an error: {result.error}")
    return result


def _death(worker: _Worker) -> WorkerFailed:
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    how = f"killed by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    return WorkerFailed(f"a training worker died ({how}); out of memory is the usual cause: try fewer workers or a smaller batch")


def _shared(size: int, kind: torch.dtype, forks: bool) -> torch.Tensor:
    """Zeros that parent and workers see alike. Anonymous memory where it can be inherited: /dev/shm is tiny in many containers."""
    if forks:
        return torch.frombuffer(mmap.mmap(-1, max(1, size * kind.itemsize)), dtype=kind)
    shared: torch.Tensor = torch.zeros(size, dtype=kind).share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _serve(pipe: Connection[Any, Any], train: Train, parameters: torch.Tensor, slots: list[torch.Tensor], parent: int) -> None:
    """A worker's life: blocks until it is told to leave or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    while True:
        # forked siblings hold copies of the pipe's other end, so a killed parent does not close it
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                return
        try:
            task: _Task | None = pipe.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        nothing: BoolArray = np.zeros(0, dtype=bool)
        try:
            reduced = train(parameters, task.clients, task.round, task.lr, task.reduce)
            slots[task.slot].copy_(torch.from_numpy(reduced.total))
            result = _Done(task.block, task.slot, reduced.norms, reduced.clipped, reduced.discarded)
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            said = f"{type(problem).__name__}: {problem} ({os.path.basename(where.filename)}:{where.lineno})"
            result = _Done(task.block, task.slot, np.zeros(0), nothing, nothing, error=said)
        try:
            pipe.send(result)
        except OSError:
            return
