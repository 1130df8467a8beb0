"""What the trainings of a grid of Gu et al. (2023) show within the limits of a panel: the front of
loss and proxy, k, and how far theory's settings are from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from experiment import Finished
from gu import Grid, Panel

from fedspend.design import estimate_k, non_dominated, objectives
from fedspend.design.estimation import KEstimate
from fedspend.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Window:
    """The trainings of a grid within a panel's limits: a table with a row for every rate and noise
    level, and a column for every T.
    """

    clients: int
    rates: np.ndarray
    levels: np.ndarray
    loss: np.ndarray

    @property
    def rounds(self) -> int:
        return int(self.loss.shape[1])

    @property
    def proxy(self) -> np.ndarray:
        t = np.arange(1, self.rounds + 1)
        return objectives(
            t, self.levels[:, None], self.rates[:, None], k=1.0, clients=self.clients
        )[1]

    def front(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and T of the points that no other one beats in both loss and proxy."""
        which = np.isfinite(self.loss)
        which[which] = non_dominated(np.column_stack([self.loss[which], self.proxy[which]]))
        row, column = np.nonzero(which)
        return row, column + 1

    def estimate(self) -> KEstimate | None:
        """k, or None if the whole front lies at the limits of the search."""
        row, rounds = self.front()
        try:
            return estimate_k(
                np.column_stack([rounds, self.levels[row]]),
                rate=self.rates[row],
                clients=self.clients,
                max_rounds=self.rounds,
                max_noise=float(self.levels.max()),
            )
        except InvalidInput:
            return None

    def as_theory_says(self, k: float) -> float:
        """The share of the front that lies where theory says."""
        row, rounds = self.front()
        return float(np.mean(self._theory(k)[row, rounds - 1]))

    def _theory(self, k: float) -> np.ndarray:
        """Which points of the table are on theory's front, each rate for itself."""
        t = np.arange(1, self.rounds + 1)
        found = np.zeros(self.loss.shape, dtype=bool)
        for rate in np.unique(self.rates):
            mine = np.flatnonzero(self.rates == rate)
            loss, _ = objectives(t, self.levels[mine, None], rate, k=k, clients=self.clients)
            alone = replace(self, rates=self.rates[mine], levels=self.levels[mine], loss=loss)
            row, rounds = alone.front()
            found[mine[row], rounds - 1] = True
        return found

    def lost(self, k: float) -> list[float]:
        """What the settings on theory's curve lose: loss above the lowest with as small a proxy."""
        shares = self.rates * self.clients / self.levels**2
        picked = [(n, round(share / k)) for n, share in enumerate(shares)]
        proxy = self.proxy
        return [
            float(self.loss[n, t - 1] - self.loss[proxy <= proxy[n, t - 1] * (1 + 1e-12)].min())
            for n, t in picked
            if 1 <= t < self.rounds and np.isfinite(self.loss[n, t - 1])
        ]


def window(results: Finished, grid: Grid, panel: Panel) -> Window | None:
    """None if a training within the limits is missing."""
    inside = [
        one for one in grid.trainings() if panel.most_noise is None or one.level <= panel.most_noise
    ]
    lines = [results.found.get(one.key) for one in inside]
    losses = [line["loss"][: panel.rounds] for line in lines if line is not None]
    if len(losses) < len(inside):
        return None
    table = np.array(losses, dtype=np.float64)  # a loss that is not finite is None, then NaN
    return Window(
        grid.clients,
        np.array([one.rate for one in inside]),
        np.array([one.level for one in inside]),
        np.where(np.isnan(table), np.inf, table),
    )
