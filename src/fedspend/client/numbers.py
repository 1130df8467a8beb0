"""The numbers that a client reports beside its vector: a bit about its clip, and a private metric.

Guarantee: before noise, each lies in [-1/2, 1/2] and is exactly 0 for a client without rows of its
own to report on, so zeroing a client moves a sum by at most 1/2. What rounds it to the grid need
not be secret: the bound holds however the coins fall. Under distributed noise each number gets its
own share of discrete noise before it leaves; a client with nothing to report sends the share alone.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from fedspend.client.bounding import Bounded
from fedspend.client.rows import Rows
from fedspend.client.task import ClientTask
from fedspend.models.evaluation import right_answers
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness


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
    return bit + grid.noise(grid.own_deviation**2, words) / grid.steps


def metric(
    task: ClientTask, held_out: Rows | None, module: nn.Module, randomness: Randomness
) -> float | None:
    """The share of the client's held-out rows that the round's first model gets right, minus 1/2,
    on the grid; 0 without such rows; with the client's noise.
    """
    shared, grid = task.shared, task.shared.metric
    if grid is None:
        return None
    steps = measured(task, held_out, module, grid, randomness) if held_out is not None else 0
    words = randomness.words("client-metric-noise", shared.round, task.number)
    return (steps + grid.noise(grid.own_deviation**2, words)) / grid.steps


def measured(
    task: ClientTask, held_out: Rows, module: nn.Module, grid: NumberGrid, randomness: Randomness
) -> int:
    """The metric in whole steps of its grid, before noise."""
    count = len(held_out)
    if count == 0:
        return 0
    features, labels = held_out.take(np.arange(count))
    # a copy, so that nothing of another client is left in it
    right = right_answers(
        copy.deepcopy(module), torch.from_numpy(task.shared.parameters), features, labels
    )
    coin = float(randomness.generator("metric-rounding", task.shared.round, task.number).random())
    return grid.rounded(2 * right - count, 2 * count, coin)
