"""A ladder of rates with the epsilon of each, fine enough that a budget between two rungs leaves
only a sliver unspent.

Guarantee: every rung's epsilon is the exact kernel's, rounded up, so the highest rung within a
budget never overspends it. From `LEAST_EPSILON` on, neighbouring rungs differ by at most `step` in
epsilon, so it leaves at most that share unspent. Records on the same rung share a mechanism: a
million different budgets need only a few thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import Refused
from fedspend.records.spending import Stretches, divergence
from fedspend.records.terms import Terms

LEAST_RATE = 1e-9  # the smallest rate at which the kernel is exact; below, a record is left out
LEAST_EPSILON = 1e-6  # smaller budgets may leave more unspent
STEP = 0.004
COARSE = 97  # rungs to start with, over nine decades
SAFETY = 1e-8  # above the kernel's own error
_AROUND = 3  # orders tried on either side of the best order of the coarse rungs nearby


@dataclass(frozen=True, eq=False)
class Ladder:
    """Increasing rates and their non-decreasing epsilons (public, at `records.ORDERS`)."""

    rate: FloatArray
    epsilon: FloatArray

    def highest_within(self, budget: FloatArray) -> FloatArray:
        """For each budget, the largest rate on the ladder that it can pay for; 0 if it can pay for
        none.
        """
        rung = np.searchsorted(self.epsilon, budget, side="right")
        return np.concatenate([[0.0], self.rate])[rung]


@lru_cache(maxsize=64)
def ladder(
    terms: Terms, step: float = STEP, coarse: int = COARSE, stretches: Stretches | None = None
) -> Ladder:
    """Starts with a coarse ladder computed at all orders; fills every gap that is too wide with
    rungs computed at nearby orders.

    Leaving orders out gives higher epsilons, so it can only cost a little budget. In practice the
    best order moves slowly and is always among those tried.
    """
    alpha, cost = np.asarray(ORDERS), conversion_cost(ORDERS, terms.delta)
    rate = np.geomspace(LEAST_RATE, 1.0, coarse)
    reading = divergence(rate, alpha, terms, stretches=stretches) + cost
    epsilon, best = np.maximum(reading.min(axis=1), 0.0), reading.argmin(axis=1)
    for _ in range(60):
        new = _between(rate, epsilon, step)
        if not new.size:
            break
        owner = np.searchsorted(rate, new) - 1
        values, places = _read(new, best[owner], best[owner + 1], alpha, cost, terms, stretches)
        rate, epsilon, best = (
            np.concatenate(pair) for pair in ((rate, new), (epsilon, values), (best, places))
        )
        by_rate = np.argsort(rate, kind="stable")
        rate, epsilon, best = rate[by_rate], epsilon[by_rate], best[by_rate]
    else:
        raise Refused("the ladder of rates did not settle; choose another noise_multiplier")
    return _thinned(rate, np.maximum.accumulate(epsilon * (1 + SAFETY)), step)


def _thinned(rate: FloatArray, epsilon: FloatArray, step: float) -> Ladder:
    """Drops unneeded rungs: goes from each rung to the highest one within `step` of it."""
    kept, last = [0], rate.size - 1
    while kept[-1] < last:
        reach = max(epsilon[kept[-1]], LEAST_EPSILON) * (1 + step)
        kept.append(max(kept[-1] + 1, int(np.searchsorted(epsilon, reach, side="right")) - 1))
    return Ladder(rate[kept], epsilon[kept])


def _between(rate: FloatArray, epsilon: FloatArray, step: float) -> FloatArray:
    """New rates for gaps whose ends differ by more than `step`: as many as a power law needs."""
    floor = np.maximum(epsilon, LEAST_EPSILON)
    gap = np.log(floor[1:] / floor[:-1])
    wide = np.flatnonzero((gap > np.log1p(step)) & (rate[1:] > rate[:-1] * (1 + 1e-13)))
    pieces = np.minimum(np.ceil(gap[wide] / np.log1p(step) * 1.05).astype(np.int64) + 1, 64)
    owner = np.repeat(wide, pieces - 1)
    share = (
        np.arange(owner.size) - np.repeat(np.cumsum(pieces - 1) - (pieces - 1), pieces - 1) + 1
    ) / np.repeat(pieces, pieces - 1)
    return np.asarray(np.unique(rate[owner] * (rate[owner + 1] / rate[owner]) ** share))


def _read(
    rate: FloatArray,
    low: IntArray,
    high: IntArray,
    alpha: FloatArray,
    cost: FloatArray,
    terms: Terms,
    stretches: Stretches | None,
) -> tuple[FloatArray, IntArray]:
    """Epsilon of each rate at the orders around those of its neighbours, and the best order."""
    first, last = np.minimum(low, high), np.maximum(low, high)
    epsilon, place = np.empty(rate.size), np.empty(rate.size, dtype=np.int64)
    for start, stop in np.unique(np.stack([first, last], axis=1), axis=0):
        rows = np.flatnonzero((first == start) & (last == stop))
        columns = slice(max(0, start - _AROUND), min(alpha.size, stop + _AROUND + 1))
        reading = divergence(rate[rows], alpha[columns], terms, stretches=stretches) + cost[columns]
        best = reading.argmin(axis=1)
        epsilon[rows], place[rows] = (
            np.maximum(reading[np.arange(rows.size), best], 0.0),
            best + columns.start,
        )
    return epsilon, place
