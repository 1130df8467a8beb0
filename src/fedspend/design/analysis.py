"""From trainings to results: points, the two fronts, k with its interval, how far theory is from
experiment, and what the search cost.

A point is (candidate, T): its test loss is the mean over seeds; its privacy is the proxy f2 and,
beside it, the real epsilon that the accountant computes for the candidate's plan after T rounds. A
training that diverged counts as infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.design.candidates import TUNING, Candidate, Search, proxy_by_round
from fedspend.design.estimation import KEstimate, estimate_k
from fedspend.design.sorting import non_dominated
from fedspend.design.trainings import Line
from fedspend.errors import InvalidInput, Refused


@dataclass(frozen=True)
class Gap:
    """Loss of the settings that theory picks, minus the lowest at the same or a lower proxy."""

    settings: int
    mean: float
    largest: float


@dataclass(frozen=True, eq=False)
class Findings:
    """Tables are (candidates, rounds)."""

    search: Search
    loss_by_seed: FloatArray  # (candidates, seeds, rounds), infinite where a training diverged
    accuracy_by_seed: FloatArray
    proxy: FloatArray
    epsilon: FloatArray

    @cached_property
    def loss(self) -> FloatArray:
        mean: FloatArray = self.loss_by_seed.mean(axis=1)
        return mean

    @cached_property
    def accuracy(self) -> FloatArray:
        mean: FloatArray = self.accuracy_by_seed.mean(axis=1)
        return mean

    @cached_property
    def counted(self) -> BoolArray:
        """Which cells of the tables are points."""
        return np.isfinite(self.loss)

    @cached_property
    def front(self) -> BoolArray:
        """Non-dominated in loss and proxy: the paper's front."""
        return self._front(self.proxy)

    @cached_property
    def real_front(self) -> BoolArray:
        """Non-dominated in loss and epsilon."""
        return self._front(self.epsilon)

    def _front(self, privacy: FloatArray) -> BoolArray:
        mask = self.counted.copy()
        mask[self.counted] = non_dominated(
            np.column_stack([self.loss[self.counted], privacy[self.counted]])
        )
        return mask

    def solutions(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Rounds, noise level and rate of the points on the paper's front."""
        which, column = np.nonzero(self.front)
        level = np.array([one.noise_level for one in self.search.candidates], dtype=np.float64)[
            which
        ]
        rounds: FloatArray = (column + 1).astype(np.float64)
        return (
            rounds,
            level,
            np.array([one.rate for one in self.search.candidates], dtype=np.float64)[which],
        )

    @cached_property
    def k(self) -> KEstimate | None:
        """k, or None if the whole front lies at the limits of the search."""
        if not self.front.any():
            return None
        rounds, level, rate = self.solutions()
        highest = max(one.noise_level for one in self.search.candidates)
        points = np.column_stack([rounds, level])
        try:
            return estimate_k(
                points,
                rate=rate,
                clients=self.search.clients,
                max_rounds=self.search.rounds,
                max_noise=highest,
            )
        except InvalidInput:
            return None

    def on_curve(self) -> list[tuple[int, int]]:
        """(candidate, rounds) of the settings that theory picks: those in the search that lie on `k
        sigma^2 T = q K` with the estimated k.
        """
        if self.k is None:
            return []
        shares = [
            one.rate * self.search.clients / one.noise_level**2 for one in self.search.candidates
        ]
        picked = [(n, round(share / self.k.k)) for n, share in enumerate(shares)]
        return [(n, t) for n, t in picked if 1 <= t < self.search.rounds and self.counted[n, t - 1]]

    @cached_property
    def gap(self) -> Gap | None:
        """How good the settings that theory picks are; None if it picks none."""
        gaps = []
        for n, rounds in self.on_curve():
            as_private = self.counted & (self.proxy <= self.proxy[n, rounds - 1] * (1 + 1e-12))
            gaps.append(float(self.loss[n, rounds - 1] - self.loss[as_private].min()))
        return Gap(len(gaps), float(np.mean(gaps)), max(gaps)) if gaps else None

    def cost(self) -> dict[str, float]:
        """Rounds and client updates trained; a round at rate q has q K updates on average."""
        rounds = self.search.rounds * len(self.search.seeds)
        expected = sum(one.rate * self.search.clients for one in self.search.candidates)
        return {
            "trainings": len(self.search.candidates) * len(self.search.seeds),
            "rounds": rounds * len(self.search.candidates),
            "client_updates": rounds * expected,
        }

    def point(self, candidate: int, rounds: int) -> dict[str, Any]:
        """One point as a dictionary, for printing and for `pareto.json`."""
        at = (candidate, rounds - 1)
        plan = self.search.plans[candidate]
        return self.search.candidates[candidate].fields | {
            "rounds": rounds,
            "loss": float(self.loss[at]),
            "accuracy": float(self.accuracy[at]),
            "proxy": float(self.proxy[at]),
            "epsilon": float(self.epsilon[at]),
            "noise_multiplier": float(plan.schedules.noise_multiplier[rounds - 1, 0]),
        }

    def points(self, mask: BoolArray) -> list[dict[str, Any]]:
        """The points of a front, most private first."""
        found: list[IntArray] = list(np.argwhere(mask))
        return sorted(
            (self.point(int(n), int(t) + 1) for n, t in found),
            key=lambda point: (point["epsilon"], point["loss"]),
        )

    def document(self) -> dict[str, Any]:
        """The content of `pareto.json`; has no times, so the same search gives the same file."""
        search = self.search
        return {
            "format": "fedspend-pareto-1",
            "tuning": TUNING,
            "randomness": "seeded",
            "settings": search.settings(),
            "clients": search.clients,
            "delta": search.delta,
            "clip": search.clip,
            "max_rounds": search.rounds,
            "seeds": list(search.seeds),
            "k": None
            if self.k is None
            else {
                name: value if math.isfinite(value) else None
                for name, value in self.k._asdict().items()
            },
            "gap": None if self.gap is None else vars(self.gap),
            "cost": self.cost(),
            "front": self.points(self.front),
            "real_front": self.points(self.real_front),
            "candidates": [self._curves(n, one) for n, one in enumerate(search.candidates)],
        }

    def _curves(self, n: int, one: Candidate) -> dict[str, Any]:
        rows = {
            "loss": self.loss[n],
            "accuracy": self.accuracy[n],
            "proxy": self.proxy[n],
            "epsilon": self.epsilon[n],
        }
        return one.fields | {
            name: [float(f"{x:.8g}") if math.isfinite(x) else None for x in values]
            for name, values in rows.items()
        }


def analyse(search: Search, lines: Sequence[Sequence[Line]]) -> Findings:
    """Analyses `lines`: one training per seed for every candidate. Refuses if no loss is finite."""
    # None becomes NaN
    loss = np.array([[line["loss"] for line in each] for each in lines], dtype=np.float64)
    accuracy = np.array([[line["accuracy"] for line in each] for each in lines], dtype=np.float64)
    epsilon = np.array([made.spent_by_schedule()[:, 0] for made in search.plans])
    proxy = np.array([proxy_by_round(made) for made in search.plans])
    findings = Findings(search, np.where(np.isnan(loss), np.inf, loss), accuracy, proxy, epsilon)
    if not findings.counted.any():
        raise Refused(
            "every training of the search diverged, so there is nothing to compare; use a smaller "
            "lr or less noise"
        )
    return findings
