"""The plain engine: one client after the other, torch's own optimiser, nothing clever. The others are held to it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedspend.arrays import IntArray
from fedspend.engines.base import LocalTraining, Reduce, Reduced
from fedspend.engines.batches import step_batches
from fedspend.models.checking import check_module
from fedspend.randomness import Randomness


class ReferenceEngine:
    """`shards[n]` are the rows of `features` and `labels` that belong to client n."""

    name = "reference"

    def __init__(
        self,
        module: nn.Module,
        features: torch.Tensor,
        labels: torch.Tensor,
        shards: Sequence[IntArray],
        training: LocalTraining,
        randomness: Randomness,
    ) -> None:
        check_module(module)
        self._module = copy.deepcopy(module).train()
        self._features, self._labels, self._shards = features, labels, shards
        self._training, self._randomness = training, randomness

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        reduced = Reduced.nothing(parameters.numel())
        with torch.random.fork_rng(devices=[]):
            for client in cohort:
                update = self._update(parameters, int(client), round, lr)
                reduced = reduced.plus(reduce(update[None], np.array([client])))
        return reduced

    def _update(self, parameters: torch.Tensor, client: int, round: int, lr: float) -> torch.Tensor:
        shard = self._shards[client]
        generator = self._randomness.generator("batches", round, client)
        batches = step_batches(generator, len(shard), self._training)
        torch.manual_seed(int(generator.integers(2**63)))  # for dropout and the like
        vector_to_parameters(parameters.clone(), self._module.parameters())
        optimizer = torch.optim.SGD(self._module.parameters(), lr=lr, momentum=self._training.momentum)
        for positions in batches:
            rows = torch.from_numpy(shard[positions])
            optimizer.zero_grad()
            loss = functional.cross_entropy(self._module(self._features[rows]), self._labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return parameters_to_vector(self._module.parameters()).detach() - parameters

    def close(self) -> None:
        pass
