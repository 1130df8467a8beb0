"""A plan by groups of clients, small enough for a table or a plot.

A group is a label that came with the clients, or a distinct budget; if there would be too many,
clients are put into bands of about equal size by budget. Clients of a group may differ, so every
quantity is a track: its lowest, mean (over clients) and highest value by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.words import counted as counted
from fedspend.basics.words import span
from fedspend.planning.protocol import AnyPlan

MOST_GROUPS = 12
BANDS = 8


@dataclass(frozen=True, eq=False)
class Track:
    """Lowest, mean and highest value over a group's clients, per round or as single numbers."""

    low: FloatArray
    mean: FloatArray
    high: FloatArray

    def at(self, index: int) -> tuple[float, float, float]:
        return float(self.low[index]), float(self.mean[index]), float(self.high[index])


@dataclass(frozen=True, eq=False)
class GroupTracks:
    """One group of clients.

    `budget` and `unspent` (a share of the budget) have one entry, the others one per round.
    """

    label: str
    clients: int
    budget: Track
    unspent: Track
    noise: Track
    rate: Track
    clip: Track
    spent: Track


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which clients are in each group. `named`: groups are labels; `banded`: they are bands."""

    labels: tuple[str, ...]
    members: tuple[IntArray, ...]
    named: bool
    banded: bool

    @property
    def heading(self) -> str:
        return "group" if self.named else "budget"


def group_clients(
    plan: AnyPlan, labels: Sequence[str] | None = None, most: int = MOST_GROUPS, bands: int = BANDS
) -> Grouping:
    """Groups by label if there are any, else by budget; if more than `most`, `bands` bands."""
    if labels is not None:
        names, of_client = np.unique(np.asarray(labels, dtype=object), return_inverse=True)
        if len(names) <= most:
            # ordered by the strictest budget in each, like groups by budget
            strictest = [float(plan.budget[of_client == n].min()) for n in range(len(names))]
            order = sorted(range(len(names)), key=lambda n: (strictest[n], names[n]))
            return Grouping(
                tuple(str(names[n]) for n in order),
                tuple(np.flatnonzero(of_client == n) for n in order),
                True,
                False,
            )
    distinct, of_client = np.unique(plan.budget, return_inverse=True)
    banded = len(distinct) > most
    if banded:
        edges = np.unique(np.quantile(plan.budget, np.linspace(0, 1, bands + 1)[1:-1]))
        _, of_client = np.unique(
            np.searchsorted(edges, plan.budget, side="left"), return_inverse=True
        )
    members = tuple(np.flatnonzero(of_client == n) for n in range(int(of_client.max()) + 1))
    return Grouping(tuple(span(plan.budget[rows]) for rows in members), members, False, banded)


def group_tracks(plan: AnyPlan, grouping: Grouping) -> list[GroupTracks]:
    """The tracks of every group."""
    s = plan.schedules
    spent = plan.spent_by_schedule()
    final = spent[-1][s.of_client]
    result = []
    for label, rows in zip(grouping.labels, grouping.members, strict=True):
        schedules, count = np.unique(s.of_client[rows], return_counts=True)
        tables = {
            "noise": s.noise_multiplier,
            "rate": s.sampling_rate,
            "clip": s.clip_norm,
            "spent": spent,
        }
        tracks = {name: track(table[:, schedules], count) for name, table in tables.items()}
        ones = np.ones(rows.size)
        budget = track(plan.budget[rows][None, :], ones)
        unspent = track(1 - (final[rows] / plan.budget[rows])[None, :], ones)
        result.append(GroupTracks(label, rows.size, budget, unspent, **tracks))
    return result


def track(table: FloatArray, weights: FloatArray | IntArray) -> Track:
    """Lowest, weighted mean and highest over the columns of (rounds, columns)."""
    low, high = table.min(axis=1), table.max(axis=1)
    # rounding can push the mean of equal numbers outside their range
    return Track(low, np.clip(np.average(table, axis=1, weights=weights), low, high), high)


def quarters(rounds: int) -> list[int]:
    """The rounds (counted from 1) that end the quarters of training.

    >>> quarters(25), quarters(2)
    ([6, 12, 18, 25], [1, 2])
    """
    return sorted({max(1, rounds * k // 4) for k in (1, 2, 3, 4)})


def landmarks(rounds: int) -> list[int]:
    """The first, middle and last round, counted from 1.

    >>> landmarks(25), landmarks(1)
    ([1, 13, 25], [1])
    """
    return sorted({1, rounds // 2 + 1, rounds})


def accountant_words(plan: AnyPlan) -> str:
    """The accountant, and why it is that one if the plan chose it."""
    choice = plan.parameters.get("accountant")
    return plan.accountant if choice is None else f"{plan.accountant} ({choice})"
