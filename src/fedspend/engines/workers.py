"""Processes that train blocks of clients and hand back their contributions through shared memory.

Guarantee: replies arrive in the order of the tasks, whichever worker was faster; a worker that dies
or raises ends the round with an error that says so, never with a hang; after an error, an interrupt
or `close`, no worker is left running. Raw updates stay in the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing as plain
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import multiprocessing

from fedspend.basics.arrays import FloatArray
from fedspend.client.contribution import Reply
from fedspend.client.task import ClientTask
from fedspend.errors import FedspendError

Train = Callable[[ClientTask], Reply]

_PATIENCE = 5.0  # seconds that an idle worker has to exit by itself


class WorkerFailed(FedspendError):
    """A worker process died or raised; the round was not completed."""


@dataclass(frozen=True)
class _Job:
    block: int
    slot: int  # the shared buffer for the vectors
    tasks: Sequence[ClientTask]  # without the parameters, which are shared


@dataclass(frozen=True)
class _Done:
    block: int
    slot: int
    replies: list[Reply]  # without their vectors
    error: str = ""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection[Any, Any]


class Workers:
    """`count` processes, started on first use and kept until `close`."""

    def __init__(self, train: Train, parameters: int, count: int) -> None:
        """`parameters` is the number of model parameters."""
        self._train, self._count = train, count
        # Forked workers inherit the data at no cost. Forking is not safe with a GPU in use, or on
        # systems other than Linux.
        self._forks = sys.platform == "linux" and torch.cuda.device_count() == 0
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._parameters = _shared(parameters, torch.float32, self._forks)
        self._slots: list[torch.Tensor] = []
        self._workers: list[_Worker] = []

    def map(self, tasks: Sequence[ClientTask], block: int) -> Iterator[Reply]:
        """Replies in the order of the tasks; a worker gets `block` tasks at a time.

        A reply's vector is valid until the next reply.
        """
        first = tasks[0].shared
        self._prepare(block * first.size)
        self._parameters.copy_(torch.from_numpy(first.parameters))
        bare = replace(first, parameters=np.zeros(0, dtype=np.float32))
        blocks = [tasks[start : start + block] for start in range(0, len(tasks), block)]
        jobs = [
            _Job(number, 0, [replace(task, shared=bare) for task in some])
            for number, some in enumerate(blocks)
        ]
        waiting, free, idle = jobs[::-1], list(range(len(self._slots))), list(self._workers)
        done: dict[int, _Done] = {}
        finished = False
        try:
            for number in range(len(blocks)):
                while number not in done:
                    while waiting and idle and free:
                        _send(idle.pop(), replace(waiting.pop(), slot=free.pop()))
                    for worker in self._ready(idle):
                        result = _receive(worker)
                        done[result.block] = result
                        idle.append(worker)
                result = done.pop(number)
                vectors = self._slots[result.slot].numpy()
                for place, reply in enumerate(result.replies):
                    vector = vectors[place * first.size : (place + 1) * first.size]
                    yield replace(reply, contribution=replace(reply.contribution, vector=vector))
                free.append(result.slot)
            finished = True
        finally:
            if not finished:  # a worker may still be busy with a block that nobody waits for
                self._stop(force=True)

    def _prepare(self, numbers: int) -> None:
        """Makes sure that workers run, with buffers for this many numbers per block."""
        if self._workers and self._slots[0].numel() < numbers:
            self._stop(force=False)
        if not self._workers:
            # twice as many buffers as workers, so that a slow block does not stop the others
            self._slots = [
                _shared(numbers, torch.float64, self._forks) for _ in range(2 * self._count)
            ]
            self._start()

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
                with contextlib.suppress(OSError):  # the worker is already gone
                    worker.pipe.send(None)
        for worker in workers:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _send(worker: _Worker, job: _Job) -> None:
    try:
        worker.pipe.send(job)
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
    how = (
        f"killed by signal {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return WorkerFailed(
        f"a training worker died ({how}); out of memory is the usual cause: try fewer workers or a "
        "smaller batch"
    )


def _shared(size: int, kind: torch.dtype, forks: bool) -> torch.Tensor:
    """Zeros shared by parent and workers.

    Uses anonymous memory if workers can inherit it, because /dev/shm is tiny in many containers.
    """
    if forks:
        return torch.frombuffer(mmap.mmap(-1, max(1, size * kind.itemsize)), dtype=kind)
    shared: torch.Tensor = torch.zeros(size, dtype=kind).share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _serve(
    pipe: Connection[Any, Any],
    train: Train,
    parameters: torch.Tensor,
    slots: list[torch.Tensor],
    parent: int,
) -> None:
    """The loop of a worker: trains blocks until it is told to stop or the parent is gone."""
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        # Forked siblings hold copies of the pipe's other end, so a killed parent does not close it.
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                return
        try:
            job: _Job | None = pipe.recv()
        except (EOFError, OSError):
            return
        if job is None:
            return
        try:
            result = _Done(
                job.block, job.slot, _replies(job, train, parameters, slots[job.slot].numpy())
            )
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            said = (
                f"{type(problem).__name__}: {problem} "
                f"({os.path.basename(where.filename)}:{where.lineno})"
            )
            result = _Done(job.block, job.slot, [], error=said)
        try:
            pipe.send(result)
        except OSError:
            return


def _replies(job: _Job, train: Train, parameters: torch.Tensor, vectors: FloatArray) -> list[Reply]:
    """The block's replies; their vectors are written to `vectors`."""
    replies = []
    shared = replace(job.tasks[0].shared, parameters=parameters.numpy())
    for place, task in enumerate(job.tasks):
        reply = train(replace(task, shared=shared))
        vectors[place * shared.size : (place + 1) * shared.size] = reply.contribution.vector
        replies.append(replace(reply, contribution=replace(reply.contribution, vector=np.zeros(0))))
    return replies
