"""Trains any module, one client at a time on a flat vector, optionally in worker processes.

Guarantee: the number of workers changes only the time taken: each client is trained on one thread,
and its contribution is finished in the process that trained it, so raw updates never leave a
worker. A module that could remember a client is copied again for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedspend.basics.threads import single_threaded
from fedspend.client.batches import step_batches
from fedspend.client.contribution import Reply
from fedspend.client.rows import Rows
from fedspend.client.shaping import sparsify
from fedspend.client.task import ClientTask, LocalTraining
from fedspend.client.work import Tools, failing, finished
from fedspend.engines.base import Workload
from fedspend.engines.workers import Workers
from fedspend.models.checking import check_module
from fedspend.models.flat import FlatModule, as_batch, layer_sizes, parameter_count
from fedspend.models.fresh import refuse_memory_outside, remembers_nothing

# A worker trains at most this many clients, and fills at most this many numbers, before it reports.
_BLOCK_CLIENTS = 8
_BLOCK_NUMBERS = 2**20


class ClientTrainer:
    """Trains clients in this process, each as if it were alone."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        # created on first use, so that workers get the plain module
        self._flat: tuple[LocalTraining, FlatModule] | None = None
        self._forgets = remembers_nothing(work.module)
        self._space: tuple[torch.Tensor, torch.Tensor] | None = None  # likewise

    def __call__(self, task: ClientTask) -> Reply:
        with single_threaded():
            rows, tools = self._work.rows(task.client), self._work.tools
            try:
                update = self._trained(task, rows, tools)
            except Exception as error:
                self._flat = None  # it may have stopped half-way
                return failing(task, error, len(rows), tools)
            if task.shared.asked is None:
                update = self._spaces()[1].copy_(update)
            return finished(task, update, len(rows), tools)

    def _trained(self, task: ClientTask, rows: Rows, tools: Tools) -> torch.Tensor:
        """The same update as `client.training.trained`, but faster."""
        shared, training, flat = (
            task.shared,
            task.shared.training,
            self._module(task.shared.training),
        )
        generator = tools.randomness.generator("batches", shared.round, task.number)
        batches = step_batches(generator, len(rows), training)
        torch.default_generator.manual_seed(
            int(generator.integers(2**63))
        )  # for dropout and the like
        start, update = torch.from_numpy(shared.parameters), self._spaces()[0]
        flat.load(start)
        for positions in batches:
            features, labels = rows.take(positions)
            flat.step(as_batch(features), labels, shared.lr, task.clip_norm)
        flat.difference(start, out=update)
        if training.shape.lus > 0 and batches:
            gradient = torch.empty(flat.size)
            flat.gradient(out=gradient)
            sparsify(
                update[None], gradient[None], layer_sizes(self._work.module), training.shape.lus
            )
        return update

    def _spaces(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for an update in float32 and in float64. Allocated once: allocating it anew for
        each client takes a fiftieth of a round.
        """
        if self._space is None:
            size = parameter_count(self._work.module)
            self._space = torch.empty(size), torch.empty(size, dtype=torch.float64)
        return self._space

    def _module(self, training: LocalTraining) -> FlatModule:
        if self._flat is None or not self._forgets or self._flat[0] != training:
            self._flat = (
                training,
                FlatModule(
                    self._work.module,
                    training.momentum,
                    training.shape.blur,
                    self._work.task,
                    training.descent,
                ),
            )
        return self._flat[1]


class ClientwiseEngine:
    """With one worker or none, runs in this process."""

    name = "clientwise"
    outside = False

    def __init__(self, work: Workload, workers: int = 1) -> None:
        check_module(work.module)
        shape = tuple(work.features.shape[1:])
        refuse_memory_outside(work.module, shape, integers=work.integers)
        self._trainer = ClientTrainer(work)
        self._workers = (
            Workers(self._trainer, parameter_count(work.module), workers) if workers > 1 else None
        )

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        if self._workers is None or not tasks:
            yield from map(self._trainer, tasks)
            return
        block = max(1, min(_BLOCK_CLIENTS, _BLOCK_NUMBERS // tasks[0].shared.size))
        yield from self._workers.map(tasks, block)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
