"""Rényi differential privacy of the Poisson-sampled Gaussian mechanism, vectorised.

Guarantee: `rdp` is the exact divergence (to about 1e-9 relative), under add-or-remove and zero-out adjacency, for every
real order above 1, rates from 1e-9 to 1 and noise multipliers from 0.05 to 1e6. Nothing cancels: each summand
and each integrand below is non-negative, so small divergences keep all their digits.

With `u(z) = q (exp((2z - 1) / (2 sigma^2)) - 1)` and `z ~ N(0, sigma^2)`, the divergence of order `a` is
`log E[(1 + u)^a] / (a - 1)` (Mironov, Talwar, Zhang 2019). Since `E[u] = 0`, `E[(1 + u)^a] = 1 + E[(1 + u)^a - 1 - a u]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedspend.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]
Part = Literal["all", "low", "high"]

NOISE_RANGE = (0.05, 1e6)
_CHUNK = 1 << 20  # numbers held at once by the sums below
_SLACK = 10.0  # deviations beyond which the Gaussian is nothing
_NOTHING = -1e5  # log of a part that has no terms
# first and last k of the binomial sum, for each part of it
_PARTS: dict[Part, Callable[[int], tuple[int, int]]] = {
    "all": lambda order: (2, order),
    "low": lambda order: (2, max(2, order // 2)),
    "high": lambda order: (max(2, order // 2) + 1, order),
}


def _public_orders() -> tuple[float, ...]:
    """Geometric in `order - 1` from 0.05 to 1024, in steps of 4%; whole numbers from 20 on, where they are dense enough."""
    ladder = 1 + np.geomspace(0.05, 1024, 256)
    low = [round(float(a), 6) for a in ladder if a < 20]
    high = sorted({round(float(a)) for a in ladder if a >= 20})
    return tuple(low) + tuple(float(a) for a in high)


ORDERS: tuple[float, ...] = _public_orders()
"""The order set that plans are read at. Public and data-independent; every plan carries a copy."""


def check_orders(orders: Any) -> FloatArray:
    """`orders` as an increasing float array, every one finite and above 1."""
    try:
        array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    except (TypeError, ValueError):
        raise InvalidInput(f"orders must be numbers above 1, got {orders!r}") from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"orders must be a list of at least one number, got shape {array.shape}")
    bad = ~(np.isfinite(array) & (array > 1))
    if bad.any():
        raise InvalidInput(f"orders must be finite and above 1, got {array[bad][0]!r}")
    return array


def rdp(sampling_rate: Any, noise_multiplier: Any, orders: Any) -> Any:
    """Rényi divergence of one round at each order.

    `sampling_rate` and `noise_multiplier` broadcast against each other; the result has their shape, followed by one
    axis for `orders` unless `orders` is a single number.

    >>> round(rdp(0.9, 2.4, 2), 12)
    0.142861666907
    >>> rdp(1.0, [1.0, 2.0], [2, 4]).tolist()
    [[1.0, 2.0], [0.25, 0.5]]
    """
    q, sigma = np.broadcast_arrays(_numbers("sampling_rate", sampling_rate), _numbers("noise_multiplier", noise_multiplier))
    if not np.all((q >= 0) & (q <= 1)):
        raise InvalidInput(f"sampling_rate must lie in [0, 1], got {q[~((q >= 0) & (q <= 1))].flat[0]!r}")
    low, high = NOISE_RANGE
    in_range = (sigma >= low) & (sigma <= high)
    if not np.all(in_range):
        raise InvalidInput(f"noise_multiplier must lie in [{low:g}, {high:g}], got {sigma[~in_range].flat[0]!r}")
    alpha = check_orders(orders)
    values = _rdp(q.ravel(), sigma.ravel(), alpha).reshape(*q.shape, alpha.size)
    result = values[..., 0] if np.ndim(orders) == 0 else values
    return float(result) if np.ndim(result) == 0 else result


def _numbers(name: str, value: Any) -> FloatArray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a number or an array of numbers, got {value!r}") from None


def _rdp(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """(n,), (n,), (A,) -> (n, A), arguments already checked."""
    out = np.zeros((q.size, alpha.size))
    whole, sampled = q == 1, (q > 0) & (q < 1)
    out[whole] = alpha / (2 * sigma[whole, None] ** 2)
    if sampled.any():
        # log(1 + e^x), accurate for very small and very large x alike
        out[sampled] = np.logaddexp(0.0, log_moment(q[sampled], sigma[sampled], alpha)) / (alpha - 1)
    return out


def exact_rdp_at(q: FloatArray, sigma: FloatArray, order: FloatArray) -> FloatArray:
    """Element by element: the divergence of (q, sigma) at its own order. Arguments already checked."""
    out = np.empty(q.size)
    for alpha in np.unique(order):
        rows = np.flatnonzero(order == alpha)
        out[rows] = _rdp(q[rows], sigma[rows], np.array([alpha]))[:, 0]
    return out


def log_moment(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """log of `E[(1+u)^a] - 1`: (n,), (n,), (A,) -> (n, A), arguments already checked, rates above 0."""
    out = np.empty((q.size, alpha.size))
    whole = q == 1
    out[whole] = _log_expm1(alpha * (alpha - 1) / (2 * sigma[whole, None] ** 2))
    sampled = np.flatnonzero(~whole)
    is_integer = alpha == np.floor(alpha)
    for columns, moments in ((np.flatnonzero(is_integer), _integer_orders), (np.flatnonzero(~is_integer), _real_orders)):
        if sampled.size and columns.size:
            out[np.ix_(sampled, columns)] = moments(q[sampled], sigma[sampled], alpha[columns])
    return out


def log_moment_parts(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The log-moment in two parts whose sum it is: contributions near z = 0 and contributions near z = a.

    At small rates the divergence jumps by many decades where the second part overtakes the first. Either part alone is a
    smooth function of the noise, which is what lets `curves` interpolate across the jump.
    """
    low, high = np.empty((q.size, alpha.size)), np.full((q.size, alpha.size), _NOTHING)
    is_integer = alpha == np.floor(alpha)
    whole, real, split = np.flatnonzero(is_integer), np.flatnonzero(~is_integer), np.flatnonzero(is_integer & (alpha > 2))
    if whole.size:
        low[:, whole] = _integer_orders(q, sigma, alpha[whole], "low")
        high[:, split] = _integer_orders(q, sigma, alpha[split], "high")
    if real.size:
        low[:, real] = _real_orders(q, sigma, alpha[real], "low")
        high[:, real] = _real_orders(q, sigma, alpha[real], "high")
    return low, np.maximum(high, _NOTHING)


