"""The numbers that a client reports beside its vector: a bit about its clip, and a private metric.

Guarantee: before noise, each lies in [-1/2, 1/2] and is exactly 0 for a client without rows of its
own to report on, so zeroing a client moves a sum by at most 1/2. What rounds it to the grid need
not be secret: the bound holds however the coins fall. Under distributed noise each number gets its
own share of discrete noise before it leaves; a client with nothing to report sends the share alone.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn

from fedspend.client.bounding import Bounded
from fedspend.client.contribution import worded
from fedspend.client.rows import Rows
from fedspend.client.task import ClientTask
from fedspend.models.evaluation import scores
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.tasks.metrics import right_answers
from fedspend.tasks.task import ACCURACY, CLASSIFY, Task


def clip_bit(task: ClientTask, own: Bounded, rows: int, randomness: Randomness) -> float | None:
    """1/2 if the update was within the clip, -1/2 if not, 0 without rows; with its own noise."""
    shared = task.shared
    if not shared.bit:
        return None
    bit = 0.0 if rows == 0 else 0.5 if own.finite and not own.clipped else -0.5
    grid = shared.bit_grid
    if grid is None:
        return bit
    words = randomness.words("client-bit-noise", shared.round, task.number)
    return bit + grid.own_noise(words) / grid.steps


def metric(
    task: ClientTask,
    held_out: Rows | None,
    module: nn.Module,
    randomness: Randomness,
    goal: Task = CLASSIFY,
    *,
    present: bool = True,
) -> tuple[float | None, str]:
    """How well the round's first model does on the client's held-out rows, from 0 to 1, minus 1/2,
    on the grid: the share that it gets right, or another metric between public bounds. 0 without
    such rows, and if the client is not `present` in this round; with the client's noise.
    And what measuring it raised, if it did: then it is 0, too.
    """
    shared, grid = task.shared, task.shared.metric
    if grid is None:
        return None, ""
    steps, problem = 0, ""
    if held_out is not None:
        try:
            steps = measured(task, held_out, module, grid, randomness, goal)
        except Exception as error:
            problem = worded(error)
    steps = steps if present else 0  # measured all the same, so that it takes as long
    words = randomness.words("client-metric-noise", shared.round, task.number)
    return (steps + grid.own_noise(words)) / grid.steps, problem


def measured(
    task: ClientTask,
    held_out: Rows,
    module: nn.Module,
    grid: NumberGrid,
    randomness: Randomness,
    goal: Task = CLASSIFY,
) -> int:
    """The metric in whole steps of its grid, before noise."""
    count = len(held_out)
    if count == 0:
        return 0
    features, labels = held_out.take(np.arange(count))
    # a copy, so that nothing of another client is left in it
    scored = scores(copy.deepcopy(module), torch.from_numpy(task.shared.parameters), features)
    part, whole = _share(scored, labels, goal)
    if whole == 0:
        return 0
    coin = float(randomness.generator("metric-rounding", task.shared.round, task.number).random())
    return grid.rounded(2 * part - whole, 2 * whole, coin)


def _share(scored: torch.Tensor, labels: torch.Tensor, goal: Task) -> tuple[int, int]:
    """A number from 0 to 1 as an exact fraction; of nothing if the metric is not defined."""
    if goal.metric == ACCURACY and goal.bounds is None:
        return right_answers(scored, labels, goal.targets)
    value = goal.measured(scored, labels)[goal.metric]
    return (0, 0) if math.isnan(value) else goal.unit(value).as_integer_ratio()
