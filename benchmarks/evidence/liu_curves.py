"""Figures 2, 5 and 6 of Liu et al. (2024), and what its curve fit overspends: accounting, no
training.

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
    "Figure 2 (right)": Terms.checked(
        delta=1e-3, rounds=100, local_steps=1, client_rate=1.0, noise_multiplier=1.0
    ),
    "Figure 5 (left)": Terms.checked(
        delta=1e-3, rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1.0
    ),
}
SHOWN = (2, 4, 8, 16, 32, 64, 128)  # the orders in the table of Figure 2 (left)
# Figure 6 names neither its client rate nor its noise: the rate is that of Figure 5
FIGURE_6: dict[str, Any] = {"delta": 1e-5, "rounds": 20, "local_steps": 5, "client_rate": 0.5}
NOISES = (0.5, 1.0, 2.0, 4.0, 8.0)
# beyond 128 in larger steps: rare records under much noise are read there
FAR_ORDERS = np.unique(np.append(ORDERS, np.geomspace(128, 2048, 17).round()))
FIGURE_8: dict[str, Any] = {
    "delta": 1e-4,
    "rounds": 15,
    "local_steps": 50,
    "client_rate": 0.8,
}  # for MNIST
BUDGETS = (0.1, 1.0, 5.0)  # of its three levels
MULTIPLIERS = (1.0, 2.0, 4.0, 6.0, 8.0)
ACCOUNTED = (1.0, 2.0, 4.0, 6.0, 8.0)


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


@dataclass(frozen=True, eq=False)
class Bends:
    """Figure 2 (left): the divergence of 100 steps by order for each of `RATES`, and where it
    bends: the order after which its logarithm grows fastest with the order's, and how fast.
    """

    by_order: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def _slopes(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.diff(np.log(self.by_order), axis=1) / np.diff(np.log(ORDERS))

    @property
    def order(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        found: np.ndarray[Any, np.dtype[np.float64]] = ORDERS[self._slopes.argmax(axis=1)]
        return found

    @property
    def slope(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self._slopes.max(axis=1)

    @property
    def as_claimed(self) -> bool:
        """A straight line at rate 1; below it a bend, which comes earlier and is less sharp the
        larger the rate.
        """
        terms = FIGURES["Figure 2 (right)"]
        line = terms.rounds * ORDERS / (2 * terms.noise_multiplier**2)
        return bool(
            np.allclose(self.by_order[-1], line)
            and (np.diff(self.order[:-1]) < 0).all()
            and (np.diff(self.slope) < 0).all()
        )


@cache
def bends() -> Bends:
    return Bends(divergence(np.array(RATES), ORDERS, FIGURES["Figure 2 (right)"]))


def where_the_paper_puts_it(rate: float, noise: float = 1.0) -> float:
    """The first order at which order x rate x exp(divergence of one Gaussian) reaches 1 / rate.

    >>> where_the_paper_puts_it(0.1)
    6.0
    """
    reached = ORDERS * rate * np.exp(ORDERS / (2 * noise**2)) >= 1 / rate
    return float(ORDERS[reached.argmax()])


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def divergences() -> str:
    """Figure 2 (left), as a table."""
    found = bends()
    at = np.searchsorted(ORDERS, SHOWN)
    body = []
    for rate, row, order, slope in zip(
        RATES, found.by_order[:, at], found.order, found.slope, strict=True
    ):
        bend = [f"{order:g}", f"{where_the_paper_puts_it(rate):g}"] if rate < 1 else ["none"] * 2
        body.append([f"{rate:g}", *(_short(one) for one in row), *bend, f"{slope:.1f}"])
    headings = ["rate", *(f"order {order}" for order in SHOWN)]
    return markdown(
        [*headings, "bends after order", "the paper's formula", "slope there (a line: 1)"], body
    )


@cache
def by_noise() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Figure 6: epsilon at its best order, (`NOISES`, `RATES`)."""
    cost = conversion_costs(FAR_ORDERS, FIGURE_6["delta"], "classic")
    rates = np.array(RATES)
    found = [
        divergence(rates, FAR_ORDERS, Terms.checked(**FIGURE_6, noise_multiplier=noise)) + cost
        for noise in NOISES
    ]
    return np.array([one.min(axis=1) for one in found])


def noise_as_claimed() -> bool:
    """Epsilon grows with the rate under every noise and falls with the noise at every rate, so that
    more noise allows every budget a larger rate.
    """
    found = by_noise()
    return bool((np.diff(found, axis=1) > 0).all() and (np.diff(found, axis=0) < 0).all())


def noises() -> str:
    """Figure 6, as a table."""
    body = [
        [f"{noise:g}", *(f"{one:.3g}" for one in row)]
        for noise, row in zip(NOISES, by_noise(), strict=True)
    ]
    return markdown(["noise multiplier; epsilon by rate", *map(str, RATES)], body)


@cache
def r_squared() -> float:
    """Figure 5 (right): how well the fit explains epsilon by rate."""
    return fit_curve(FIGURES["Figure 5 (left)"]).r_squared


def fits_well() -> bool:
    """The paper says that its fit has an R^2 above 99%."""
    return r_squared() > 0.99


@cache
def fitted_rates(multiplier: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The rates that the fit gives to `BUDGETS` in the setting of Figure 8 for MNIST."""
    fit = fit_curve(Terms.checked(**FIGURE_8, noise_multiplier=multiplier))
    return fit.rates(np.array(BUDGETS))


@cache
def spent_over_budget(multiplier: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What records with `BUDGETS` spend at the rates of the fit, in multiples of the budget."""
    spent = epsilon(fitted_rates(multiplier), **FIGURE_8, noise_multiplier=multiplier)
    return np.asarray(spent / np.array(BUDGETS))


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


@cache
def rounds_paid(multiplier: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many of all rounds `BUDGETS` pay for at the rates of the fit: with an accountant that
    looks before every round, a record then stops. Rate 0 is no round.
    """
    rates = fitted_rates(multiplier)
    terms = {**FIGURE_8, "noise_multiplier": multiplier}
    spent = np.array(
        [epsilon(rates, **{**terms, "rounds": n + 1}) for n in range(FIGURE_8["rounds"])]
    )
    return np.asarray(((spent <= np.array(BUDGETS)) & (rates > 0)).sum(axis=0))


def accountant() -> str:
    """What is left of the fit's rates if nobody may overspend."""
    body = [
        [f"{multiplier:g}", *map(str, rounds_paid(multiplier).tolist())] for multiplier in ACCOUNTED
    ]
    rounds = FIGURE_8["rounds"]
    return markdown(
        ["noise multiplier", *(f"budget {one:g}: rounds of {rounds}" for one in BUDGETS)], body
    )
