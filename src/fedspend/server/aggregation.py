"""Other ways to combine the clients' updates than their planned sum: for simulations only.

A median, a trimmed mean or a mean weighted by rows moves further than clip / denominator when one
client is zeroed, so no plan of ours pays for it. Guarantee: such a run is a seeded simulation that
is not kept, so it has no certificate and no report, and its metrics claim no epsilon; everything
else is refused (`refuse_priced`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.registry import Entry, Registry
from fedspend.errors import InvalidInput, Refused

# (updates, (clients, parameters); rows of each client): the combined update, (parameters,)
Combine = Callable[[Any, Any], Any]
MEAN = "mean"


@dataclass(frozen=True)
class AggregationEntry(Entry):
    """`combine` is None for the planned mean, which is the mechanism's."""

    combine: Combine | None = None


def median(updates: FloatArray, rows: FloatArray) -> FloatArray:
    """
    >>> median(np.array([[0.0], [1.0], [9.0]]), np.ones(3)).tolist()
    [1.0]
    """
    del rows
    found: FloatArray = np.median(updates, axis=0)
    return found


def trimmed_mean(updates: FloatArray, rows: FloatArray, share: float = 0.1) -> FloatArray:
    """The mean of each coordinate without its lowest and highest values, a `share` of each.

    >>> trimmed_mean(np.array([[-90.0], [1.0], [3.0], [99.0]]), np.ones(4), 0.25).tolist()
    [2.0]
    """
    del rows
    cut = int(share * len(updates))
    found: FloatArray = np.sort(updates, axis=0)[cut : len(updates) - cut].mean(axis=0)
    return found


def weighted_mean(updates: FloatArray, rows: FloatArray) -> FloatArray:
    """The mean weighted by rows, as in FedAvg.

    >>> weighted_mean(np.array([[0.0], [4.0]]), np.array([1.0, 3.0])).tolist()
    [3.0]
    """
    found: FloatArray = (rows / max(rows.sum(), 1.0)) @ updates
    return found


AGGREGATIONS: Registry[AggregationEntry] = Registry(
    "aggregation",
    AggregationEntry(MEAN, "the planned mean: the sum of clipped updates over a fixed number"),
    AggregationEntry("median", "the median of each coordinate; simulations only", (), median),
    AggregationEntry(
        "trimmed-mean", "without the outermost tenths; simulations only", (), trimmed_mean
    ),
    AggregationEntry("weighted-mean", "weighted by rows; simulations only", (), weighted_mean),
    section="train",
)


@dataclass(frozen=True, eq=False)
class Aggregation:
    """What replaces the mean in a simulation, and how many rows each client has."""

    name: str
    combine: Combine
    rows: Mapping[str, int]

    def total(self, updates: Mapping[str, FloatArray], size: int, denominator: float) -> FloatArray:
        """The sum that the mechanism would divide by the planned denominator."""
        if not updates:
            return np.zeros(size)
        rows = np.array([float(self.rows[client]) for client in updates])
        found = np.asarray(self.combine(np.stack([*updates.values()]), rows), dtype=np.float64)
        if found.shape != (size,) or not np.isfinite(found).all():
            raise InvalidInput(
                f"aggregation {self.name!r} must give {size} finite numbers, got an array of shape "
                f"{found.shape}"
            )
        return found * denominator


def refuse_priced(
    name: str,
    *,
    simulation: bool,
    kept: bool = False,
    summed: bool = False,
    unseen: bool = False,
) -> None:
    """Refuse an aggregation where anybody would rely on the plan's price, and where the server does
    not see the updates (`summed`) or who takes part (`unseen`).
    """
    why = (
        "and a real run would promise what does not hold; drop it, or simulate with "
        'randomness="seeded"'
        if not simulation
        else "so a run directory would certify what does not hold; simulate it without one: "
        "fedspend.train without output, or compare"
        if kept
        else 'and only the server sees single updates; use noise = "central"'
        if summed
        else 'and only clients know who of them takes part; use engine.ask = "sampled"'
        if unseen
        else None
    )
    if why is not None:
        raise Refused(f"aggregation {name!r} has another sensitivity than the plan's sum, {why}")
