"""A client's part of a record-level plan: DP-SGD in which every record has its own rate.

Guarantee: each local step is a Poisson sample at the task's rates, a sum of gradients clipped to
the task's clip, Gaussian noise of `noise_multiplier * clip` and a division by the planned batch. In
a real run that noise is drawn in whole numbers of a public step, so that no digit of a result
depends on how floating-point numbers round.
All that a client does afterwards is made of such steps. Steps in which none of a client's records
can be sampled are left out: that is planned, so it needs no noise. A listed record without a row is
sampled like any other, and adds nothing to the sum.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.client.gradients import GeneralSum, GradientSum, clipped_sum
from fedspend.client.norm_budgets import NormBudget, Payments
from fedspend.client.rows import Rows
from fedspend.client.state import States
from fedspend.client.task import ClientTask, RecordTerms
from fedspend.errors import InvalidInput
from fedspend.models.optimisers import Descent
from fedspend.noise.grid import noised_exactly
from fedspend.noise.randomness import Randomness
from fedspend.tasks.task import CLASSIFY, Task


class LocalModel:
    """A client's parameters, which descend along noised gradients; whatever the optimiser makes of
    them is post-processing.
    """

    def __init__(self, start: torch.Tensor, lr: float, descent: Descent) -> None:
        self.parameters, self._velocity = start.clone(), torch.zeros_like(start)
        self._lr, self._momentum, self._start = lr, descent.momentum, start
        # a bound on the mean gradient would cut the noise, too: records have bounds of their own
        self._descent = replace(descent, gradient_clip=None)
        self._leaf = nn.Parameter(self.parameters)
        self._optimizer = None if descent.plain else self._descent.made([self._leaf], lr)

    def descend(self, gradient: FloatArray) -> None:
        direction = torch.from_numpy(gradient).float()
        if self._optimizer is not None:
            self._leaf.grad = direction
            self._descent.adjust([self._leaf], [self._start])
            self._optimizer.step()
            return
        if self._momentum:
            direction = self._velocity.mul_(self._momentum).add_(direction)
        self.parameters.sub_(direction, alpha=self._lr)


def record_update(
    task: ClientTask,
    rows: Rows,
    module: nn.Module,
    randomness: Randomness,
    states: States,
    goal: Task = CLASSIFY,
) -> tuple[torch.Tensor, IntArray | None, str]:
    """The client's update, how many records took part in each step if that is not planned, and what
    single records raised: they count as zero.
    """
    terms = task.records
    assert terms is not None
    if terms.rate.size != len(rows):
        raise InvalidInput(
            f"the plan has {terms.rate.size} records for client {task.client!r}, but its data has "
            f"{len(rows)}; make them agree"
        )
    start = torch.from_numpy(task.shared.parameters)
    local = LocalModel(start, task.shared.lr, task.shared.training.descent)
    if terms.by_norm:
        active, problem = _steps_by_norm(task, terms, rows, module, randomness, states, local, goal)
        return local.parameters - start, active, problem
    problem = _sampled_steps(task, terms, rows, module, randomness, local, goal)
    return local.parameters - start, None, problem


def draw_records(rate: FloatArray, randomness: Randomness, step: int, client: int) -> IntArray:
    """Which of a client's records enter a step; steps are numbered across all rounds. May be empty:
    that is a normal step.
    """
    chance = randomness.uniform(rate.size, "record-sample", step, client)
    return np.flatnonzero(chance < rate)


def release_step(
    total: FloatArray,
    deviation: float,
    denominator: float,
    randomness: Randomness,
    step: int,
    client: int,
) -> FloatArray:
    """The noised mean gradient of one client's local step: its noised sum of clipped gradients,
    divided by the planned batch.

    Steps are numbered across all rounds, so that no two share noise. In a real run the noised sum
    is a multiple of a public step, however small the sum was: see `noised_exactly`.
    """
    if deviation > 0:
        if randomness.simulation:
            total = total + deviation * randomness.normal(total.size, "record-noise", step, client)
        else:
            total = noised_exactly(total, deviation, randomness.words("record-noise", step, client))
    return total / denominator


def _seed_layers(
    sum_of: GradientSum, goal: Task, randomness: Randomness, step: int, client: int
) -> None:
    """What layers (dropout) or an own loss draw in a step depends on nobody's rows: not on which
    were sampled, and not on what was drawn before. It protects nobody, so it may be known.
    """
    if isinstance(sum_of, GeneralSum) or goal.own:  # nothing else draws
        drawn = randomness.generator("record-layers", step, client)
        torch.default_generator.manual_seed(int(drawn.integers(2**63)))


def _rarely_exceeded(terms: RecordTerms) -> int:
    """A number of records that few steps exceed. It must follow from the plan alone, never from
    what was drawn: it decides how gradients are rounded (`blocks`).
    """
    planned = float(terms.batch.max(initial=0.0))
    return min(math.ceil(planned + 2 * math.sqrt(planned)), terms.rate.size)


def _sampled_steps(
    task: ClientTask,
    terms: RecordTerms,
    rows: Rows,
    module: nn.Module,
    randomness: Randomness,
    local: LocalModel,
    goal: Task,
) -> str:
    sum_of = clipped_sum(module, terms.clip, task=goal, records=_rarely_exceeded(terms))
    deviation = terms.noise_multiplier * terms.clip
    # Records may leave during a round, but do not come back in it.
    for number in range(int(np.count_nonzero(terms.batch))):
        step = task.shared.round * terms.batch.size + number
        now = np.where(terms.steps > number, terms.rate, 0.0)
        drawn = draw_records(now, randomness, step, task.number)
        _seed_layers(sum_of, goal, randomness, step, task.number)
        total = sum_of(local.parameters, *rows.take(rows.there(drawn)))
        local.descend(
            release_step(
                total, deviation, float(terms.batch[number]), randomness, step, task.number
            )
        )
    return sum_of.raised


def _steps_by_norm(
    task: ClientTask,
    terms: RecordTerms,
    rows: Rows,
    module: nn.Module,
    randomness: Randomness,
    states: States,
    local: LocalModel,
    goal: Task,
) -> tuple[IntArray, str]:
    """Takes all local steps, even if no record is left, because that is private. What was paid is
    on disk before the update is returned.
    """
    budget = NormBudget(task, states, randomness.simulation)
    before = budget.before()
    left, payments = before.copy(), Payments(terms.clip)
    sum_of, deviation = (
        clipped_sum(module, terms.clip, payments, goal, records=_rarely_exceeded(terms)),
        terms.noise_multiplier * terms.clip,
    )
    active = np.zeros(terms.batch.size, dtype=np.int64)
    for number in range(terms.batch.size):
        step = task.shared.round * terms.batch.size + number
        some = rows.there(np.flatnonzero(left > 0))
        payments.begin(left[some])
        _seed_layers(sum_of, goal, randomness, step, task.number)
        total = sum_of(local.parameters, *rows.take(some))
        active[number] = payments.paid
        left[some] = payments.left
        local.descend(
            release_step(
                total, deviation, float(terms.batch[number]), randomness, step, task.number
            )
        )
    budget.keep(before, left)
    return active, sum_of.raised
