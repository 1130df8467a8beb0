"""The accountants: each reads the epsilon of a schedule, and so decides how much noise it needs.

Guarantee: schedules are first made and sealed by the Rényi accountant; any other accountant then
scales their noise until its own reading reaches the budget, never exceeding it. Its claims are
checked by accountants that share no code with it (`verification`), whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedspend.accounting.calibration import stretches, uniform
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.curves import curve
from fedspend.accounting.rdp import NOISE_RANGE, ORDERS, rdp
from fedspend.basics.arrays import FloatArray
from fedspend.basics.progress import OnProgress
from fedspend.basics.registry import Entry, Registry
from fedspend.errors import InvalidInput, Refused

PLD = "pld"
AUTO = "auto"  # no accountant, but the wish that the plan chooses one: `chosen`
MAX_SCHEDULES = 1000
# What `auto` leaves to PLD. Every claim by PLD is read again by an independent accountant, which
# takes about a second for each 25 different rounds.
FEW_SCHEDULES, FEW_ROUNDS = 20, 100
# Above this the independent accountant's reading is coarse: its numbers are of the size of e^700.
LARGEST_PLD_BUDGET = 500.0
# Below this its rounding is as large as what a plan leaves of a budget.
LEAST_PLD_DELTA = 1e-10
# (noise, rate, delta, rough epsilon) -> epsilon of one schedule; noise and rate are (rounds,)
Reader = Callable[[FloatArray, FloatArray, float, float], float]


@dataclass(frozen=True)
class Accountant(Entry):
    """`epsilon` reads one schedule; None means by Rényi curves, at the orders of the plan.

    `cumulative` is a faster way to the epsilon after each round.
    """

    epsilon: Reader | None = field(default=None, kw_only=True)
    cumulative: Callable[[FloatArray, FloatArray, float], FloatArray] | None = field(
        default=None, kw_only=True
    )

    @property
    def at_orders(self) -> bool:
        """Whether each claim is read at one Rényi order.

        Only such claims can cover past spending and replanning.
        """
        return self.epsilon is None

    def after_each_round(
        self, noise: FloatArray, rate: FloatArray, delta: float, orders: tuple[float, ...]
    ) -> FloatArray:
        """Epsilon after each round of each schedule, (rounds, schedules)."""
        if self.epsilon is None:
            return cumulative_epsilon_rdp(noise, rate, delta, orders)
        if self.cumulative is not None:
            return self.cumulative(noise, rate, delta)
        return np.array(
            [
                [
                    self.epsilon(noise[: t + 1, k], rate[: t + 1, k], delta, 1.0)
                    for k in range(noise.shape[1])
                ]
                for t in range(noise.shape[0])
            ]
        )

    def constant_noise(
        self, budget: FloatArray, delta: float, rate: float, rounds: int, orders: tuple[float, ...]
    ) -> FloatArray:
        """The smallest constant noise for each budget, (budgets,)."""
        noise: FloatArray = uniform(budget, delta, rate, rounds, orders).noise[0]
        if self.epsilon is None:
            return noise
        fitted = [
            self.fit_one(np.repeat(start, rounds), np.full(rounds, rate), float(goal), delta)[0][0]
            for start, goal in zip(noise, budget, strict=True)
        ]
        return np.array(fitted)

    def fit(
        self,
        noise: FloatArray,
        rate: FloatArray,
        goal: FloatArray,
        delta: float,
        progress: OnProgress | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Scale each Rényi schedule until this accountant reads its goal: noise and claims."""
        if goal.size > MAX_SCHEDULES:
            raise InvalidInput(
                f"accountant {self.name!r} takes at most {MAX_SCHEDULES} distinct schedules, got "
                f"{goal.size}; use accountant 'rdp'"
            )
        if self.name == PLD and goal.max() > LARGEST_PLD_BUDGET:
            raise InvalidInput(
                f"accountant 'pld' takes budgets up to {LARGEST_PLD_BUDGET:g}, got "
                f"{float(goal.max()):g}; use accountant 'rdp'"
            )
        if self.name == PLD and delta < LEAST_PLD_DELTA:
            raise InvalidInput(
                f"accountant 'pld' takes a delta of at least {LEAST_PLD_DELTA:g}, got {delta:g}; "
                "use accountant 'rdp'"
            )
        noise, claim = noise.copy(), np.empty(goal.size)
        for k in range(goal.size):
            noise[:, k], claim[k] = self.fit_one(noise[:, k], rate[:, k], float(goal[k]), delta)
            if progress is not None:
                progress(k + 1, goal.size)
        return noise, claim

    def fit_one(
        self, noise: FloatArray, rate: FloatArray, budget: float, delta: float
    ) -> tuple[FloatArray, float]:
        """The schedule `noise * s` with the smallest s within the budget, and its epsilon.

        Secant steps on log epsilon against log s inside a bracket. The Rényi plan (s = 1) is known
        to be safe: if an accountant needs more noise, one of the two must be wrong.
        """

        def read(log_scale: float) -> float:
            assert self.epsilon is not None
            return float(self.epsilon(scaled(log_scale), rate, delta, budget))

        def scaled(log_scale: float) -> FloatArray:
            out: FloatArray = np.clip(noise * np.exp(log_scale), *NOISE_RANGE)
            return out

        safe, safe_epsilon = 0.0, read(0.0)
        unsafe, unsafe_epsilon = None, np.nan
        if not 0 < safe_epsilon <= budget:
            raise Refused(
                f"accountant {self.name!r} reads epsilon {safe_epsilon:.9g} for a plan that the "
                f"Rényi accountant puts at {budget:g}: refusing to use either"
            )
        slope = -1.2
        for _ in range(40):
            if safe_epsilon >= budget * (1 - 2e-6) or scaled(safe).min() <= NOISE_RANGE[0]:
                break
            if unsafe is not None and safe - unsafe < 1e-8:  # a jump: the grid's width changes
                break
            if unsafe is not None:
                slope = (np.log(safe_epsilon) - np.log(unsafe_epsilon)) / (safe - unsafe)
            step = np.log(budget * (1 - 1e-6) / safe_epsilon) / slope
            trial = max(safe + step, safe - 0.5) if unsafe is None else safe + step
            if unsafe is not None and not unsafe < trial < safe:
                trial = (safe + unsafe) / 2
            value = read(trial)
            if 0 < value <= budget:
                safe, safe_epsilon = trial, value
            else:
                unsafe, unsafe_epsilon = trial, value
        return scaled(safe), safe_epsilon


