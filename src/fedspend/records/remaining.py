"""Rates for records that have spent before: the largest at which past and coming rounds together
stay within the budget.

Guarantee: a record's past and its new rounds together cost at most its budget, by the exact kernel
at `records.ORDERS`, rounded up. Rates come from the ladder of `table`, whose rungs are close enough
that at most 0.4% of a budget stays unspent unless the rate is 0 or 1. A record that has nothing
left gets rate 0. Only budgets and past mechanisms are used, never data.

Records with equal pasts are handled together: a million records with one past cost one table
lookup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from fedspend.errors import Refused
from fedspend.records.assignment import assign
from fedspend.records.curve_fit import fit_curve
from fedspend.records.filtering import (
    check_full_batch,
    few_values,
    norm_budgets,
    steps_affordable,
    stopping,
)
from fedspend.records.policies import Wanted, round_shares, stretches_of
from fedspend.records.spending import Stretches, divergence
from fedspend.records.table import SAFETY, Ladder, ladder
from fedspend.records.terms import Terms


@dataclass(frozen=True, eq=False)
class Past:
    """What records have spent: the distinct histories, and which one each record has."""

    mechanisms: Mechanisms
    of_record: IntArray

    def joined(self, other: Past) -> Past:
        """This past and another of the same records, combined."""
        first, of_record = distinct_rows(self.of_record, other.of_record)
        parts = [past.mechanisms.take(past.of_record[first]) for past in (self, other)]
        return Past(Mechanisms.joined(parts, first.size), of_record)

    def curves(self) -> Iterator[tuple[IntArray, FloatArray]]:
        """For each history, its records and its Rényi curve."""
        used, of_record = np.unique(self.of_record, return_inverse=True)
        mine = self.mechanisms.take(used)
        curves = mine.curves(ORDERS, exact=True)
        fractional = np.asarray(ORDERS) % 1 != 0
        # discrete noise is accounted at whole orders only
        curves[np.ix_(mine.whole(), fractional)] = np.inf
        by_history = np.split(
            np.argsort(of_record, kind="stable"), np.cumsum(np.bincount(of_record))[:-1]
        )
        return zip(by_history, curves, strict=True)

    def empty(self) -> BoolArray:
        """Which records have spent nothing yet."""
        busy = np.bincount(self.mechanisms.history, minlength=self.mechanisms.histories) > 0
        return ~busy[self.of_record]


def highest_rates(budget: FloatArray, past: Past, terms: Terms, stretches: Stretches) -> FloatArray:
    """For each record, the largest rate that its budget can pay for on top of its past: the rate of
    a stretch with share 1.
    """
    rungs, run = _rungs(terms, stretches)
    rate = np.zeros(budget.size)
    for rows, before in past.curves():
        together = np.maximum((run + before).min(axis=1), 0.0)
        rate[rows] = Ladder(rungs, np.maximum.accumulate(together * (1 + SAFETY))).highest_within(
            budget[rows]
        )
    return rate


@lru_cache(maxsize=8)
def _rungs(terms: Terms, stretches: Stretches) -> tuple[FloatArray, FloatArray]:
    """The rates of the ladder, and the cost of all rounds at each, (rates, orders), including
    conversion.
    """
    rate = ladder(terms, stretches=stretches).rate
    return rate, divergence(rate, np.asarray(ORDERS), terms, stretches=stretches) + conversion_cost(
        ORDERS, terms.delta
    )


def steps_on_top(rate: float, budget: FloatArray, past: Past, terms: Terms) -> IntArray:
    """How many steps at `rate` each record can pay for on top of its past, at most all of them."""
    steps = np.zeros(budget.size, dtype=np.int64)
    for rows, before in past.curves():
        steps[rows] = steps_affordable(rate, budget[rows], terms, before)
    return steps


def norms_on_top(budget: FloatArray, past: Past, terms: Terms) -> FloatArray:
    """The norm budget of each record on top of its past."""
    within = np.zeros(budget.size)
    for rows, before in past.curves():
        within[rows] = norm_budgets(budget[rows], terms, before)
    return within


def table_on_top(
    budget: FloatArray, past: Past, terms: Terms, wanted: Wanted, left_out: BoolArray | None = None
) -> tuple[FloatArray, FloatArray | None, IntArray]:
    """`policies.rate_table` for records with a past: rates and steps, each (rounds, classes), and
    the class of each record.

    Methods that compare budgets compare what is left of them: the epsilon that a run at the largest
    rate would spend by itself. A record that is left out, or has nothing left, takes no part and
    does not affect the rates of others.
    """
    shares = round_shares(terms.rounds, wanted)
    most = highest_rates(budget, past, terms, stretches_of(shares))
    most = most if left_out is None else np.where(left_out, 0.0, most)
    usable = most > 0
    if not usable.any():
        raise Refused(
            "no record has enough left for even the smallest rate; see fedspend ledger balance "
            "--unit record"
        )
    left = np.where(past.empty(), budget, left_at(most, terms, stretches_of(shares)))
    mean = left[usable].mean(keepdims=True)
    match wanted.method:
        case "minimum":
            rate = np.where(usable, most[usable].min(), 0.0)
        case "dropout":
            rate = np.where(usable & (left >= mean), np.minimum(assign(mean, terms), most), 0.0)
        case "filter" if wanted.charge == "norm":
            check_full_batch(terms)
            return stopping(1.0, few_values(norms_on_top(budget, past, terms)), terms)
        case "filter":
            common = (
                wanted.common_rate
                if wanted.common_rate is not None
                else float(assign(mean, terms)[0])
            )
            return stopping(common, steps_on_top(common, budget, past, terms), terms)
        case _ if wanted.rates == "scf-clamped":
            rate = np.minimum(fit_curve(terms).rates(left), most)
        case _:
            rate = most
    values, of_record = np.unique(rate, return_inverse=True)
    return shares[:, None] * values, None, of_record


def left_at(rate: FloatArray, terms: Terms, stretches: Stretches) -> FloatArray:
    """The epsilon that a run at each of these rates spends by itself."""
    rungs = ladder(terms, stretches=stretches)
    at = np.searchsorted(rungs.rate, rate, side="right")
    return np.concatenate([[0.0], rungs.epsilon])[at]
