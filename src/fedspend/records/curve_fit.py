"""Simulation-CurveFitting (Liu et al. 2024, Algorithm 2): the paper's way from budgets to rates,
kept for comparison.

It computes epsilon for a list of rates and fits `exp(a q + b) + c`. The fit looks good (R^2 above
0.99) but is not a bound: for small budgets its relative error is large, and most of those records
would spend several times their budget. So training uses it only clamped to what `exact` allows
(`scf-clamped`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import Refused
from fedspend.records.spending import conversion_costs, divergence
from fedspend.records.terms import Terms

ORDERS = tuple(float(order) for order in range(2, 65))  # whole orders, as in the paper's Lemma 4
SIMULATED = np.linspace(0.0, 1.0, 101)[1:]


@dataclass(frozen=True, eq=False)
class Fit:
    """`epsilon ~ exp(a q + b) + c`, how well it fits, and the points it was fitted to."""

    a: float
    b: float
    c: float
    r_squared: float
    rate: FloatArray
    epsilon: FloatArray

    def predict(self, rate: FloatArray) -> FloatArray:
        """Epsilon at a rate, according to the fit."""
        return np.asarray(np.exp(self.a * rate + self.b) + self.c)

    def rates(self, budget: FloatArray) -> FloatArray:
        """The inverse of the fit, Algorithm 2's estimator: 1 for budgets from epsilon(1) on, 0 for
        budgets below the fit's range.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = (np.log(budget - self.c) - self.b) / self.a
        inside = np.where(budget > self.c, np.clip(np.nan_to_num(inverse, nan=0.0), 0.0, 1.0), 0.0)
        return np.where(budget >= self.epsilon[-1], 1.0, inside)


def simulate(terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Stage I: rates, and the epsilon of each with the classic conversion."""
    alpha = np.asarray(ORDERS)
    reading = divergence(SIMULATED, alpha, terms) + conversion_costs(alpha, terms.delta, "classic")
    return SIMULATED, reading.min(axis=1)


def fit_curve(terms: Terms) -> Fit:
    """Stage II, least squares. `exp(a q + b) + c` is fitted as `s expm1(a q) / a + o`, whose
    parameters are less correlated.
    """
    from scipy.optimize import curve_fit

    rate, epsilon = simulate(terms)

    def shape(q: FloatArray, a: float, slope: float, offset: float) -> FloatArray:
        return np.asarray(slope * (np.expm1(a * q) / a if a != 0 else q) + offset)

    try:
        (a, slope, offset), _ = curve_fit(
            shape, rate, epsilon, p0=(1.0, float(epsilon[-1]), 0.0), maxfev=20_000
        )
    except RuntimeError:
        raise Refused("the curve fit did not converge for these terms; use method exact") from None
    if not (a > 1e-6 and slope > 0):
        raise Refused(
            "epsilon is not a growing exponential of the rate for these terms, so it cannot be "
            "fitted; use method exact"
        )
    residual = float(((shape(rate, a, slope, offset) - epsilon) ** 2).sum())
    r_squared = 1 - residual / float(((epsilon - epsilon.mean()) ** 2).sum())
    return Fit(
        float(a), float(np.log(slope / a)), float(offset - slope / a), r_squared, rate, epsilon
    )
