"""Figures 2 and 5 of Liu et al. (2024), and what its curve fit overspends: accounting, no training.

Rates to epsilons by fedspend's accountant for records, against an observer of every model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tables import markdown

from fedspend.records.curve_fit import fit_curve
from fedspend.records.spending import conversion_costs, divergence, epsilon
from fedspend.records.terms import Terms

RATES = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
ORDERS = np.arange(2.0, 129.0)
# T rounds of tau local steps at client rate p; Figure 2 has a single stage of 100 steps
FIGURES = {
    "Figure 2": Terms.checked(
        delta=1e-3, rounds=100, local_steps=1, client_rate=1.0, noise_multiplier=1.0
    ),
    "Figure 5 (left)": Terms.checked(
        delta=1e-3, rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1.0
    ),
}
BUDGETS = (0.1, 1.0, 5.0)  # of its three levels
MULTIPLIERS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, eq=False)
class Curve:
    """Epsilon by order for each of `RATES`, (rates, orders)."""

    by_order: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def best(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self.by_order.min(axis=1)

    @property
    def order(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        found: np.ndarray[Any, np.dtype[np.float64]] = ORDERS[self.by_order.argmin(axis=1)]
        return found

    @property
    def as_claimed(self) -> bool:
        """One epsilon for each rate, growing with it, and a best order that falls as it grows."""
        return bool((np.diff(self.best) > 0).all() and (np.diff(self.order) <= 0).all())


@cache
def curve(terms: Terms) -> Curve:
    # the conversion that the paper uses
    cost = conversion_costs(ORDERS, terms.delta, "classic")
    return Curve(divergence(np.array(RATES), ORDERS, terms) + cost)


def curves() -> str:
    body = []
    for name, terms in FIGURES.items():
        found = curve(terms)
        cells = [
            f"{one:.3g} at {order:g}" for one, order in zip(found.best, found.order, strict=True)
        ]
        body.append([name, *cells])
    return markdown(["epsilon at its best order, by rate", *map(str, RATES)], body)


@cache
def spent_over_budget(multiplier: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What records with `BUDGETS` spend at the rates of the fit, in multiples of the budget."""
    named = {"delta": 1e-4, "rounds": 15, "local_steps": 50, "client_rate": 0.8}
    fit = fit_curve(Terms.checked(**named, noise_multiplier=multiplier))
    budgets = np.array(BUDGETS)
    spent = epsilon(fit.rates(budgets), **named, noise_multiplier=multiplier)
    return np.asarray(spent / budgets)


@cache
def overspending() -> str:
    body = [
        [f"{multiplier:g}", *(f"{share:.2f}" for share in spent_over_budget(multiplier))]
        for multiplier in MULTIPLIERS
    ]
    table = markdown(
        ["noise multiplier", *(f"budget {budget:g}: spent / budget" for budget in BUDGETS)], body
    )
    unused = any((spent_over_budget(multiplier) == 0).any() for multiplier in MULTIPLIERS)
    return table + (
        "\n\n0.00: the fit gives these records rate 0, so they are never used." if unused else ""
    )
