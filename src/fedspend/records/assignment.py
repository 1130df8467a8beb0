"""A sampling rate for every record, from its budget.

Guarantee: `exact`, `search` and `scf-clamped` never give a record a rate whose epsilon against the
public, read at `records.ORDERS`, is above its budget. `exact` leaves at most 0.4% of a budget
unspent unless the rate is 0 or 1. A budget that no rate can meet gets rate 0: the record takes no
part. `scf` is the paper's estimate and overspends; training must not use it. Rates depend on
budgets only, never on data, so choosing them costs no privacy; a record's own rate is as private as
its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import choose
from fedspend.records.curve_fit import fit_curve
from fedspend.records.spending import Stretches, epsilon
from fedspend.records.table import LEAST_RATE, ladder
from fedspend.records.terms import Terms, check_budgets

METHODS = ("exact", "scf", "scf-clamped", "search")
SAFE_METHODS = ("exact", "scf-clamped", "search")


def rates(
    epsilons: Any,
    *,
    delta: float,
    rounds: int,
    local_steps: int,
    client_rate: float,
    noise_multiplier: float,
    method: str = "exact",
) -> Any:
    """Sampling rates for records with these budgets; same shape as `epsilons`.

    >>> terms = dict(rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1.0)
    >>> found = rates([0.01, 0.5, 5.0, 500.0], delta=1e-3, **terms)
    >>> found.round(3).tolist()
    [0.0, 0.008, 0.118, 1.0]
    """
    terms = Terms.checked(
        delta=delta,
        rounds=rounds,
        local_steps=local_steps,
        client_rate=client_rate,
        noise_multiplier=noise_multiplier,
    )
    found = assign(check_budgets(epsilons), terms, method)
    return float(found) if found.ndim == 0 else found


def assign(
    budget: FloatArray, terms: Terms, method: str = "exact", stretches: Stretches | None = None
) -> FloatArray:
    """`rates` for arguments that are already checked, except the method's name. With `stretches`,
    the rate of a stretch with share 1.
    """
    if stretches is not None:
        return ladder(terms, stretches=stretches).highest_within(budget)
    match choose("method", method, METHODS):
        case "exact":
            return ladder(terms).highest_within(budget)
        case "scf":
            return fit_curve(terms).rates(budget)
        case "scf-clamped":
            return np.minimum(fit_curve(terms).rates(budget), ladder(terms).highest_within(budget))
        case _:
            return np.array([search(float(one), terms) for one in budget.ravel()]).reshape(
                budget.shape
            )


def search(budget: float, terms: Terms, tolerance: float = 1e-6) -> float:
    """One record's rate, by binary search over its logarithm (after Boenisch et al. 2024). Returns
    the lower end, which was checked to fit.
    """
    settings = vars(terms)
    if epsilon(1.0, **settings) <= budget:
        return 1.0
    if not epsilon(LEAST_RATE, **settings) <= budget:
        return 0.0
    low, high = float(np.log(LEAST_RATE)), 0.0
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if epsilon(float(np.exp(middle)), **settings) <= budget
            else (low, middle)
        )
    return float(np.exp(low))


@dataclass(frozen=True, eq=False)
class Overspending:
    """How far rates that are not a bound would overspend their records' budgets."""

    share: float  # of all records
    worst: float  # largest epsilon / budget
    worst_budget: float  # the budget of that record

    @classmethod
    def of(cls, budget: FloatArray, rate: FloatArray, terms: Terms) -> Overspending:
        """Looks at no more than 2,000 records, spread over all budgets; computes epsilon once per
        distinct rate.
        """
        rows = (
            np.arange(budget.size)
            if budget.size <= 2000
            else np.linspace(0, budget.size - 1, 2000).astype(np.int64)
        )
        by_budget = np.argsort(budget.ravel(), kind="stable")[rows]
        budgets, spent = budget.ravel()[by_budget], epsilon(rate.ravel()[by_budget], **vars(terms))
        ratio = spent / budgets
        worst = int(ratio.argmax())
        return cls(float((ratio > 1 + 1e-9).mean()), float(ratio[worst]), float(budgets[worst]))
