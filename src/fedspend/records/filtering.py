"""The Rényi filter: a record takes part until its budget is used up.

Charged by the clip (default), every record is sampled at one common rate until the last local step
that it can pay for. In its last round it takes part only in the first `k` of `tau` steps; that
round costs `two_stage(k r(q), client_rate)`. Which records are active when is planned and public
(Figure 7 of Liu et al. 2024). Charged by its own norms (Feldman and Zrnic 2021), every record is in
every step as long as its squared clipped norms, in squared clips, add up to at most `b`. Its
divergence is then at most `a b / (2 sigma^2)` at every order `a`, the same as for `b` steps at the
clip; which records are active when is private (docs/how-to/records.md has the conditions).

Guarantee: the steps or norms that a record may use cost at most its budget, read at
`records.ORDERS` and rounded up. Charged by the clip, one more step would cost more than the budget.
A record with a larger budget never stops earlier.
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

_SAFETY = 1e-8  # above the kernel's own error and the rounding error of a million subtractions
_MANY = 2000  # with more distinct norm budgets than this, neighbours share one


def filter_table(
    budget: FloatArray, terms: Terms, common_rate: float | None
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Rates and steps, each (rounds, classes), and the class of each record. The default rate is
    that of the mean budget.
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
    """`filter_table` for a filter by norms: a round can cost at most its steps at the clip, so that
    many of `b` are charged to it.
    """
    check_full_batch(terms)
    return stopping(1.0, few_values(norm_budgets(budget, terms)), terms)


def stopping(
    rate: float, total: FloatArray | IntArray, terms: Terms
) -> tuple[FloatArray, FloatArray, IntArray]:
    """One rate until each record has taken its `total` steps, then 0: rates, steps and the class of
    each record.
    """
    values, of_record = np.unique(total, return_inverse=True)
    steps = by_round(values.astype(np.float64), terms)
    return np.where(steps > 0, rate, 0.0), steps, of_record


def steps_affordable(
    rate: float, budget: FloatArray, terms: Terms, past: FloatArray | float = 0.0
) -> IntArray:
    """How many steps at `rate` each budget pays for, on top of a `past` curve they all share."""
    steps: IntArray = np.searchsorted(cost_of_steps(rate, terms, past), budget, side="right")
    return steps


def cost_of_steps(rate: float, terms: Terms, past: FloatArray | float = 0.0) -> FloatArray:
    """Epsilon of the first 1, 2, ... of all `rounds * local_steps` steps at this rate, rounded up;
    never decreasing.
    """
    alpha, cost = np.asarray(ORDERS), conversion_cost(ORDERS, terms.delta) + past
    inner = np.arange(1, terms.local_steps + 1)[:, None] * rdp(rate, terms.noise_multiplier, alpha)
    in_round = two_stage(inner, np.array(terms.client_rate), alpha)  # (steps, orders)
    epsilon = [(t * in_round[-1] + in_round + cost).min(axis=1) for t in range(terms.rounds)]
    return np.maximum.accumulate(np.maximum(np.concatenate(epsilon), 0.0)) * (1 + _SAFETY)


def norm_budgets(budget: FloatArray, terms: Terms, past: FloatArray | float = 0.0) -> FloatArray:
    """The largest `b` with `min_a a b / (2 sigma^2) + past(a) + cost(a) <= epsilon`, rounded down
    and at most the number of all steps.

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
    """The norm budgets unchanged or, if very many are distinct, rounded down to values that
    neighbours share.
    """
    if np.unique(within).size <= _MANY:
        return within
    return np.where(
        within > 0,
        np.exp(np.floor(np.log(np.maximum(within, 1e-300)) / STEP) * STEP) * (1 - _SAFETY),
        0.0,
    )


def by_round(total: FloatArray, terms: Terms) -> FloatArray:
    """Steps by (rounds, classes), taken as early as possible."""
    before = terms.local_steps * np.arange(terms.rounds)[:, None]
    return np.clip(total - before, 0.0, terms.local_steps)


def active_by_step(steps: FloatArray, members: IntArray, local_steps: int) -> IntArray:
    """How many members of all classes take part in each step, (rounds * local steps,), given whole
    `steps`, (rounds, classes).
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
    """Checks that a class takes the first steps of a round, and none at rate 0; by norms, that it
    is charged as early as it might have to pay.
    """
    most = terms.local_steps
    steps = np.where(rate > 0, float(most), 0.0) if steps is None else steps
    if not (
        steps.shape == rate.shape
        and np.all((steps >= 0) & (steps <= most))
        and np.all((steps > 0) == (rate > 0))
    ):
        raise InvalidInput(
            f"a class must take 1 to {most} steps in a round, and none in a round at rate 0"
        )
    if by_norm:
        check_full_batch(terms, rate)
        if not np.all((steps[1:] == 0) | (steps[:-1] == most)):
            raise InvalidInput(
                "norms may all be paid in the first rounds, so each round must be charged all "
                "that is left, up to its steps"
            )
    elif not np.all(steps == np.floor(steps)):
        raise InvalidInput("a sampled record must take part in a whole number of steps")


def check_full_batch(terms: Terms, rate: FloatArray | None = None) -> None:
    """Norms need full batches: sampling hides who was in a step, but no theorem turns that into a
    lower price here.
    """
    if not (terms.client_rate == 1 and (rate is None or np.all((rate == 0) | (rate == 1)))):
        raise InvalidInput(
            "a filter by norms needs every record and every client in every step: set "
            "privacy.rate and rates to 1"
        )
