"""The constant k of `k sigma^2 T = q K`, estimated from the non-dominated points of a search.

Every point gives `k = q K / (sigma^2 T)`. On a grid one noise level is optimal for a whole range of
T, so the points of one level are not independent: a level counts once, with the median of its T,
and the interval is Student's t over levels, in log k. It covers how much levels disagree, not what
another data set would give. On a coarse grid the median is too high: levels that are 1.1, 1.2 and
1.3 times apart make k 2, 8 and 13% too small.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, whole_number


class KEstimate(NamedTuple):
    """k with its 95% interval, which is (0, infinity) for a single noise level."""

    k: float
    low: float
    high: float
    levels: int  # number of (rate, noise level) pairs used
    # b of `T ~ (sigma^2 / q)^-b` over these levels, 1 in theory; NaN with a single level
    exponent: float

    def __float__(self) -> float:
        return self.k


def estimate_k(
    points: Any,
    *,
    rate: Any,
    clients: int,
    max_rounds: int | None = None,
    max_noise: float | None = None,
) -> KEstimate:
    """k from non-dominated points: rows of (rounds, noise level), all at one `rate` or with one
    rate per point.

    Some points are optimal only because the search ends where it does, and say nothing about the
    curve. `max_noise` leaves out points for which one more round at equal privacy would need more
    noise than that; `max_rounds` leaves out all points of a level that comes within a twentieth of
    it, because the search cut that level's range short.

    >>> estimate = estimate_k([[50, 0.0953462589], [100, 0.0674199862]], rate=1, clients=10)
    >>> round(estimate.k, 6), estimate.levels
    (22.0, 2)
    """
    table, rates = _checked(points, rate)
    many = whole_number("clients", clients, 1)
    rounds, noise = table.T
    pairs, of_point = np.unique(np.column_stack([rates, noise]), axis=0, return_inverse=True)
    of_point = of_point.reshape(-1)
    telling = np.ones(len(table), dtype=bool)
    if max_rounds is not None:
        cut_short = np.unique(of_point[rounds > 0.95 * max_rounds])
        telling &= ~np.isin(of_point, cut_short)
    if max_noise is not None:
        telling &= noise**2 * (rounds + 1) <= max_noise**2 * rounds
    if not telling.any():
        raise InvalidInput(
            "every non-dominated point lies at a limit of the search, so k cannot be estimated; "
            "allow more rounds or search more levels"
        )
    levels, counts = np.unique(of_point[telling], return_counts=True)
    by_level = np.split(
        rounds[telling][np.argsort(of_point[telling], kind="stable")], np.cumsum(counts)[:-1]
    )
    log_rounds = np.log([np.median(mine) for mine in by_level])
    log_level = np.log(pairs[levels, 1] ** 2 / pairs[levels, 0])  # log(sigma^2 / q)
    return _interval(math.log(many), log_rounds, log_level)


def _interval(log_clients: float, log_rounds: FloatArray, log_level: FloatArray) -> KEstimate:
    from scipy.stats import t

    log_k = log_clients - log_level - log_rounds
    centre, count = float(log_k.mean()), log_k.size
    if count < 2:
        return KEstimate(math.exp(centre), 0.0, math.inf, count, math.nan)
    half = float(t.ppf(0.975, count - 1) * log_k.std(ddof=1) / math.sqrt(count))
    around = log_level - log_level.mean()
    spread = float(around @ around)
    slope = -float(around @ log_rounds) / spread if spread > 0 else math.nan
    return KEstimate(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), count, slope
    )


def _checked(points: Any, rate: Any) -> tuple[FloatArray, FloatArray]:
    try:
        table, rates = np.asarray(points, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            "points must be rows of two numbers, rounds and noise level, and rate one number or "
            "one per point"
        ) from None
    if table.ndim != 2 or table.shape[1] != 2 or not len(table):
        raise InvalidInput(
            f"points must be at least one row of (rounds, noise level), got shape {table.shape}"
        )
    if rates.shape not in ((), (len(table),)):
        raise InvalidInput(
            f"rate must be one number or one per point: got {rates.size} for {len(table)} points"
        )
    bad = ~(np.isfinite(table) & (table > 0))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise InvalidInput(
            f"point {row + 1} must have positive finite rounds and noise, got {table[row].tolist()}"
        )
    if not np.all((rates > 0) & (rates <= 1)):
        raise InvalidInput(
            f"rate must lie in (0, 1], got {float(rates[~((rates > 0) & (rates <= 1))].flat[0])!r}"
        )
    return table, np.array(np.broadcast_to(rates, (len(table),)))
