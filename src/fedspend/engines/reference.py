"""The plain engine: one client after the other, torch's own optimiser, nothing clever. The others are held to it."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedspend.arrays import IntArray
from fedspend.engines.base import Reduce, Reduced, Workload
from fedspend.engines.batches import step_batches
from fedspend.models.checking import check_module


class ReferenceEngine:
    name = "reference"

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        self._work = work
        self._module = copy.deepcopy(work.module).train()

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        reduced = Reduced.nothing(parameters.numel())
        with torch.random.fork_rng(devices=[]):
            for client in cohort:
                update = self._update(parameters, int(client), round, lr)
                reduced = reduced.plus(reduce(update[None], np.array([client])))
        return reduced

    def _update(self, parameters: torch.Tensor, client: int, round: int, lr: float) -> torch.Tensor:
        work, shard = self._work, self._work.shards[client]
        generator = work.randomness.generator("batches", round, client)
        batches = step_batches(generator, len(shard), work.training)
        torch.manual_seed(int(generator.integers(2**63)))  # for dropout and the like
        vector_to_parameters(parameters.clone(), self._module.parameters())
        optimizer = torch.optim.SGD(self._module.parameters(), lr=lr, momentum=work.training.momentum)
        for positions in batches:
            rows = torch.from_numpy(shard[positions])
            optimizer.zero_grad()
            loss = functional.cross_entropy(self._module(work.features[rows]), work.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return parameters_to_vector(self._module.parameters()).detach() - parameters

    def close(self) -> None:
        pass
