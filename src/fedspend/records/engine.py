"""Runs the clients of a record-level plan: DP-SGD at every client, with a rate of its own for every record.

Guarantee: each local step is a Poisson sample at the planned rates, a sum of gradients clipped to the plan's clip, Gaussian noise
of `noise_multiplier * clip` and a division by the planned batch. All that a client does afterwards is made of such steps. Steps in
which none of a client's records can be sampled are left out: that is planned, so it needs no noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from fedspend.arrays import FloatArray, IntArray
from fedspend.engines.base import Reduce, Reduced
from fedspend.engines.clientwise import single_threaded
from fedspend.errors import InvalidInput
from fedspend.mechanism import release_step
from fedspend.randomness import Randomness
from fedspend.records.gradients import clipped_sum
from fedspend.records.planning import RecordPlan
from fedspend.sampling import draw_records


class LocalModel:
    """A client's parameters on their way: plain descent, or with momentum, along noised gradients."""

    def __init__(self, start: torch.Tensor, lr: float, momentum: float) -> None:
        self.parameters, self._velocity = start.clone(), torch.zeros_like(start)
        self._lr, self._momentum = lr, momentum

    def descend(self, gradient: FloatArray) -> None:
        direction = torch.from_numpy(gradient).float()
        if self._momentum:
            direction = self._velocity.mul_(self._momentum).add_(direction)
        self.parameters.sub_(direction, alpha=self._lr)


def check_same_records(planned: Sequence[IntArray], shards: Sequence[IntArray]) -> None:
    if [len(mine) for mine in planned] != [len(shard) for shard in shards]:
        raise InvalidInput("the plan and the data do not have the same records at every client; make them agree")


class RecordEngine:
    """`shards[n]` are the rows of `features` and `labels` that belong to client n, in the order of its records in the plan."""

    name = "records"

    def __init__(
        self,
        module: nn.Module,
        features: torch.Tensor,
        labels: torch.Tensor,
        shards: Sequence[IntArray],
        plan: RecordPlan,
        randomness: Randomness,
        momentum: float = 0.0,
    ) -> None:
        self._features, self._labels, self._shards = features, labels, shards
        self._plan, self._randomness, self._momentum = plan, randomness, momentum
        self._sum = clipped_sum(module, plan.clip)
        classes = plan.schedules.of_client
        self._classes = [classes[plan.owner == client] for client in range(len(plan.clients))]
        check_same_records(self._classes, shards)

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        reduced = Reduced.nothing(parameters.numel())
        batch = self._plan.expected_batch(round)
        with single_threaded():
            for client in cohort:
                update = self._update(parameters, int(client), round, lr, batch[:, client])
                reduced = reduced.plus(reduce(update[None], np.array([client])))
        return reduced

    def _update(self, start: torch.Tensor, client: int, round: int, lr: float, batch: FloatArray) -> torch.Tensor:
        plan, shard = self._plan, self._shards[client]
        rate, steps = (table[round][self._classes[client]] for table in (plan.schedules.sampling_rate, plan.steps))
        deviation = plan.terms.noise_multiplier * plan.clip
        local = LocalModel(start, lr, self._momentum)
        for number in range(int(np.count_nonzero(batch))):  # records leave during a round and do not come back in it
            step = round * plan.terms.local_steps + number
            now = np.where(steps > number, rate, 0.0)
            rows = torch.from_numpy(shard[draw_records(now, self._randomness, step, client)])
            total = self._sum(local.parameters, self._features.index_select(0, rows), self._labels.index_select(0, rows))
            local.descend(release_step(total, deviation, float(batch[number]), self._randomness, step, client))
        return local.parameters - start

    def close(self) -> None:
        pass
