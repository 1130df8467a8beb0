"""The constant k of `k sigma^2 T = q K`, estimated from non-dominated points of a training search.

Every point says `k = q K / (sigma^2 T)`. On a grid one noise level is optimal for a whole range of T, so the points of one level are
not independent: a level counts once, with the geometric mean of its points, and the interval is Student's t over levels, in log k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedspend.arrays import FloatArray
from fedspend.errors import InvalidInput, whole_number


class KEstimate(NamedTuple):
    """k with its 95% interval; with a single noise level nothing is known about the spread, and the interval is (0, infinity)."""

    k: float
    low: float
    high: float
    levels: int  # (rate, noise level) pairs that it rests on

    def __float__(self) -> float:
        return self.k


def estimate_k(
    points: Any, *, rate: Any, clients: int, max_rounds: int | None = None, max_noise: float | None = None, level: float = 0.95
) -> KEstimate:
    """k from non-dominated points: rows of (rounds, noise level), all at one `rate` or with one rate per point.

    Points at the limits of a search say nothing about the curve: at T_max every low noise is optimal, and at the highest noise every
    small T. With `max_rounds` and `max_noise`, levels that reach a limit are left out.

    >>> estimate = estimate_k([[50, 0.0953462589], [100, 0.0674199862]], rate=1, clients=10)
    >>> round(estimate.k, 6), estimate.levels
    (22.0, 2)
    """
    table, rates = _checked(points, rate)
    many = whole_number("clients", clients, 1)
    rounds, noise = table.T
    pairs, of_point = np.unique(np.column_stack([rates, noise]), axis=0, return_inverse=True)
    of_point = of_point.reshape(-1)
    counts = np.bincount(of_point)
    log_k = np.log(rates * many / (noise**2 * rounds))
    means = np.bincount(of_point, weights=log_k) / counts
    at_limit = np.zeros(len(pairs), dtype=bool)
    if max_rounds is not None:
        at_limit[of_point[rounds >= max_rounds]] = True
    if max_noise is not None:
        at_limit |= pairs[:, 1] >= max_noise
    if at_limit.all():
        raise InvalidInput(
            "every noise level with non-dominated points reaches a limit of the search, so k cannot be told; allow more rounds or "
            "search more noise levels"
        )
    return _interval(means[~at_limit], level)


def _interval(log_k: FloatArray, level: float) -> KEstimate:
    from scipy.stats import t

    centre, count = float(log_k.mean()), log_k.size
    if count < 2:
        return KEstimate(math.exp(centre), 0.0, math.inf, count)
    half = float(t.ppf((1 + level) / 2, count - 1) * log_k.std(ddof=1) / math.sqrt(count))
    return KEstimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), count)


def _checked(points: Any, rate: Any) -> tuple[FloatArray, FloatArray]:
    try:
        table, rates = np.asarray(points, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("points must be rows of two numbers, rounds and noise level, and rate one number or one per point") from None
    if table.ndim != 2 or table.shape[1] != 2 or not len(table):
        raise InvalidInput(f"points must be at least one row of (rounds, noise level), got shape {table.shape}")
    if rates.shape not in ((), (len(table),)):
        raise InvalidInput(f"rate must be one number or one per point: got {rates.size} for {len(table)} points")
    bad = ~(np.isfinite(table) & (table > 0))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise InvalidInput(f"point {row + 1} must have positive finite rounds and noise, got {table[row].tolist()}")
    if not np.all((rates > 0) & (rates <= 1)):
        raise InvalidInput(f"rate must lie in (0, 1], got {float(rates[~((rates > 0) & (rates <= 1))].flat[0])!r}")
    return table, np.array(np.broadcast_to(rates, (len(table),)))
