"""Rényi differential privacy of the Poisson-sampled Gaussian mechanism, vectorised.

Guarantee: `rdp` is the exact divergence (to about 1e-9 relative), under add-or-remove and zero-out
adjacency, for every real order above 1, rates from 1e-9 to 1 and noise multipliers from 0.05 to
1e6. Nothing cancels: each summand and each integrand below is non-negative, so small divergences
keep all their digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.accounting.moments import log_moment
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput

NOISE_RANGE = (0.05, 1e6)
SMALLEST_RATE = 1e-9


def _public_orders() -> tuple[float, ...]:
    """Geometric in `order - 1` from 0.05 to 1024, in steps of 5%; whole numbers only from 20 on."""
    ladder = 1 + np.geomspace(0.05, 1024, 200)
    low = [round(float(a), 6) for a in ladder if a < 20]
    high = sorted({round(float(a)) for a in ladder if a >= 20})
    return tuple(low) + tuple(float(a) for a in high)


ORDERS: tuple[float, ...] = _public_orders()
"""The orders that plans are read at: public and independent of data. Every plan carries a copy."""


WHOLE_ORDERS: tuple[float, ...] = tuple(
    sorted({float(a) for a in range(2, 21)} | {a for a in ORDERS if a == int(a)})
)
"""The orders of plans for discrete noise.

At whole orders the sampled discrete Gaussian has the divergence of the Gaussian.
"""


MOST_ORDER = 1e5  # a moment at a whole order is a sum of so many terms


def check_orders(orders: Any) -> FloatArray:
    """`orders` as a float array, every one above 1 and at most `MOST_ORDER`."""
    try:
        array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    except (TypeError, ValueError):
        raise InvalidInput(f"orders must be numbers above 1, got {orders!r}") from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"orders must be a list of at least one number, got shape {array.shape}")
    bad = ~(np.isfinite(array) & (array > 1))
    if bad.any():
        raise InvalidInput(f"orders must be finite and above 1, got {float(array[bad][0])!r}")
    if array.max() > MOST_ORDER:
        raise InvalidInput(f"orders must be at most {MOST_ORDER:g}, got {float(array.max())!r}")
    return array


def rdp(sampling_rate: Any, noise_multiplier: Any, orders: Any) -> Any:
    """Rényi divergence of one round at each order.

    `sampling_rate` and `noise_multiplier` broadcast against each other; the result has their shape,
    followed by one axis for `orders` unless `orders` is a single number.

    >>> round(rdp(0.9, 2.4, 2), 12)
    0.142861666907
    >>> rdp(1.0, [1.0, 2.0], [2, 4]).tolist()
    [[1.0, 2.0], [0.25, 0.5]]
    """
    q, sigma = np.broadcast_arrays(
        _numbers("sampling_rate", sampling_rate), _numbers("noise_multiplier", noise_multiplier)
    )
    if not np.all((q >= 0) & (q <= 1)):
        raise InvalidInput(
            f"sampling_rate must lie in [0, 1], got {q[~((q >= 0) & (q <= 1))].flat[0]!r}"
        )
    low, high = NOISE_RANGE
    in_range = (sigma >= low) & (sigma <= high)
    if not np.all(in_range):
        raise InvalidInput(
            f"noise_multiplier must lie in [{low:g}, {high:g}], got {sigma[~in_range].flat[0]!r}"
        )
    alpha = check_orders(orders)
    values = _rdp(q.ravel(), sigma.ravel(), alpha).reshape(*q.shape, alpha.size)
    result = values[..., 0] if np.ndim(orders) == 0 else values
    return float(result) if np.ndim(result) == 0 else result


def _numbers(name: str, value: Any) -> FloatArray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be a number or an array of numbers, got {value!r}"
        ) from None


def _rdp(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """(n,), (n,), (A,) -> (n, A), for checked arguments."""
    out = np.zeros((q.size, alpha.size))
    whole, sampled = q == 1, (q > 0) & (q < 1)
    out[whole] = alpha / (2 * sigma[whole, None] ** 2)
    if sampled.any():
        # log(1 + e^x), accurate for very small and very large x alike
        out[sampled] = np.logaddexp(0.0, log_moment(q[sampled], sigma[sampled], alpha)) / (
            alpha - 1
        )
    return out


def exact_rdp_at(q: FloatArray, sigma: FloatArray, order: FloatArray) -> FloatArray:
    """The divergence of each (q, sigma) at its own order, for checked arguments."""
    out = np.empty(q.size)
    for alpha in np.unique(order):
        rows = np.flatnonzero(order == alpha)
        out[rows] = _rdp(q[rows], sigma[rows], np.array([alpha]))[:, 0]
    return out
