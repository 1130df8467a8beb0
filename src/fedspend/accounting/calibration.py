"""Noise for a budget: found with tabulated curves, sealed with the exact kernel.

Guarantee: what `seal` returns spends at most its budget, read at the stated order with the exact
kernel, and less than 1e-7 of the budget is left over. `solve` alone only steers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.accounting.conversion import check_delta, conversion_cost
from fedspend.accounting.curves import Curve, curve
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import (
    NOISE_RANGE,
    ORDERS,
    SMALLEST_RATE,
    check_orders,
    exact_rdp_at,
)
from fedspend.accounting.roots import safe_roots
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.errors import InvalidInput, Refused, finite_number, whole_number

_LOW, _HIGH = float(np.log(NOISE_RANGE[0])), float(np.log(NOISE_RANGE[1]))
_SAFETY = 1e-8  # share of the budget left unspent, far above the kernel's own error
_ROUNDING = 1e-7


@dataclass(frozen=True)
class Solution:
    """Logarithm of the smallest noise found, and the column of the order at which it is found."""

    log_noise: FloatArray
    binding: IntArray


def solve(
    spending: Curve,
    repeats: float,
    already: FloatArray,
    budget: FloatArray,
    start: FloatArray,
    log_shape: FloatArray | None = None,
    columns: slice = slice(None),
    tolerance: float = 1e-9,
    times: FloatArray | None = None,
) -> Solution:
    """The smallest noise with `min_a [already_a + repeats * rdp_a(noise)] <= budget`, per budget.

    `already` (n, orders) holds the conversion cost and past spending. With `log_shape`, one value
    per round, or (rounds, n), round t uses `noise * shape_t` instead of one common noise, and
    counts `times[t]` times. At each step the gap is read at the order that is best at that noise:
    its sign is that of the minimum over all orders, so no search over orders is needed.
    """
    binding = np.zeros(budget.size, dtype=np.int64)
    room = budget[:, None] - already

    def gap(log_noise: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        shape = log_shape if log_shape is None or log_shape.ndim == 1 else log_shape[:, rows]
        value = repeats * _total(spending.rdp, log_noise, shape, columns, times)
        room_here = room if rows.size == budget.size else room[rows]
        best = (value - room_here).argmin(axis=1)
        cells = (np.arange(rows.size), best)
        binding[rows] = best
        r, target = value[cells], room_here[cells]
        column = best + (columns.start or 0)
        r_next = repeats * _total(spending.rdp_at, log_noise + 1e-5, shape, column, times)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(target > 0, np.log(r / target), np.inf), np.minimum(
                np.log(r_next / r) / 1e-5, -1e-6
            )

    return Solution(safe_roots(gap, start, _LOW, _HIGH, tolerance), binding)


def _total(
    rdp: Callable[[FloatArray, Any], FloatArray],
    log_noise: FloatArray,
    log_shape: FloatArray | None,
    columns: Any,
    times: FloatArray | None,
) -> FloatArray:
    if log_shape is None:
        return rdp(log_noise, columns)
    if times is not None:
        total: FloatArray = times[0] * rdp(log_noise + log_shape[0], columns)
        for shift, count in zip(log_shape[1:], times[1:], strict=True):
            total += count * rdp(log_noise + shift, columns)
        return total
    return sum(
        (rdp(log_noise + shift, columns) for shift in log_shape[1:]),
        rdp(log_noise + log_shape[0], columns),
    )


def first_guess(budget: FloatArray, delta: float, rate: float, rounds: int) -> FloatArray:
    """Log of a noise for `solve` to start from.

    The closed form of an unsampled Gaussian with `rate` times the sensitivity.
    """
    log_delta = -np.log(delta)
    zcdp = (np.sqrt(budget + log_delta) - np.sqrt(log_delta)) ** 2
    with np.errstate(divide="ignore"):  # a budget of next to nothing: the largest noise
        guess: FloatArray = np.clip(
            np.log(np.maximum(rate * np.sqrt(rounds / (2 * zcdp)), 1.0)), _LOW, _HIGH
        )
    return guess


def check_feasible(budget: FloatArray, already: FloatArray) -> None:
    """Refuse a budget that even infinite noise would overspend at these orders."""
    floor = already.min(axis=-1)
    bad = ~(budget > floor * (1 + 1e-6))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InvalidInput(
            f"epsilon {budget[at]:g} cannot be met by any noise: at this delta and these orders "
            f"the smallest possible epsilon is {np.broadcast_to(floor, budget.shape)[at]:.3g}; "
            "raise epsilon or delta"
        )


@dataclass(frozen=True)
class Sealed:
    """Schedules, each certified at one order."""

    noise: FloatArray  # (rounds, n)
    epsilon: FloatArray  # (n,) exact at `order`, at most the budget
    order: FloatArray  # (n,)


def seal(
    noise: FloatArray,
    rate: FloatArray,
    adjustable: BoolArray,
    budget: FloatArray,
    binding: IntArray,
    orders: FloatArray,
    delta: float,
    repeats: int = 1,
    past: Mechanisms | None = None,
) -> Sealed:
    """Scale the adjustable rounds of each schedule (rounds, n) until it spends its budget exactly.

    The exact kernel reads the result at the schedule's binding order alone, which is an upper bound
    on what all orders together would read. The whole schedule runs `repeats` times. What `past` has
    spent counts against the budget and is included in the epsilon returned.
    """
    order = orders[binding]
    cost = conversion_cost(orders, delta)[binding] + (0.0 if past is None else past.rdp_at(order))
    runs = Runs.of(noise, rate, repeats, adjustable)
    scaled = adjustable[runs.round, runs.schedule]
    fixed = runs.total(runs.rdp(order, ~scaled))
    target = budget * (1 - _SAFETY) - cost - fixed

    movable = np.flatnonzero(
        (np.bincount(runs.schedule[scaled], minlength=budget.size) > 0) & (target > 0)
    )
    scaled &= np.isin(runs.schedule, movable)

    def gap(x: FloatArray, rows: IntArray) -> tuple[FloatArray, None]:
        log_scale[movable[rows]] = x
        wanted = np.zeros(budget.size, dtype=bool)
        wanted[movable[rows]] = True
        spent = runs.total(runs.rdp(order, scaled & wanted[runs.schedule], log_scale))
        return np.log(spent[movable[rows]] / target[movable[rows]]), None

    log_scale = np.zeros(budget.size)
    log_scale[movable] = np.nan_to_num(
        safe_roots(gap, log_scale[movable], -20.0, 20.0, tolerance=_SAFETY)
    )
    sealed_noise = np.where(adjustable, np.clip(noise * np.exp(log_scale), *NOISE_RANGE), noise)
    claim = Runs.of(sealed_noise, rate, repeats).epsilon_at(order, cost)
    # A schedule of which nothing may be scaled was found by other numerics, to their rounding.
    near = np.flatnonzero((claim > budget) & (claim <= budget * (1 + _ROUNDING)))
    if near.size:
        sealed_noise[:, near] *= 1 + _ROUNDING
        claim = Runs.of(sealed_noise, rate, repeats).epsilon_at(order, cost)
    over = ~(claim <= budget)
    if over.any():
        at = int(np.flatnonzero(over)[0])
        raise Refused(
            f"a schedule for epsilon {budget[at]:g} came out at {claim[at]:.9g}, which would "
            "overspend; raise epsilon, or plan fewer rounds"
        )
    return Sealed(sealed_noise, claim, order)


def stretches(noise: FloatArray, rate: FloatArray) -> BoolArray:
    """(rounds, schedules): whether a new stretch of equal rounds begins."""
    begins = np.ones(noise.shape, dtype=bool)
    begins[1:] = (noise[1:] != noise[:-1]) | (rate[1:] != rate[:-1])
    return begins


@dataclass(frozen=True)
class Runs:
    """Stretches of rounds in which a schedule keeps its rate and noise, accounted only once."""

    round: IntArray  # first round of the stretch
    schedule: IntArray
    rounds: IntArray  # its length
    rate: FloatArray
    noise: FloatArray
    schedules: int

    @classmethod
    def of(
        cls, noise: FloatArray, rate: FloatArray, repeats: int = 1, apart: BoolArray | None = None
    ) -> Runs:
        """The stretches of schedules (rounds, n); a change in `apart` also begins a new one."""
        begins = stretches(noise, rate)
        if apart is not None:
            begins[1:] |= apart[1:] != apart[:-1]
        schedule, first = np.nonzero(begins.T)
        ends = np.append(first[1:], 0)
        ends[np.append(schedule[1:] != schedule[:-1], True)] = noise.shape[0]
        return cls(
            first,
            schedule,
            repeats * (ends - first),
            rate[first, schedule],
            noise[first, schedule],
            noise.shape[1],
        )

    def rdp(
        self, order: FloatArray, where: BoolArray | None = None, log_scale: FloatArray | None = None
    ) -> FloatArray:
        """Divergence of each stretch at its schedule's order, zero outside `where`."""
        wanted = np.flatnonzero(np.ones(self.round.size, dtype=bool) if where is None else where)
        noise = self.noise[wanted]
        if log_scale is not None:
            noise = np.clip(noise * np.exp(log_scale[self.schedule[wanted]]), *NOISE_RANGE)
        out = np.zeros(self.round.size)
        out[wanted] = self.rounds[wanted] * exact_rdp_at(
            self.rate[wanted], noise, order[self.schedule[wanted]]
        )
        return out

    def total(self, per_run: FloatArray) -> FloatArray:
        sums: FloatArray = np.bincount(
            self.schedule, weights=per_run, minlength=self.schedules
        ).astype(np.float64)
        return sums

    def epsilon_at(self, order: FloatArray, cost: FloatArray) -> FloatArray:
        return np.maximum(self.total(self.rdp(order)) + cost, 0.0)


