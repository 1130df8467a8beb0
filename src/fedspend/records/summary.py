"""A set of rates in a few numbers: by budget level and observer, and which clients are left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.records.spending import OBSERVERS, epsilon
from fedspend.records.terms import Terms

MOST_LEVELS = 10


@dataclass(frozen=True, eq=False)
class Level:
    """Records with one budget, or with budgets in one band."""

    budget: tuple[float, float]  # lowest, highest
    records: int
    rate: tuple[float, float, float]  # lowest, mean, highest
    spent: dict[str, float]  # largest epsilon, by observer
    left_out: int
    unspent: float  # mean share


def spending_of(rate: FloatArray, terms: Terms) -> dict[str, FloatArray]:
    """Epsilon of every record against each observer; computed once if the bounds are the same."""
    public = np.asarray(epsilon(rate, **vars(terms)))
    picked = (
        np.asarray(epsilon(rate, **vars(terms), observer="picks-participants"))
        if terms.client_rate < 1
        else public
    )
    return dict(zip(OBSERVERS, (public, public, picked), strict=True))


def levels_of(budget: FloatArray, most: int = MOST_LEVELS) -> list[IntArray]:
    """Rows by distinct budget or, if there are too many, by bands that grow by equal factors."""
    distinct, of_row = np.unique(budget, return_inverse=True)
    if distinct.size > most:
        edges = np.geomspace(distinct[0], distinct[-1], most - 1)[1:-1]
        of_row = np.searchsorted(edges, budget, side="right")
    return [
        rows for n in range(int(of_row.max()) + 1) if (rows := np.flatnonzero(of_row == n)).size
    ]


def summarise(budget: FloatArray, rate: FloatArray, spent: dict[str, FloatArray]) -> list[Level]:
    levels = []
    for rows in levels_of(budget):
        mine = rate[rows]
        levels.append(
            Level(
                (float(budget[rows].min()), float(budget[rows].max())),
                rows.size,
                (float(mine.min()), float(mine.mean()), float(mine.max())),
                {observer: float(values[rows].max()) for observer, values in spent.items()},
                int((mine == 0).sum()),
                float(np.mean(1 - spent["public"][rows] / budget[rows])),
            )
        )
    return levels


def idle_clients(clients: tuple[str, ...] | None, rate: FloatArray) -> list[str]:
    """Clients whose records are all at rate 0, in alphabetical order."""
    if clients is None:
        return []
    names, owner = np.unique(np.asarray(clients), return_inverse=True)
    idle = np.bincount(owner, weights=rate) == 0
    return [str(name) for name in names[idle]]
