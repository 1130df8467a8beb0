"""From Rényi curves to (epsilon, delta), read at a published set of orders.

`eps(delta) = min_a [ R(a) + c(a) ]`, `c(a) = log(1 - 1/a) - (log delta + log a) / (a - 1)`
(Canonne, Kamath, Steinke 2020, Proposition 12). Any order gives a valid bound, so reading at fewer
orders is safe and merely reads higher.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.accounting.rdp import check_orders
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number

SMALLEST_DELTA = 1e-300
LEAST_PLANNED_DELTA = 1e-12


def check_delta(delta: Any) -> float:
    """`delta` as a float strictly between 0 and 1."""
    value = finite_number("delta", delta)
    if not 0 < value < 1:
        raise InvalidInput(f"delta must lie strictly between 0 and 1, got {delta!r}")
    if value < SMALLEST_DELTA:
        raise InvalidInput(
            f"delta {delta!r} is too small to compute with; give at least {SMALLEST_DELTA:g}"
        )
    return value


def check_planned_delta(delta: Any) -> float:
    """`delta`, if claims at it can be verified."""
    value = check_delta(delta)
    if value < LEAST_PLANNED_DELTA:
        raise InvalidInput(
            f"delta must be at least {LEAST_PLANNED_DELTA:g}, got {delta!r}: below that, double "
            "precision is too coarse for privacy loss distributions, so nobody could verify a plan"
        )
    return value


def conversion_cost(orders: Any, delta: float) -> FloatArray:
    """`c(a)`: what converting to (epsilon, delta) adds to the Rényi divergence at each order.

    >>> conversion_cost([2, 16], 1e-5).round(4).tolist()
    [10.1266, 0.5182]
    """
    a = check_orders(orders)
    cost: FloatArray = np.log1p(-1 / a) - (np.log(check_delta(delta)) + np.log(a)) / (a - 1)
    return cost


def epsilon(rdp: Any, orders: Any, delta: float) -> Any:
    """The smallest epsilon that the Rényi curve `rdp` (last axis: orders) gives at `delta`.

    >>> from fedspend.accounting import rdp
    >>> orders = range(2, 65)
    >>> round(epsilon(25 * rdp(0.9, 2.424098, orders), orders, 1e-5), 5)
    10.12342
    """
    curve = np.asarray(rdp, dtype=np.float64)
    a = check_orders(orders)
    if curve.ndim == 0:
        curve = curve[None]
    if curve.shape[-1] != a.size:
        raise InvalidInput(
            f"rdp must have one value per order: {curve.shape[-1]} values for {a.size} orders"
        )
    if not np.all(curve >= 0):
        raise InvalidInput("rdp must be non-negative and not NaN")
    # Some curves convert to a negative number at small orders; they then give (0, delta).
    best = np.maximum((curve + conversion_cost(a, delta)).min(axis=-1), 0.0)
    return float(best) if best.ndim == 0 else best


def compose(*curves: Any) -> FloatArray:
    """The Rényi curve of mechanisms run in sequence; later ones may depend on earlier outputs.

    >>> from fedspend.accounting import rdp
    >>> compose(rdp(1.0, 1.0, [2, 4]), rdp(1.0, 2.0, [2, 4])).tolist()
    [1.25, 2.5]
    """
    total: FloatArray = np.sum([np.asarray(curve, dtype=np.float64) for curve in curves], axis=0)
    return total