def noise_multiplier(
    epsilon: Any,
    delta: float,
    sampling_rate: float,
    rounds: int,
    accountant: str = "rdp",
    orders: Any = None,
) -> Any:
    """The smallest noise multiplier that keeps `rounds` rounds at `sampling_rate` within epsilon.

    `epsilon` is one number or an array of any shape. The noise is never too low, and right to 1e-6.
    A budget that needs less than 0.05 gets 0.05.

    >>> round(noise_multiplier(10.0, 1e-5, 0.9, 25), 3)
    2.424
    """
    budget = check_epsilons(epsilon)
    delta, rate, rounds = (
        check_delta(delta),
        check_rate("sampling_rate", sampling_rate),
        whole_number("rounds", rounds, 1),
    )
    distinct, where = np.unique(budget.ravel(), return_inverse=True)
    from fedspend.accounting.accountants import ACCOUNTANTS

    alpha = tuple(check_orders(ORDERS if orders is None else orders).tolist())
    noise = ACCOUNTANTS[accountant].constant_noise(distinct, delta, rate, rounds, alpha)
    result = noise[where].reshape(budget.shape)
    return float(result) if result.ndim == 0 else result


def uniform(
    budget: FloatArray,
    delta: float,
    rate: float,
    rounds: int,
    orders: tuple[float, ...],
    past: Mechanisms | None = None,
) -> Sealed:
    """One constant noise per budget; the result holds a single round, since all are the same."""
    alpha = np.asarray(orders)
    already = starting_cost(budget.size, orders, delta, past)
    check_feasible(budget, already)
    noise, binding = np.empty(budget.size), np.empty(budget.size, dtype=np.int64)
    for band in bands(budget, delta, rate, rounds, orders, wide=past is not None):
        cost = already[band.rows, band.columns]
        found = solve(
            curve(rate, orders),
            float(rounds),
            cost,
            budget[band.rows],
            band.start,
            columns=band.columns,
        )
        noise[band.rows], binding[band.rows] = (
            np.exp(found.log_noise),
            found.binding + band.columns.start,
        )
    one = np.ones((1, budget.size))
    return seal(one * noise, one * rate, one > 0, budget, binding, alpha, delta, rounds, past)


