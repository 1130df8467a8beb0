"""Save, then spend: a low sampling rate before the transition round, the full rate from it on.

Both policies follow Kiani et al. (2025). `spend-as-you-go` calibrates every round to what is left
on the true curve. `spend-as-you-go-literal` is the paper's Algorithm 1 with T-t+1: it subtracts
epsilons, and leaves part of the budget unspent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedspend.accounting.calibration import (
    Band,
    bands,
    check_epsilons,
    check_feasible,
    solve,
    starting_cost,
)
from fedspend.accounting.curves import curve
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish, sealed

_MANY_RATES = 256
KEYS = ("saving_rate", "transition")


def assign_saving_rates(rates: Any, epsilons: Any) -> FloatArray:
    """Assign the saving rates so that the smallest clip norm gets the smallest rate.

    This is Eq. 8 of Kiani et al. A client's clip norm is `c s_t / sigma_n`, so it grows with its
    budget: the strictest budget gets the smallest rate.

    >>> assign_saving_rates([0.7, 0.5, 0.6], [30.0, 20.0, 10.0]).tolist()
    [0.7, 0.6, 0.5]
    """
    multiset, budget = np.asarray(rates, dtype=np.float64), check_epsilons(epsilons)
    if multiset.shape != budget.shape:
        raise InvalidInput(
            f"there must be one saving rate per budget, got {multiset.size} for {budget.size}"
        )
    out = np.empty_like(multiset)
    out[np.argsort(budget, kind="stable")] = np.sort(multiset)
    return out


# One round of a saving policy: (terms, budget, spent curve, rounds left, start, columns) -> log
# noise and binding column.
Step = Callable[
    [Terms, FloatArray, FloatArray, int, FloatArray, slice], tuple[FloatArray, IntArray]
]


def _exact_step(
    terms: Terms,
    budget: FloatArray,
    spent: FloatArray,
    left: int,
    start: FloatArray,
    columns: slice,
) -> tuple[FloatArray, IntArray]:
    """The noise that spends the budget exactly if all remaining rounds use it at the full rate."""
    found = solve(
        curve(terms.rate, terms.orders),
        float(left),
        spent + terms.cost[columns],
        budget,
        start,
        columns=columns,
        tolerance=1e-6,
    )
    return found.log_noise, found.binding


def _literal_step(
    terms: Terms,
    budget: FloatArray,
    spent: FloatArray,
    left: int,
    start: FloatArray,
    columns: slice,
) -> tuple[FloatArray, IntArray]:
    """Algorithm 1, lines 4 and 8: calibrate to `budget - epsilon(spent)`, as if from scratch."""
    cost = terms.cost[columns]
    gone = np.where(spent.max(axis=1) > 0, np.maximum((spent + cost).min(axis=1), 0.0), 0.0)
    remaining = budget - gone
    stuck = ~(remaining > cost.min() * (1 + 1e-6))
    if stuck.any():
        raise InvalidInput(
            f"policy 'spend-as-you-go-literal' runs out of budget for epsilon "
            f"{budget[stuck][0]:g}: with {left} rounds to go, {remaining[stuck][0]:.3g} is left, "
            "less than any noise can meet; use policy 'spend-as-you-go'"
        )
    found = solve(
        curve(terms.rate, terms.orders),
        float(left),
        np.broadcast_to(cost, spent.shape),
        remaining,
        start,
        columns=columns,
    )
    return found.log_noise, found.binding


def save_then_spend(terms: Terms, wish: Wish, step: Step) -> Spending:
    """The saving rate before the transition, the full rate from it on, and the noise of `step`."""
    budget, saving_rate, transition = wish.budget, wish.saving_rate, wish.transition
    past, progress, exact = wish.past, wish.progress, step is _exact_step
    check_feasible(budget, starting_cost(budget.size, terms.orders, terms.delta, past))
    begun = None if past is None else past.curves(terms.orders)
    rounds = np.arange(1, terms.rounds + 1)[:, None]
    saves = (rounds < transition) & (saving_rate < terms.rate)
    rate = np.where(saves, saving_rate, terms.rate)
    noise, binding = np.empty(rate.shape), np.zeros(budget.size, dtype=np.int64)
    steering = _steering_rates(saving_rate)
    done = 0
    for q in np.unique(steering):
        mine = np.flatnonzero(steering == q)
        # The literal policy reads what was spent at the best of all orders, and that order moves:
        # no narrow bands there.
        for band in _bands(terms, budget[mine], exact and past is None):
            rows = mine[band.rows]
            spent = np.zeros((rows.size, len(terms.orders))) if begun is None else begun[rows]
            result = _recurse(
                terms, budget[rows], float(q), saves[:, rows], step, band, exact, spent
            )
            noise[:, rows], binding[rows] = result
            done += rows.size
            if progress is not None:
                progress(done, budget.size)
    adjustable = (rounds >= transition) if exact else np.zeros(rate.shape, dtype=bool)
    return sealed(noise, rate, adjustable, budget, binding, terms, past)


def _bands(terms: Terms, budget: FloatArray, narrow: bool) -> list[Band]:
    margin = 12 if narrow else len(terms.orders)
    return bands(budget, terms.delta, terms.rate, terms.rounds, terms.orders, margin=margin)


def _steering_rates(saving_rate: FloatArray) -> FloatArray:
    """The saving rates that curves are tabulated for; if there are very many, rounded to 0.25%.

    Rounding changes the noise of saving rounds very slightly; sampling and accounting use the true
    rates.
    """
    if np.unique(saving_rate).size <= _MANY_RATES:
        return saving_rate
    return np.minimum(np.exp(np.round(np.log(saving_rate) / 0.0025) * 0.0025), 1.0)


def _recurse(
    terms: Terms,
    budget: FloatArray,
    saving_rate: float,
    saves: Any,
    step: Step,
    band: Band,
    exact: bool,
    begun: FloatArray,
) -> tuple[FloatArray, IntArray]:
    """The recursion S_t = S_{t-1} + rdp(q_t, sigma_t) from S_0 = `begun`.

    For one band of budgets with one saving rate.
    """
    columns = band.columns
    full, low = curve(terms.rate, terms.orders), curve(saving_rate, terms.orders)
    spent = begun[:, columns].copy()
    log_noise = np.empty((terms.rounds, budget.size))
    binding = np.zeros(budget.size, dtype=np.int64)
    at_edge, last = False, band.width - 1
    open_rows = np.arange(budget.size)
    start, previous = band.start, band.start
    for t in range(terms.rounds):
        here, best = step(
            terms, budget[open_rows], spent[open_rows], terms.rounds - t, start, columns
        )
        log_noise[t, open_rows], binding[open_rows] = here, best
        at_edge |= bool(
            ((best == 0) & (columns.start > 0)).any()
            or ((best == last) & (columns.stop < len(terms.orders))).any()
        )
        saving = saves[t, open_rows]
        if exact and not saving.all():
            # From the transition on, the exact policy is constant: what is left is spread evenly
            # over the remaining rounds.
            settled = open_rows[~saving]
            log_noise[t:, settled] = here[~saving]
        for which, used in ((saving, low), (~saving, full)):
            rows = open_rows[which]
            if rows.size and (used is low or not exact):
                spent[rows] += used.rdp(here[which], columns)
        keep = saving if exact else np.ones(open_rows.size, dtype=bool)
        # the noise falls smoothly: extrapolate
        start = (2 * here - previous)[keep] if t else here[keep]
        previous, open_rows = here[keep], open_rows[keep]
        if not open_rows.size:
            break
    if not exact:
        binding = (spent + terms.cost[columns]).argmin(axis=1)
    if at_edge:  # the band was too narrow: take all orders
        wide = Band(band.rows, slice(0, len(terms.orders)), band.start)
        return _recurse(terms, budget, saving_rate, saves, step, wide, exact, begun)
    return np.exp(log_noise), binding + columns.start


EXACT = Policy(
    "spend-as-you-go",
    "low rate before the transition round, noise recalibrated each round to what is left",
    KEYS,
    spend=partial(save_then_spend, step=_exact_step),
)
LITERAL = Policy(
    "spend-as-you-go-literal",
    "Algorithm 1 of Kiani et al. (2025), literally, which leaves part of the budget unspent",
    KEYS,
    spend=partial(save_then_spend, step=_literal_step),
)
