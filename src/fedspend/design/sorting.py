"""Non-dominated points: those that no other point beats in one objective without losing in another.
Smaller is better.

Guarantee: gives the same mask as comparing every pair, including ties and duplicates: equal points
do not dominate each other, so copies of an optimal point are all optimal. NaN is refused, because
it is neither better nor worse than anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.errors import InvalidInput


def non_dominated(points: Any) -> BoolArray:
    """Which rows of `points` (points, objectives) are Pareto optimal.

    Two objectives take one sort, n log n. More objectives take, for every optimal point, one pass
    over the points that are left.

    >>> non_dominated([[1, 5], [2, 3], [2, 4], [2, 3], [4, 1]]).tolist()
    [True, True, False, True, True]
    """
    try:
        array = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            "points must be numbers: one row per point, one column per objective"
        ) from None
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidInput(
            "points must have one row per point and one column per objective, got shape "
            f"{array.shape}"
        )
    missing = np.isnan(array)
    if missing.any():
        row, column = (int(n) for n in np.argwhere(missing)[0])
        raise InvalidInput(
            f"objective {column + 1} of point {row + 1} is NaN; leave the point out or give it a "
            "value"
        )
    if not len(array):
        return np.zeros(0, dtype=bool)
    return _two(array) if array.shape[1] == 2 else _many(array)


def _two(points: FloatArray) -> BoolArray:
    """Sort by the first objective; a point survives if it is the best of its tie and better than
    everything before that tie.
    """
    order = np.lexsort((points[:, 1], points[:, 0]))
    first, second = points[order].T
    # start of every tie in the first objective
    begins = np.flatnonzero(np.concatenate([[True], first[1:] != first[:-1]]))
    best = second[begins]  # the sort puts the smallest of a tie first
    before = np.concatenate([[np.inf], np.minimum.accumulate(best)[:-1]])
    survives = best < before
    # nothing comes before the first tie, even if its second objective is infinite
    survives[0] = True
    sizes = np.diff(np.append(begins, len(points)))
    mask = np.empty(len(points), dtype=bool)
    mask[order] = np.repeat(survives, sizes) & (second == np.repeat(best, sizes))
    return mask


def _many(points: FloatArray) -> BoolArray:
    """In lexicographic order, nothing dominates the first point that is left: it is optimal, and
    what it dominates goes.
    """
    distinct, copies = np.unique(points, axis=0, return_inverse=True)
    left = np.arange(len(distinct))
    optimal = np.zeros(len(distinct), dtype=bool)
    while left.size:
        optimal[left[0]] = True
        # Rows are distinct, so a row that is nowhere better than this one is dominated by it.
        left = left[(distinct[left] < distinct[left[0]]).any(axis=1)]
    return optimal[copies.reshape(-1)]
