"""Any module, one client after the other on a flat vector, optionally spread over worker processes.

Guarantee: the number of workers changes nothing but the time. Clients are trained in blocks of consecutive clients whose length
depends on the model alone, each on one thread; a block is reduced where it was trained; sums are added in block order in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedspend.arrays import IntArray
from fedspend.engines.base import Reduce, Reduced, Workload
from fedspend.engines.batches import step_batches
from fedspend.engines.flat import FlatModule, as_batch, layer_sizes, parameter_count
from fedspend.engines.shaping import sparsify
from fedspend.engines.workers import Workers
from fedspend.models.checking import check_module

# Raw updates that wait for one call of `reduce`: this many numbers, and at most so many clients. Part of the result's last bits.
_BLOCK_NUMBERS = 2**22
_BLOCK_CLIENTS = 8


class ClientTrainer:
    """Trains a block of clients in this process."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._flat: FlatModule | None = None  # made where it is used, so that workers get the plain module
        self._updates = torch.empty(0, 0)

    def __call__(self, parameters: torch.Tensor, clients: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        """The reduced updates of these clients. Seeds torch's global generator: call it inside `single_threaded`."""
        self._flat = self._flat or FlatModule(self._work.module, self._work.training.momentum, self._work.training.shape.blur)
        if len(self._updates) < len(clients):
            self._updates = torch.empty(len(clients), self._flat.size)
        updates = self._updates[: len(clients)]
        for client, update in zip(clients, updates, strict=True):
            self._train(self._flat, parameters, int(client), round, lr, float(reduce.clip_norms[client]), update)
        return self._work.reduced(parameters, updates, clients, round, reduce)

    def _train(
        self, flat: FlatModule, parameters: torch.Tensor, client: int, round: int, lr: float, radius: float, update: torch.Tensor
    ) -> None:
        work, shard = self._work, self._work.shards[client]
        generator = work.randomness.generator("batches", round, client)
        batches = step_batches(generator, len(shard), work.training)
        torch.manual_seed(int(generator.integers(2**63)))  # for dropout and the like
        flat.load(parameters)
        for positions in batches:
            rows = torch.from_numpy(shard[positions])
            flat.step(as_batch(work.features.index_select(0, rows)), work.labels.index_select(0, rows), lr, radius)
        flat.difference(parameters, out=update)
        if work.training.shape.lus > 0 and batches:
            gradient = torch.empty(flat.size)
            flat.gradient(out=gradient)
            sparsify(update[None], gradient[None], layer_sizes(work.module), work.training.shape.lus)


@contextmanager
def single_threaded() -> Iterator[None]:
    """One torch thread, since threads change the order of sums; torch's global generator is put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


class ClientwiseEngine:
    """One worker or none: runs in this process."""

    name = "clientwise"

    def __init__(self, work: Workload, workers: int = 1) -> None:
        check_module(work.module)
        size, self._sum_size = parameter_count(work.module), work.sum_size
        self._block = max(1, min(_BLOCK_CLIENTS, _BLOCK_NUMBERS // size))
        self._trainer = ClientTrainer(work)
        self._workers = Workers(self._trainer, size, self._sum_size, workers) if workers > 1 else None

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        blocks = [cohort[start : start + self._block] for start in range(0, len(cohort), self._block)]
        total = np.zeros(self._sum_size)
        norms = np.zeros(len(cohort))
        clipped, discarded = np.zeros(len(cohort), dtype=bool), np.zeros(len(cohort), dtype=bool)
        for number, reduced in enumerate(self._reduced(parameters, blocks, round, lr, reduce)):
            total += reduced.total
            members = slice(number * self._block, number * self._block + len(blocks[number]))
            norms[members], clipped[members], discarded[members] = reduced.norms, reduced.clipped, reduced.discarded
        return Reduced(total, norms, clipped, discarded)

    def _reduced(
        self, parameters: torch.Tensor, blocks: list[IntArray], round: int, lr: float, reduce: Reduce
    ) -> Iterator[Reduced]:
        if self._workers is not None:
            yield from self._workers.map(parameters, blocks, round, lr, reduce)
            return
        with single_threaded():
            for clients in blocks:
                yield self._trainer(parameters, clients, round, lr, reduce)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