def _pld(noise: FloatArray, rate: FloatArray, delta: float, _near: float) -> float:
    from fedspend.accounting.pld import schedule_epsilon

    return schedule_epsilon(noise, rate, delta)


def _pld_cumulative(noise: FloatArray, rate: FloatArray, delta: float) -> FloatArray:
    from fedspend.accounting.pld import cumulative_epsilon

    return cumulative_epsilon(noise, rate, delta)


ACCOUNTANTS: Registry[Accountant] = Registry(
    "accountant",
    Accountant("rdp", "Rényi curves: fast, for any number of budgets"),
    Accountant(
        PLD,
        "privacy loss distributions: 4 to 7% less noise, for up to 1000 distinct schedules",
        epsilon=_pld,
        cumulative=_pld_cumulative,
    ),
    section="privacy",
)


def cumulative_epsilon_rdp(
    noise: FloatArray, rate: FloatArray, delta: float, orders: tuple[float, ...] = ORDERS
) -> FloatArray:
    """Epsilon after each round of each schedule, (rounds, schedules), by composing Rényi curves."""
    cost = conversion_cost(orders, delta)
    begins = stretches(noise, rate)
    # for more, tabulated curves: they agree to 1e-4 or better and are a thousand times faster
    exact = int(begins.sum()) <= 2000
    out = np.empty(noise.shape)
    for first in range(0, noise.shape[1], 256):
        block = slice(first, first + 256)
        spent, current = (np.zeros((noise[:, block].shape[1], len(orders))) for _ in range(2))
        for t in range(noise.shape[0]):
            rows = np.flatnonzero(begins[t, block])
            q, sigma = rate[t, block][rows], noise[t, block][rows]
            if exact and rows.size:
                current[rows] = rdp(q, sigma, orders)
            for value in () if exact else np.unique(q):
                mine = q == value
                current[rows[mine]] = curve(float(value), orders).rdp(np.log(sigma[mine]))
            spent += current
            out[t, block] = np.maximum((spent + cost).min(axis=1), 0.0)
    return out
