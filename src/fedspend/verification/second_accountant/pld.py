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
from fedspend.verification.second_accountant.renyi import divergence_of_schedule

NEAR_ONE = np.array([1.05])
# Grid of losses, and the finer one for rounds whose loss deviates by less than `SMALL_LOSS`. A grid
# adds to epsilon a share of about 0.1 (interval / deviation of a round's loss)^2, in measurements.
GRID, FINE_GRID, SMALL_LOSS = 1e-3, 1e-4, 1e-2
COARSE, FEW_DISTINCT = 0.05, 16  # a share of that deviation, and different rounds


def pld_epsilon(
    rates: Sequence[float],
    noises: Sequence[float],
    counts: Sequence[int],
    delta: float,
    interval: float | None = None,
    most_distinct: int = 100,
    *,
    coarse: bool = False,
) -> float:
    """Epsilon of runs of identical rounds by dp-accounting's pessimistic PLD.

    It is never too low, whatever the `interval`; by default that is 1e-3, or 1e-4 where rounds give
    away very little. If there are more than `most_distinct` different rounds, similar ones are
    merged at the lowest noise and the highest rate among them: less noise or a higher rate can only
    cost more, so the result is still an upper bound. A `coarse` reading is several times faster and
    up to 1% higher: it merges more rounds, and its grid is wider where losses are large.
    """
    q, s, k = _merged(
        np.asarray(rates, float),
        np.asarray(noises, float),
        np.asarray(counts, np.int64),
        FEW_DISTINCT if coarse else most_distinct,
    )
    # A grid point costs dp-accounting about 8 microseconds per round. Small noise has losses in the
    # thousands, where a fine grid gains nothing, and a coarse one is still pessimistic.
    points = (3e5 if interval is None else 3e6) / math.sqrt(q.size)
    one_round = float((20 / s + 0.5 / s**2).max())
    # roughly the mean of the summed loss: near order 1 this is the Kullback-Leibler divergence
    mean = float(divergence_of_schedule(q, s, k, NEAR_ONE)[0])
    all_rounds = mean + 20 * math.sqrt(2 * mean) + one_round
    if interval is None:
        deviation = math.sqrt(2 * mean / float(k.sum()))
        interval = GRID if deviation >= SMALL_LOSS else FINE_GRID
        if coarse and COARSE * deviation > interval:
            interval *= 2.0 ** math.floor(math.log2(COARSE * deviation / interval))
    # Doubling keeps grids inside each other: a finer one never reads higher. It also lets schedules
    # of different budgets share cached rounds.
    interval *= 2.0 ** max(0, math.floor(math.log2(max(one_round, all_rounds) / points / interval)))
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
