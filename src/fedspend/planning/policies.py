"""Policies: how a budget becomes noise and sampling rates, round by round.

Guarantee: whatever a policy returns has been sealed with the exact kernel, so no schedule spends
more than its budget. All policies but `spend-as-you-go-literal`, which subtracts epsilons,
spend it to within 1e-7. Only budgets and public parameters enter.

| policy | rates | noise |
|---|---|---|
| `uniform` | constant | constant (IDP-FedAvg) |
| `strictest` | constant | constant, everyone at the smallest budget (DP-FedAvg) |
| `spend-as-you-go` | low before the transition round | recalibrated to what is left |
| `spend-as-you-go-literal` | the same | Algorithm 1 of Kiani et al. (2025) with T-t+1 |
| `weights`, `geometric` | constant | `s * weight_t ** -0.5` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.accounting.calibration import (
    Band,
    Sealed,
    bands,
    check_epsilons,
    check_feasible,
    seal,
    solve,
    starting_cost,
    uniform,
)
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.curves import curve
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput, finite_number

SAVING = ("spend-as-you-go", "spend-as-you-go-literal")
WEIGHTED = ("weights", "geometric")
POLICIES = ("uniform", "strictest", *SAVING, *WEIGHTED)

_POLICIES_OF_METHOD: dict[str, tuple[str, ...]] = {
    "dp-fedavg": ("strictest",),
    "idp-fedavg": ("uniform",),
    "time-adaptive": (*SAVING, *WEIGHTED),
    "adaptive-clip": POLICIES,
    "dp-fedsgd": ("strictest",),
    "ae-dpfl": POLICIES,
}
_MANY_RATES = 256


@dataclass(frozen=True)
class Terms:
    """What every schedule of a plan has in common."""

    delta: float
    rate: float
    rounds: int
    orders: tuple[float, ...]

    @property
    def cost(self) -> FloatArray:
        return conversion_cost(self.orders, self.delta)


@dataclass(frozen=True)
class Spending:
    """Schedules as (rounds, n), with what they are certified to spend."""

    noise: FloatArray
    rate: FloatArray
    epsilon: FloatArray
    order: FloatArray


Progress = Callable[[int, int], None]


def policy_for(
    method: str | None, policy: str | None, *, saves: bool, weighted: bool = False
) -> str:
    """The policy that a method implies, or the one asked for if the method allows it.

    >>> policy_for("dp-fedavg", None, saves=False), policy_for(None, None, saves=True)
    ('strictest', 'spend-as-you-go')
    """
    if policy is not None and policy not in POLICIES:
        raise InvalidInput(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}")
    if method == "fedavg":
        raise InvalidInput(
            "method 'fedavg' has no privacy and so no plan; use one of "
            f"{', '.join(_POLICIES_OF_METHOD)}"
        )
    if method is not None and method not in _POLICIES_OF_METHOD:
        raise InvalidInput(
            f"method must be one of {', '.join(_POLICIES_OF_METHOD)}; got {method!r}"
        )
    natural = "spend-as-you-go" if saves else "weights" if weighted else "uniform"
    if method is None:
        return policy or natural
    allowed = _POLICIES_OF_METHOD[method]
    if policy is None:
        return natural if natural in allowed else allowed[0]
    if policy not in allowed:
        raise InvalidInput(
            f"policy {policy!r} contradicts method {method!r}, which means {' or '.join(allowed)}; "
            "drop one of the two"
        )
    return policy


def assign_saving_rates(rates: Any, epsilons: Any) -> FloatArray:
    """Eq. 8 of Kiani et al.: hand out the given saving rates so that the smallest clip norm gets
    the smallest rate.

    A client's clip norm is `c s_t / sigma_n`, so it grows with its budget: the strictest budget
    gets the smallest rate.

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


def spend(
    policy: str,
    terms: Terms,
    budget: FloatArray,
    saving_rate: FloatArray,
    transition: IntArray,
    weights: FloatArray,
    progress: Progress | None = None,
    past: Mechanisms | None = None,
) -> Spending:
    """Run one policy over distinct (budget, saving rate, transition) triples, each with its own
    `past` if there is one.

    Then the epsilon returned is that of past and schedule together.
    """
    if policy in ("uniform", "strictest"):  # the caller sees to it that all follow the strictest
        return constant(terms, budget, past)
    if policy in WEIGHTED:
        return weighted(terms, budget, weights, past)
    step = _exact_step if policy == "spend-as-you-go" else _literal_step
    return save_then_spend(terms, budget, saving_rate, transition, step, progress, past)


def constant(terms: Terms, budget: FloatArray, past: Mechanisms | None = None) -> Spending:
    """The same rate and noise in every round."""
    distinct, where = (
        np.unique(budget, return_inverse=True) if past is None else (budget, np.arange(budget.size))
    )
    found = uniform(distinct, terms.delta, terms.rate, terms.rounds, terms.orders, past)
    noise = np.repeat(found.noise[:, where], terms.rounds, axis=0)
    return Spending(
        noise, np.full_like(noise, terms.rate), found.epsilon[where], found.order[where]
    )


