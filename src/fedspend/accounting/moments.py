"""Moments of the privacy loss of the sampled Gaussian: the numerics under `rdp`.

With `u(z) = q (exp((2z - 1) / (2 sigma^2)) - 1)` and `z ~ N(0, sigma^2)`, the Rényi divergence of
order `a` is `log E[(1 + u)^a] / (a - 1)` (Mironov, Talwar, Zhang 2019). Since `E[u] = 0`,
`E[(1 + u)^a] = 1 + E[(1 + u)^a - 1 - a u]`, and what is computed here is the log of the second
part. Every summand and integrand is non-negative, so small values keep all their digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray

_CHUNK = 1 << 18  # numbers held at once, small enough to stay in cache
_SLACK = 10.0  # deviations beyond which the Gaussian is negligible
_NOTHING = -1e5  # log of a part that has no terms


def log_moment(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """Log of `E[(1+u)^a] - 1`: (n,), (n,), (A,) -> (n, A); arguments checked, rates above 0."""
    out = np.empty((q.size, alpha.size))
    whole = q == 1
    out[whole] = _log_expm1(alpha * (alpha - 1) / (2 * sigma[whole, None] ** 2))
    sampled = np.flatnonzero(~whole)
    is_integer = alpha == np.floor(alpha)
    for columns, moments in (
        (np.flatnonzero(is_integer), _integer_orders),
        (np.flatnonzero(~is_integer), _real_orders),
    ):
        if sampled.size and columns.size:
            out[np.ix_(sampled, columns)] = moments(q[sampled], sigma[sampled], alpha[columns])
    return out


def log_moment_parts(
    q: FloatArray, sigma: FloatArray, alpha: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The moment as two summands, in logs: contributions near z = 0 and contributions near z = a.

    At small rates the divergence jumps by many orders of magnitude where the second part overtakes
    the first. Each part alone is a smooth function of the noise, so `curves` can interpolate across
    the jump.
    """
    low, high = np.empty((q.size, alpha.size)), np.full((q.size, alpha.size), _NOTHING)
    is_integer = alpha == np.floor(alpha)
    whole, real = np.flatnonzero(is_integer), np.flatnonzero(~is_integer)
    if whole.size:
        low[:, whole] = _integer_orders(
            q, sigma, alpha[whole], lambda order: (2, max(2, order // 2))
        )
        split = np.flatnonzero(is_integer & (alpha > 2))
        high[:, split] = _integer_orders(
            q, sigma, alpha[split], lambda order: (order // 2 + 1 if order > 3 else 3, order)
        )
    if real.size:
        low[:, real], high[:, real] = _careful_moments(q, sigma, alpha[real], split=True)
    return low, np.maximum(high, _NOTHING)


def _integer_orders(
    q: FloatArray,
    sigma: FloatArray,
    alpha: FloatArray,
    span: Callable[[int], tuple[int, int]] = lambda order: (2, order),
) -> FloatArray:
    """For whole orders a, the log of a sum over k in `span(a)`.

    `sum_k C(a,k) q^k (1-q)^(a-k) expm1((k^2-k) / (2 sigma^2))`
    """
    out = np.empty((q.size, alpha.size))
    k = np.arange(2.0, alpha.max(initial=2) + 1)
    for rows in _chunks(q.size, k.size):
        log_q, log_rest = np.log(q[rows, None]), np.log1p(-q[rows, None])
        shared = k * (log_q - log_rest) + _log_expm1((k * k - k) / (2 * sigma[rows, None] ** 2))
        for column, order in enumerate(alpha):
            first, last = span(int(order))
            terms = (
                _log_binomials(int(order))[first - 2 : last - 1] + shared[:, first - 2 : last - 1]
            )
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
    total: FloatArray = top + np.log(np.exp(terms - top[:, None]).sum(axis=-1))
    return total


def _real_orders(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """Log of the trapezoid sum of `E[(1+u)^a - 1 - a u]`.

    The integrand is analytic in the strip `|Im z| < pi sigma^2`, so the trapezoid rule converges
    like `exp(-2 pi^2 sigma^2 / step)` where that strip is narrow and like
    `exp(-2 pi^2 sigma^2 / step^2)` where it is wide: the step below is at machine precision. The
    mass sits between z = 0 and z = a, with 10 deviations of slack on either side.
    """
    out = np.empty((q.size, alpha.size))
    with np.errstate(over="ignore"):
        deviation_of_u = q * np.sqrt(np.expm1(1 / sigma**2))
    # a large order needs a long grid
    for columns in (np.flatnonzero(alpha < 22), np.flatnonzero(alpha >= 22)):
        if not columns.size:
            continue
        # The plain moment minus one keeps nine digits while u is not small, and cannot overflow
        # while its peak is moderate.
        top = float(alpha[columns].max())
        plain = (deviation_of_u > 0.005) & (sigma > 0.5) & (top * (top - 1) < 1200 * sigma**2)
        for rows, moments in (
            (np.flatnonzero(plain), _plain_moments),
            (np.flatnonzero(~plain), _careful_moments),
        ):
            if rows.size:
                out[np.ix_(rows, columns)] = moments(q[rows], sigma[rows], alpha[columns])[0]
    return out


def _step(sigma: FloatArray) -> FloatArray:
    return np.minimum(0.7 * sigma, 0.5 * sigma**2)


def _plain_moments(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> list[FloatArray]:
    """Log of `E[(1+u)^a] - 1` for several orders on one grid."""
    step = _step(sigma)
    index = np.arange(np.ceil(((alpha.max() + 2 * _SLACK * sigma) / step).max()) + 1)
    out = np.empty((q.size, alpha.size))
    for rows in _chunks(q.size, index.size * alpha.size):
        scale = sigma[rows, None]
        z = -_SLACK * scale + step[rows, None] * index
        log_ratio = np.log1p(q[rows, None] * np.expm1((2 * z - 1) / (2 * scale**2)))
        log_weight = -0.5 * (z / scale) ** 2 + np.log(
            step[rows, None] / (scale * np.sqrt(2 * np.pi))
        )
        powers = alpha[:, None] * log_ratio[:, None, :]
        powers += log_weight[:, None, :]
        out[rows] = np.log(np.exp(powers, out=powers).sum(axis=-1) - 1)
    return [out]


def _careful_moments(
    q: FloatArray, sigma: FloatArray, alpha: FloatArray, split: bool = False
) -> list[FloatArray]:
    """Like `_plain_moments`, but in logs and without cancellation, for any rate and noise.

    With `split`, in the two parts of `log_moment_parts`.
    """
    step = _step(sigma)
    out = [np.empty((q.size, alpha.size)) for _ in range(2 if split else 1)]
    for rows in _similar(np.ceil((alpha.max() + 2 * _SLACK * sigma) / step) + 1):
        scale, width, rate = sigma[rows, None], step[rows, None], q[rows, None]
        points = np.ceil(((alpha + 2 * _SLACK * scale) / width).max(axis=0)).astype(np.int64) + 1
        z = -_SLACK * scale + width * np.arange(float(points.max()))
        exponent = (2 * z - 1) / (2 * scale**2)
        u = rate * np.expm1(np.minimum(exponent, 600.0))
        # log(1 + u) without overflow
        log_ratio = np.where(exponent < 600, np.log1p(u), np.log(rate) + exponent)
        log_weight = -0.5 * (z / scale) ** 2 + np.log(width / (scale * np.sqrt(2 * np.pi)))
        for column, order in enumerate(alpha):
            here = np.s_[:, : points[column]]
            terms = log_weight[here] + _log_excess(u[here], log_ratio[here], float(order))
            if not split:
                out[0][rows, column] = _log_sum_exp(terms)
                continue
            # A smooth cut half-way, so that each part is smooth in sigma: weights 1/(1+e^x) and
            # 1/(1+e^-x).
            distance = (z[here] - order / 2) / (order / 64 + scale / 2)
            softplus = np.logaddexp(0.0, distance)
            out[0][rows, column] = _log_sum_exp(terms - softplus)
            out[1][rows, column] = _log_sum_exp(terms - softplus + distance)
    return out


def _log_excess(u: FloatArray, log_ratio: FloatArray, order: float) -> FloatArray:
    """Log of `(1+u)^a - 1 - a u`, which is convex in u and touches zero at u = 0."""
    power = order * log_ratio
    excess = np.expm1(np.minimum(power, 300.0)) - order * np.minimum(u, 1e120)
    small = np.abs(u) < 0.05 / order
    excess[small] = _excess_series(u[small], order)
    # Beyond e^300 the other terms no longer matter.
    out: FloatArray = np.where(power > 300, power, np.log(np.maximum(excess, 1e-300)))
    return out


def _excess_series(u: FloatArray, order: float) -> FloatArray:
    """`sum_{k=2..11} C(a,k) u^k`: what the direct form loses to cancellation when u is small."""
    coefficients, c = [], order
    for k in range(2, 12):
        c *= (order - k + 1) / k
        coefficients.append(c)
    total = np.zeros_like(u)
    for c in reversed(coefficients):
        total = total * u + c
    return total * u * u


def _similar(sizes: FloatArray) -> Iterator[IntArray]:
    """Groups of rows of similar size, which can share one grid with little waste."""
    by_size = np.argsort(sizes, kind="stable")
    start = 0
    while start < sizes.size:
        fits = (np.arange(1, sizes.size - start + 1) * sizes[by_size[start:]] <= _CHUNK) & (
            sizes[by_size[start:]] <= 1.5 * sizes[by_size[start]]
        )
        stop = start + max(1, int(fits.argmin()) if not fits.all() else fits.size)
        yield by_size[start:stop]
        start = stop


def _chunks(rows: int, width: int) -> Iterator[slice]:
    size = max(1, _CHUNK // max(1, width))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
