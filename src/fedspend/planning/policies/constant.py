"""Constant noise and rate: `uniform` at each client's own budget, `strictest` at the smallest."""

from __future__ import annotations

import numpy as np

from fedspend.accounting.calibration import uniform
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish


def constant(terms: Terms, wish: Wish) -> Spending:
    """One noise per budget, or, with a past, one per line."""
    budget = wish.budget
    distinct, where = (
        np.unique(budget, return_inverse=True)
        if wish.past is None
        else (budget, np.arange(budget.size))
    )
    found = uniform(distinct, terms.delta, terms.rate, terms.rounds, terms.orders, wish.past)
    noise = np.repeat(found.noise[:, where], terms.rounds, axis=0)
    return Spending(
        noise, np.full_like(noise, terms.rate), found.epsilon[where], found.order[where]
    )


UNIFORM = Policy(
    "uniform", "constant rate and noise, each client at its own budget", spend=constant
)
STRICTEST = Policy(
    "strictest",
    "constant rate and noise, everyone at the smallest budget",
    spend=constant,
    for_all=True,
)
