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
from fedspend.engines.flat import layer_sizes
from fedspend.engines.shaping import kept
from fedspend.models.checking import check_module


class ReferenceEngine:
    name = "reference"

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        self._work = work
        self._module = copy.deepcopy(work.module).train()

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        reduced = Reduced.nothing(self._work.sum_size)
        with torch.random.fork_rng(devices=[]):
            for client in cohort:
                update = self._update(parameters, int(client), round, lr, float(reduce.clip_norms[client]))
                reduced = reduced.plus(self._work.reduced(parameters, update[None], np.array([client]), round, reduce))
        return reduced

    def _update(self, parameters: torch.Tensor, client: int, round: int, lr: float, radius: float) -> torch.Tensor:
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
            gradient = self._gradient()
            if work.training.shape.blur > 0:
                self._blur(parameters, radius)
            optimizer.step()
        update = parameters_to_vector(self._module.parameters()).detach() - parameters
        return self._sparse(update, gradient) if work.training.shape.lus > 0 and batches else update

    def _blur(self, start: torch.Tensor, radius: float) -> None:
        """BLUR: outside the ball the gradient gains `blur * (w - w_t)`."""
        pieces = torch.split(start, [parameter.numel() for parameter in self._module.parameters()])
        moved = [p.detach() - piece.view_as(p) for p, piece in zip(self._module.parameters(), pieces, strict=True)]
        if sum(float(part.square().sum()) for part in moved) ** 0.5 > radius:
            for parameter, part in zip(self._module.parameters(), moved, strict=True):
                if parameter.grad is not None:
                    parameter.grad += self._work.training.shape.blur * part

    def _gradient(self) -> torch.Tensor:
        """Of the loss alone, flat; zero where the loss does not depend on a parameter."""
        parts = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._module.parameters())
        return torch.cat([part.reshape(-1) for part in parts])

    def _sparse(self, update: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """LUS: each layer keeps the values whose `|gradient * update|` is largest; of equal ones the first."""
        mask = torch.zeros_like(update)
        start = 0
        for size in layer_sizes(self._module):
            importance = (update * gradient).abs()[start : start + size]
            first = torch.argsort(importance, descending=True, stable=True)[: kept(size, self._work.training.shape.lus)]
            mask[start + first] = 1
            start += size
        return update * mask  # what is not finite stays so: the mechanism discards it

    def close(self) -> None:
        pass