def starting_cost(
    budgets: int, orders: tuple[float, ...], delta: float, past: Mechanisms | None
) -> FloatArray:
    """What each budget pays before its first round, (budgets, orders): conversion and `past`."""
    cost = np.broadcast_to(conversion_cost(orders, delta), (budgets, len(orders)))
    return cost if past is None else cost + past.curves(orders)


@dataclass(frozen=True)
class Band:
    """Similar budgets, and the slice of orders that can matter for them."""

    rows: IntArray
    columns: slice
    start: FloatArray  # log of a noise near the uniform one

    @property
    def width(self) -> int:
        return int(self.columns.stop - self.columns.start)


def bands(
    budget: FloatArray,
    delta: float,
    rate: float,
    rounds: int,
    orders: tuple[float, ...],
    margin: int = 2,
    size: int = 512,
    wide: bool = False,
) -> list[Band]:
    """Cut the budgets into bands by size, so that each band needs only a few orders.

    Solving a few hundred of the budgets with all orders shows which ones matter. Leaving an order
    out is safe (fewer orders read higher), so a band that is too narrow costs a little budget,
    never privacy. `wide` bands have all orders.
    """
    by_size = np.argsort(budget, kind="stable")
    everything = slice(0, len(orders))
    if budget.size <= size:
        return [Band(by_size, everything, first_guess(budget[by_size], delta, rate, rounds))]
    if wide:
        cuts = np.split(by_size, range(size, budget.size, size))
        return [
            Band(rows, everything, first_guess(budget[rows], delta, rate, rounds)) for rows in cuts
        ]
    picks = np.unique(np.linspace(0, budget.size - 1, min(400, budget.size)).astype(np.int64))
    sample = budget[by_size[picks]]
    cost = np.broadcast_to(conversion_cost(orders, delta), (sample.size, len(orders)))
    found = solve(
        curve(rate, orders), float(rounds), cost, sample, first_guess(sample, delta, rate, rounds)
    )
    start = np.interp(np.log(budget[by_size]), np.log(sample), found.log_noise)
    out = []
    for first in range(0, budget.size, size):
        rows = by_size[first : first + size]
        near = found.binding[
            np.searchsorted(picks, first, "right") - 1 : np.searchsorted(picks, first + rows.size)
            + 1
        ]
        columns = slice(
            max(0, int(near.min()) - margin), min(len(orders), int(near.max()) + margin + 1)
        )
        out.append(Band(rows, columns, start[first : first + size]))
    return out


def check_epsilons(epsilon: Any) -> FloatArray:
    """Budgets as a float array, each positive and finite."""
    try:
        budget = np.asarray(epsilon, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"epsilon must be a number or an array of numbers, got {epsilon!r}"
        ) from None
    if budget.size == 0:
        raise InvalidInput("epsilon is empty: give at least one budget")
    bad = ~(np.isfinite(budget) & (budget > 0))
    if bad.any():
        at = int(np.flatnonzero(bad.ravel())[0])
        where = f" (client number {at + 1})" if budget.size > 1 else ""
        raise InvalidInput(
            f"epsilon must be positive and finite, got {float(budget.ravel()[at])!r}{where}"
        )
    return budget


def check_rate(name: str, rate: Any) -> float:
    """A sampling rate in (0, 1], and not so small that the accountants cannot tell it from 0."""
    value = finite_number(name, rate)
    if not 0 < value <= 1:
        raise InvalidInput(f"{name} must lie in (0, 1], got {rate!r}")
    if not value >= SMALLEST_RATE:
        raise InvalidInput(
            f"{name} must be at least {SMALLEST_RATE:g}, below which spending cannot be computed; "
            f"got {rate!r}"
        )
    return value
