"""Epsilons by privacy loss distributions (PLD), through Google's dp-accounting.

Guarantee: every epsilon is pessimistic: an upper bound, whatever the width of the grid. PLD reads
lower than Rényi curves, so the same budget needs 4 to 7% less noise. It is slow (0.1 to 1 s per
reading), so a plan takes the shape of its schedules from Rényi curves, and PLD only finds one
common factor for the noise of each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray


def discretisation(epsilon: float) -> float:
    """Width of the loss grid, fine enough for five digits of epsilon.

    A coarser grid still gives an upper bound, only a looser one.
    """
    return float(np.clip(1e-4 * epsilon, 1e-5, 1e-3))


@lru_cache(maxsize=256)
def _one_round(noise: float, rate: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, pessimistic_estimate=True
    )


def schedule_epsilon(noise: FloatArray, rate: FloatArray, delta: float, interval: float) -> float:
    """Pessimistic PLD epsilon of one schedule."""
    return float(composed(noise, rate, interval).get_epsilon_for_delta(delta))


def composed(noise: FloatArray, rate: FloatArray, interval: float) -> Any:
    """The privacy loss distribution of one schedule, rounded up to a grid of `interval`."""
    (pairs, times) = np.unique(np.stack([noise, rate]), axis=1, return_counts=True)
    parts = [
        _one_round(float(s), float(q), interval).self_compose(int(k))
        for (s, q), k in zip(pairs.T, times, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return total


def cumulative_epsilon(noise: FloatArray, rate: FloatArray, delta: float) -> FloatArray:
    """PLD epsilon after each round of each schedule, (rounds, schedules)."""
    out = np.empty(noise.shape)
    for k in range(noise.shape[1]):
        total = None
        for t in range(noise.shape[0]):
            one = _one_round(float(noise[t, k]), float(rate[t, k]), 1e-3)
            total = one if total is None else total.compose(one)
            out[t, k] = total.get_epsilon_for_delta(delta)
    return out