def weighted(
    terms: Terms, budget: FloatArray, weights: FloatArray, past: Mechanisms | None = None
) -> Spending:
    """`sigma_t = s w_t^(-1/2)`: at large noise a round's share of the budget is its weight. One s
    per budget, solved exactly.
    """
    log_shape = -0.5 * np.log(weights / weights.mean())
    already = starting_cost(budget.size, terms.orders, terms.delta, past)
    check_feasible(budget, already)
    log_noise, binding = np.empty(budget.size), np.empty(budget.size, dtype=np.int64)
    for band in bands(
        budget,
        terms.delta,
        terms.rate,
        terms.rounds,
        terms.orders,
        margin=12,
        wide=past is not None,
    ):
        cost = already[band.rows, band.columns]
        found = solve(
            curve(terms.rate, terms.orders),
            1.0,
            cost,
            budget[band.rows],
            band.start,
            log_shape,
            band.columns,
        )
        log_noise[band.rows], binding[band.rows] = (
            found.log_noise,
            found.binding + band.columns.start,
        )
    noise = np.exp(log_noise + log_shape[:, None])
    rate = np.full_like(noise, terms.rate)
    return _sealed(noise, rate, np.ones(noise.shape, dtype=bool), budget, binding, terms, past)


def _sealed(
    noise: FloatArray,
    rate: FloatArray,
    adjustable: Any,
    budget: FloatArray,
    binding: IntArray,
    terms: Terms,
    past: Mechanisms | None,
) -> Spending:
    found: Sealed = seal(
        noise, rate, adjustable, budget, binding, np.asarray(terms.orders), terms.delta, past=past
    )
    return Spending(found.noise, rate, found.epsilon, found.order)


def by_itself(spending: Spending, terms: Terms) -> Spending:
    """The same schedules with the epsilon that they spend alone, whatever was spent before them."""
    alone = Mechanisms.of_schedules(
        spending.noise, spending.rate, discrete=terms.orders == WHOLE_ORDERS
    )
    epsilon, order = alone.best(np.full(spending.epsilon.size, terms.delta))
    return Spending(spending.noise, spending.rate, epsilon, order)


def one_for_all(spending: Spending) -> Spending:
    """The schedule with the most noise, for everyone. Constant schedules only: one of them has the
    most in every round.
    """
    most = [int(spending.noise[0].argmax())]
    return Spending(
        spending.noise[:, most],
        spending.rate[:, most],
        spending.epsilon[most],
        spending.order[most],
    )


# --- saving and spending ---

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
    """The smallest noise that, kept up for all rounds left at the full rate, would end exactly at
    the budget.
    """
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
    """Algorithm 1, lines 4 and 8: calibrate anew to `budget - epsilon(spent)`, as if nothing had
    been spent.
    """
    cost = terms.cost[columns]
    gone = np.where(spent.max(axis=1) > 0, np.maximum((spent + cost).min(axis=1), 0.0), 0.0)
    remaining = budget - gone
    stuck = ~(remaining > cost.min() * (1 + 1e-6))
    if stuck.any():
        raise InvalidInput(
            f"policy 'spend-as-you-go-literal' runs out for epsilon {budget[stuck][0]:g}: "
            f"{remaining[stuck][0]:.3g} is left with {left} rounds to go, less than any noise can "
            "meet; use policy 'spend-as-you-go'"
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


def save_then_spend(
    terms: Terms,
    budget: FloatArray,
    saving_rate: FloatArray,
    transition: IntArray,
    step: Step,
    progress: Progress | None = None,
    past: Mechanisms | None = None,
) -> Spending:
    """Sample at the saving rate before the transition round and at the full rate from it on, with
    the noise that `step` gives.
    """
    exact = step is _exact_step
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
        # The literal policy reads what was spent at every order, and that order wanders: no narrow
        # bands there.
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
    return _sealed(noise, rate, adjustable, budget, binding, terms, past)


def _bands(terms: Terms, budget: FloatArray, narrow: bool) -> list[Band]:
    margin = 12 if narrow else len(terms.orders)
    return bands(budget, terms.delta, terms.rate, terms.rounds, terms.orders, margin=margin)


def _steering_rates(saving_rate: FloatArray) -> FloatArray:
    """The saving rates that curves are tabulated for: all of them, or, if there are very many,
    rounded to 0.25%.

    This moves the noise of saving rounds by a hair; what is sampled and what is accounted stay at
    the true rates.
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
    """The recursion S_t = S_{t-1} + rdp(q_t, sigma_t) from S_0 = `begun`, for one band of budgets
    with one saving rate.
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
            # From the transition on the exact policy is constant: what is left is spread evenly
            # over the rounds left.
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


def round_weights(policy: str, weights: Any, rounds: int) -> FloatArray:
    """Per-round weights: `rounds` positive numbers, or for `geometric` the ratio from one round to
    the next.
    """
    if policy == "geometric":
        ratio = finite_number(
            "weights (the ratio of policy 'geometric')", 1.05 if weights is None else weights
        )
        if not ratio > 0:
            raise InvalidInput(
                f"weights (the ratio of policy 'geometric') must be positive, got {weights!r}"
            )
        with np.errstate(over="ignore"):
            array: FloatArray = np.power(ratio, np.arange(rounds) - (rounds - 1) / 2)
    elif weights is None:
        raise InvalidInput("policy 'weights' needs weights: one positive number per round")
    else:
        try:
            array = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInput(f"weights must be numbers, got {weights!r}") from None
    if array.shape != (rounds,):
        raise InvalidInput(
            f"weights must be one number per round: got {array.size} for {rounds} rounds"
        )
    if not np.all(np.isfinite(array) & (array > 0)):
        raise InvalidInput(
            "weights must be positive and finite, got "
            f"{array[~(np.isfinite(array) & (array > 0))][0]!r}"
        )
    if array.max() / array.min() > 1e6:
        raise InvalidInput(
            f"weights must lie within a factor of 1e6 of each other, got {array.min():g} to "
            f"{array.max():g}"
        )
    return array