def _integer_orders(q: FloatArray, sigma: FloatArray, alpha: FloatArray, part: Part = "all") -> FloatArray:
    """log of `sum_{k>=2} C(a,k) q^k (1-q)^(a-k) expm1((k^2-k) / (2 sigma^2))` for whole orders a."""
    out = np.empty((q.size, alpha.size))
    k = np.arange(2.0, alpha.max() + 1)
    for rows in _chunks(q.size, k.size):
        log_q, log_rest = np.log(q[rows, None]), np.log1p(-q[rows, None])
        shared = k * (log_q - log_rest) + _log_expm1((k * k - k) / (2 * sigma[rows, None] ** 2))
        for column, order in enumerate(alpha):
            first, last = _PARTS[part](int(order))
            terms = _log_binomials(int(order))[first - 2 : last - 1] + shared[:, first - 2 : last - 1]
            out[rows, column] = _log_sum_exp(terms) + order * log_rest[:, 0]
    return out


@lru_cache(maxsize=2048)
def _log_binomials(order: int) -> FloatArray:
    """log C(order, k) for k = 2..order."""
    k = np.arange(order)
    return np.cumsum(np.log((order - k) / (k + 1.0)))[1:]


def _log_expm1(x: FloatArray) -> FloatArray:
    return np.where(x > 30, x, np.log(np.expm1(np.minimum(x, 30.0))))


def _log_sum_exp(terms: FloatArray) -> FloatArray:
    top = terms.max(axis=-1)
    with np.errstate(invalid="ignore"):
        total = np.exp(terms - top[:, None]).sum(axis=-1)
    result: FloatArray = top + np.log(total)
    return result


def _real_orders(q: FloatArray, sigma: FloatArray, alpha: FloatArray, part: Part = "all") -> FloatArray:
    """log of the trapezoid sum of `E[(1+u)^a - 1 - a u]`.

    The integrand is analytic in the strip `|Im z| < pi sigma^2`, so the trapezoid rule converges like
    `exp(-2 pi^2 sigma^2 / step)` where that strip is narrow and like `exp(-2 pi^2 sigma^2 / step^2)` where it is wide: the step below is
    at machine precision. The mass sits between z = 0 and z = a, with 10 deviations of slack on either side.
    """
    out = np.empty((q.size, alpha.size))
    with np.errstate(over="ignore"):
        deviation_of_u = q * np.sqrt(np.expm1(1 / sigma**2))
    # The plain moment minus one keeps nine digits while u is not small, and cannot overflow while its peak is moderate.
    for columns in (np.flatnonzero(alpha < 22), np.flatnonzero(alpha >= 22)):  # a large order needs a long grid
        if not columns.size:
            continue
        top = float(alpha[columns].max())
        plain = (part == "all") & (deviation_of_u > 0.005) & (sigma > 0.5) & (top * (top - 1) < 1200 * sigma**2)
        if plain.any():
            out[np.ix_(plain, columns)] = _plain_moments(q[plain], sigma[plain], alpha[columns])
        rest = np.flatnonzero(~plain)
        for column in columns if rest.size else ():
            out[rest, column] = _careful_moment(q[rest], sigma[rest], float(alpha[column]), part)
    return out


