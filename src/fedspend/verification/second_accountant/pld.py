"""Epsilon by dp-accounting's privacy loss distributions.

Guarantee: `pld_epsilon` is never below the true epsilon. dp-accounting's estimate is pessimistic on
every grid, and what is done here to save time (a coarser grid; similar rounds merged at the lower
noise and the higher rate) can only raise it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.verification.second_accountant.renyi import divergence_of_schedule, epsilon_at

ROUGH_ORDERS = 1 + np.geomspace(0.05, 400, 20)


def pld_epsilon(
    rates: Sequence[float],
    noises: Sequence[float],
    counts: Sequence[int],
    delta: float,
    interval: float | None = None,
    most_distinct: int = 100,
) -> float:
    """Epsilon of runs of identical rounds by dp-accounting's pessimistic PLD.

    It is never too low, whatever the `interval`; by default that is about 2e-4 of epsilon. If there
    are more than `most_distinct` different rounds, similar ones are merged at the lowest noise and
    the highest rate among them: less noise or a higher rate can only cost more, so the result is
    still an upper bound.
    """
    q, s, k = _merged(
        np.asarray(rates, float),
        np.asarray(noises, float),
        np.asarray(counts, np.int64),
        most_distinct,
    )
    # A grid point costs dp-accounting about 8 microseconds per round. Small noise has losses in the
    # thousands, where a fine grid gains nothing, and a coarse one is still pessimistic.
    points = (3e5 if interval is None else 3e6) / math.sqrt(q.size)
    one_round = float((20 / s + 0.5 / s**2).max())
    divergence = divergence_of_schedule(q, s, k, ROUGH_ORDERS)
    # roughly the mean of the summed loss: near order 1 this is the Kullback-Leibler divergence
    mean = float(divergence[0])
    all_rounds = mean + 20 * math.sqrt(2 * mean) + one_round
    if interval is None:
        rough = float(epsilon_at(divergence, ROUGH_ORDERS, delta).min())
        # Rounding to the grid adds variance: in measurements, epsilon rises by a share of about
        # 3 (interval / deviation of one loss)^2.
        deviation = math.sqrt(2 * mean / float(k.sum()))
        interval = min(max(2e-4 * rough, 1e-5), 1e-3, 4e-3 * deviation)
    interval = max(interval, one_round / points, all_rounds / points, 1e-9)
    # so that schedules of different budgets can share cached rounds
    interval = 2.0 ** math.floor(math.log2(interval))
    composed: Any = None
    for rate, noise, count in zip(q, s, k, strict=True):
        repeated = _round_pld(float(rate), float(noise), interval)
        repeated = repeated.self_compose(int(count)) if count > 1 else repeated
        composed = repeated if composed is None else composed.compose(repeated)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _round_pld(rate: float, noise: float, interval: float) -> Any:
    # Imported here because it takes a second, and merely showing a plan does not need it.
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, pessimistic_estimate=True
    )


def _merged(
    q: FloatArray, s: FloatArray, k: IntArray, most: int
) -> tuple[FloatArray, FloatArray, IntArray]:
    """The rounds with equal ones counted together.

    While there are more than `most`, similar ones are merged too, on the safe side.
    """
    rounds = np.stack([q, s])
    distinct, of_round = np.unique(rounds, axis=1, return_inverse=True)
    step = 1e-4
    while distinct.shape[1] > most:
        distinct, of_round = np.unique(np.floor(np.log(rounds) / step), axis=1, return_inverse=True)
        step *= 1.5
    of_round, size = of_round.reshape(-1), distinct.shape[1]
    highest, lowest, count = np.zeros(size), np.full(size, np.inf), np.zeros(size, np.int64)
    np.maximum.at(highest, of_round, q)
    np.minimum.at(lowest, of_round, s)
    np.add.at(count, of_round, k)
    return highest, lowest, count
