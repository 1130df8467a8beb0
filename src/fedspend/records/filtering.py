"""The Rényi filter: a record takes part until its budget is used up.

By the clip (default), every record is sampled at one common rate until the last local step that it
can pay for. In its last round it takes part in the first `k` of `tau` steps only; that round costs
`two_stage(k r(q), client_rate)`. Who is active when is planned and public (Figure 7 of Liu et al.
2024). By its own norms (Feldman and Zrnic 2021), every record is in every step as long as its
squared clipped norms, in squared clips, add up to at most `b`. Its divergence is then at most
`a b / (2 sigma^2)` at every order `a`, that of `b` steps at the clip; who is active when is private
(docs/records.md has the conditions).

Guarantee: what a record may pay costs at most its budget, read at `records.ORDERS` and rounded up.
By the clip, one step more would cost more than the budget. Who allows more never stops earlier.
"""

from __future__ import annotations

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import two_stage
from fedspend.accounting.rdp import ORDERS, rdp
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput
from fedspend.records.assignment import assign
from fedspend.records.table import STEP
from fedspend.records.terms import Terms

_SAFETY = 1e-8  # above the kernel's own error, and above what a million subtractions can lose
_MANY = 2000  # different norm budgets, beyond which neighbours share one


def filter_table(
    budget: FloatArray, terms: Terms, common_rate: float | None
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Rates and steps, each (rounds, classes), and the class of each record. By default at the mean
    budget's rate.
    """
    rate = (
        float(assign(budget.mean(keepdims=True), terms)[0]) if common_rate is None else common_rate
    )
    if not rate > 0:
        raise InvalidInput(
            "no rate can meet the mean budget, so there is no common rate to filter at; choose "
            "more noise"
        )
    return stopping(rate, steps_affordable(rate, budget, terms), terms)


def norm_table(budget: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray, IntArray]:
    """The same for a filter by norms: a round can cost at most its steps at the clip, so that many
    of `b` are charged to it.
    """
    check_full_batch(terms)
    return stopping(1.0, few_values(norm_budgets(budget, terms)), terms)


def stopping(
    rate: float, total: FloatArray | IntArray, terms: Terms
) -> tuple[FloatArray, FloatArray, IntArray]:
    """One rate for as many steps in `total` as each record has, then 0: rates, steps and the class
    of each record.
    """
    values, of_record = np.unique(total, return_inverse=True)
    steps = by_round(values.astype(np.float64), terms)
    return np.where(steps > 0, rate, 0.0), steps, of_record


def steps_affordable(
    rate: float, budget: FloatArray, terms: Terms, past: FloatArray | float = 0.0
) -> IntArray:
    """How many of all steps at `rate` each budget pays for, on top of a `past` curve that all of
    them share.
    """
    steps: IntArray = np.searchsorted(cost_of_steps(rate, terms, past), budget, side="right")
    return steps


def cost_of_steps(rate: float, terms: Terms, past: FloatArray | float = 0.0) -> FloatArray:
    """Epsilon of the first 1, 2, ... of all `rounds * local_steps` steps at this rate, rounded up;
    it never falls.
    """
    alpha, cost = np.asarray(ORDERS), conversion_cost(ORDERS, terms.delta) + past
    inner = np.arange(1, terms.local_steps + 1)[:, None] * rdp(rate, terms.noise_multiplier, alpha)
    in_round = two_stage(inner, np.array(terms.client_rate), alpha)  # (steps, orders)
    epsilon = [(t * in_round[-1] + in_round + cost).min(axis=1) for t in range(terms.rounds)]
    return np.maximum.accumulate(np.maximum(np.concatenate(epsilon), 0.0)) * (1 + _SAFETY)


def norm_budgets(budget: FloatArray, terms: Terms, past: FloatArray | float = 0.0) -> FloatArray:
    """The largest `b` with `min_a a b / (2 sigma^2) + past(a) + cost(a) <= epsilon`, rounded down;
    at most all steps at the clip.

    >>> norm_budgets(np.array([0.9, 1.8, 4.2]), Terms(1e-3, 100, 1, 1.0, 10.0)).round(2).tolist()
    [9.91, 32.34, 100.0]
    """
    alpha, cost = np.asarray(ORDERS), conversion_cost(ORDERS, terms.delta) + past
    best = np.zeros(budget.shape)
    for order, price in zip(alpha, cost, strict=True):
        np.maximum(
            best,
            (budget * (1 - _SAFETY) - price) * (2 * terms.noise_multiplier**2 / order),
            out=best,
        )
    return np.minimum(best * (1 - _SAFETY), terms.rounds * terms.local_steps)


def few_values(within: FloatArray) -> FloatArray:
    """Norm budgets as they are, or, if there are very many different ones, rounded down to values
    that neighbours share.
    """
    if np.unique(within).size <= _MANY:
        return within
    return np.where(
        within > 0,
        np.exp(np.floor(np.log(np.maximum(within, 1e-300)) / STEP) * STEP) * (1 - _SAFETY),
        0.0,
    )


def by_round(total: FloatArray, terms: Terms) -> FloatArray:
    """(rounds, classes): as many steps as early as possible."""
    before = terms.local_steps * np.arange(terms.rounds)[:, None]
    return np.clip(total - before, 0.0, terms.local_steps)


def active_by_step(steps: FloatArray, members: IntArray, local_steps: int) -> IntArray:
    """(rounds * local steps,): how many members of all classes take part in each step of (rounds,
    classes) whole `steps`.
    """
    ending = np.stack(
        [
            np.bincount(row.astype(np.int64), weights=members, minlength=local_steps + 1)
            for row in steps
        ]
    )
    lasting: IntArray = ending[:, :0:-1].cumsum(axis=1)[:, ::-1].ravel().astype(np.int64)
    return lasting


def check_steps(rate: FloatArray, steps: FloatArray | None, terms: Terms, *, by_norm: bool) -> None:
    """A class takes the first few steps of a round, and none at rate 0. By norms, it pays as early
    as it could have to.
    """
    most = terms.local_steps
    steps = np.where(rate > 0, float(most), 0.0) if steps is None else steps
    if not (
        steps.shape == rate.shape
        and np.all((steps >= 0) & (steps <= most))
        and np.all((steps > 0) == (rate > 0))
    ):
        raise InvalidInput(
            f"a class takes from 1 to {most} steps in a round, and none in a round at rate 0"
        )
    if by_norm:
        check_full_batch(terms, rate)
        if not np.all((steps[1:] == 0) | (steps[:-1] == most)):
            raise InvalidInput(
                "norms may all be paid in the first rounds, so a round must hold all that is left, "
                "up to its steps"
            )
    elif not np.all(steps == np.floor(steps)):
        raise InvalidInput("a sampled record takes part in whole steps only")


def check_full_batch(terms: Terms, rate: FloatArray | None = None) -> None:
    """A norm is paid where it is used. Sampling hides who was in a step, and no theorem turns that
    into a lower price here.
    """
    if not (terms.client_rate == 1 and (rate is None or np.all((rate == 0) | (rate == 1)))):
        raise InvalidInput(
            "a filter by norms has every record and every client in every step: set privacy.rate "
            "and rates to 1"
        )