def _step(sigma: FloatArray) -> FloatArray:
    return np.minimum(0.7 * sigma, 0.5 * sigma**2)


def _plain_moments(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """log of `E[(1+u)^a] - 1` for several orders on one grid."""
    step = _step(sigma)
    index = np.arange(np.ceil(((alpha.max() + 2 * _SLACK * sigma) / step).max()) + 1)
    out = np.empty((q.size, alpha.size))
    for rows in _chunks(q.size, index.size * alpha.size):
        scale = sigma[rows, None]
        z = -_SLACK * scale + step[rows, None] * index
        log_ratio = np.logaddexp(np.log1p(-q[rows, None]), np.log(q[rows, None]) + (2 * z - 1) / (2 * scale**2))
        log_weight = -0.5 * (z / scale) ** 2 + np.log(step[rows, None] / (scale * np.sqrt(2 * np.pi)))
        powers = alpha[:, None] * log_ratio[:, None, :]
        powers += log_weight[:, None, :]
        out[rows] = np.log(np.exp(powers, out=powers).sum(axis=-1) - 1)
    return out


def _careful_moment(q: FloatArray, sigma: FloatArray, order: float, part: Part) -> FloatArray:
    """The same for one order, in logarithms and without cancellation, for any rate and noise."""
    step = _step(sigma)
    points = np.ceil((order + 2 * _SLACK * sigma) / step).astype(np.int64) + 1
    out = np.empty(q.size)
    by_size = np.argsort(points, kind="stable")  # neighbours then share one grid length with little waste
    start = 0
    while start < q.size:
        stop = start + 1
        while stop < q.size and (stop + 1 - start) * points[by_size[stop]] <= _CHUNK // 4:
            stop += 1
        rows = by_size[start:stop]
        index = np.arange(float(points[rows].max()))
        out[rows] = _trapezoid(q[rows, None], sigma[rows, None], order, step[rows, None], index, part)
        start = stop
    return out


def _trapezoid(
    q: FloatArray, sigma: FloatArray, order: float, step: FloatArray, index: FloatArray, part: Part
) -> FloatArray:
    z = -_SLACK * sigma + step * index
    exponent = (2 * z - 1) / (2 * sigma**2)
    with np.errstate(over="ignore"):
        u = q * np.expm1(np.minimum(exponent, 700.0))
    log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + exponent)  # log(1 + u) without overflow
    log_density = -0.5 * (z / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    terms = log_density + _log_excess(u, log_ratio, order)
    if part != "all":  # a smooth cut half-way, so that each part is smooth in sigma
        distance = (z - order / 2) / (order / 64 + sigma / 2)
        terms -= np.logaddexp(0.0, distance if part == "low" else -distance)
    return _log_sum_exp(terms) + np.log(step[:, 0])


def _log_excess(u: FloatArray, log_ratio: FloatArray, order: float) -> FloatArray:
    """log of `(1+u)^a - 1 - a u`, which is convex in u and touches zero at u = 0."""
    small = np.abs(u) * max(order, 1.0) < 0.05
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        direct = np.log(np.expm1(order * np.log1p(np.minimum(u, 1.0))) - order * u)
        # for u > 1 the subtracted part is the smaller one: factor the power out, so that nothing overflows
        power = order * log_ratio
        linear = np.log1p(order * u)
        large = power + np.log(-np.expm1(linear - power))
        series = np.log(_excess_series(np.where(small, u, 0.0), order))
    out: FloatArray = np.where(small, series, np.where(u > 1, large, direct))
    return np.where(np.isnan(out), -np.inf, out)


def _excess_series(u: FloatArray, order: float) -> FloatArray:
    """`sum_{k=2..13} C(a,k) u^k`: what the direct form loses to cancellation when u is small."""
    total = np.zeros_like(u)
    coefficients, c = [], order
    for k in range(2, 14):
        c *= (order - k + 1) / k
        coefficients.append(c)
    for c in reversed(coefficients):
        total = total * u + c
    return total * u * u


def _chunks(rows: int, width: int) -> list[slice]:
    size = max(1, _CHUNK // max(1, width))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
