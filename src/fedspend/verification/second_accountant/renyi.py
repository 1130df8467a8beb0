"""Rényi divergence of a round by quadrature, and the epsilon it bounds.

Guarantee: `renyi_divergence` is right to 1e-9 relative (Gauss-Legendre panels on the region that
holds the mass), so an epsilon read from it at any one order is an upper bound to that accuracy. The
planner's accountant integrates another way.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
REACH = 10.0  # standard deviations beyond the outermost modes
KEPT = 36.0  # panels below exp(-36) times the highest are left out
PANELS_AT_ONCE = 1 << 14
MOST_PANELS = 2e6  # of one integral: ten times what the orders and noise of any plan need
SHORT = 1e4  # panels of an integral that is one of many


def renyi_divergence(rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike) -> FloatArray:
    """Rényi divergence of one round, elementwise over rates, noise multipliers and orders.

    `log(E_x[(1+u)^a]) / (a-1)` with `u = q (exp(x/s - 1/(2 s^2)) - 1)` and x ~ N(0, 1); removal is
    the larger of the two directions (Mironov, Talwar, Zhang 2019, https://arxiv.org/abs/1908.10530,
    Theorem 5). As E[u] = 0, the integrand is `(1+u)^a - 1 - a u >= 0`, which loses no digits when u
    is small.

    >>> round(float(renyi_divergence(0.9, 2.4, 2)), 15)
    0.142861666907219
    """
    q, s, a = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (rate, noise, order))
    )
    if not bool(np.all((q > 0) & (q <= 1) & (s > 0) & (s < np.inf) & (a > 1) & (a < np.inf))):
        raise InvalidInput(
            "the accountant needs 0 < rate <= 1, finite noise > 0 and finite order > 1"
        )
    shape, (q, s, a) = q.shape, (q.ravel(), s.ravel(), a.ravel())
    width, needed = panels_of(s, a)
    if not bool(np.all(needed <= MOST_PANELS)):
        at = int(needed.argmax())
        raise InvalidInput(
            f"order {a[at]:g} at a noise multiplier of {s[at]:g} is beyond what the accountant can "
            "integrate"
        )
    panels = needed.astype(np.int64)
    log_moment = np.empty(q.size)
    batch = (np.cumsum(panels) - panels) // PANELS_AT_ONCE
    for cells in np.split(np.arange(q.size), np.flatnonzero(np.diff(batch)) + 1):
        if cells.size:
            log_moment[cells] = _log_moment_excess(
                q[cells], s[cells], a[cells], width[cells], panels[cells]
            )
    result: FloatArray = (np.logaddexp(0.0, log_moment) / (a - 1)).reshape(shape)
    return result


def panels_of(noise: FloatArray, order: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Width of the panels of an integral, and how many there are.

    (1+u)^a has branch points at distance pi s from the axis: a panel of 3 s keeps 16 nodes exact.
    The modes lie between 0 and max(a,2)/s.
    """
    with np.errstate(over="ignore"):
        width = np.minimum(2.0, 3.0 * noise)
        needed: FloatArray = np.ceil((np.maximum(order, 2.0) / noise + 2 * REACH) / width)
    return width, needed


def _log_moment_excess(
    q: FloatArray, s: FloatArray, a: FloatArray, width: FloatArray, panels: IntArray
) -> FloatArray:
    """log(E[(1+u)^a] - 1) of each cell; panels whose edges are negligible are skipped."""
    edges = panels + 1
    cell = np.repeat(np.arange(q.size), edges)
    first = np.cumsum(edges) - edges
    edge = (np.arange(cell.size) - first[cell]) * width[cell] - REACH
    at_edge = log_integrand(edge, q[cell], s[cell], a[cell])
    top = np.maximum.reduceat(at_edge, first)
    # Away from u = 0 the log of the integrand curves down by at most 1 (Gaussian), so a panel of
    # width 2 is never much higher than its edges.
    keep = np.maximum(at_edge[:-1], at_edge[1:]) > top[cell[:-1]] - KEPT
    left = np.flatnonzero(keep & (cell[:-1] == cell[1:]))
    owner = cell[left]
    half = width[owner, None] / 2
    height = log_integrand(
        edge[left, None] + half * (1 + NODES), q[owner, None], s[owner, None], a[owner, None]
    )
    area = half[:, 0] * (np.exp(height - top[owner, None]) @ WEIGHTS)
    result: FloatArray = (
        top
        + np.log(np.bincount(owner, weights=area, minlength=q.size))
        - 0.5 * math.log(2 * math.pi)
    )
    return result


def log_integrand(x: FloatArray, q: FloatArray, s: FloatArray, a: FloatArray) -> FloatArray:
    """log((1+u)^a - 1 - a u) - x^2/2, in three regimes, each by the form that keeps its digits."""
    loss = x / s - 0.5 / s**2
    q, a = np.broadcast_to(q, x.shape), np.broadcast_to(a, x.shape)
    with np.errstate(divide="ignore"):
        u = q * np.expm1(np.minimum(loss, 700.0))
        power = a * np.log1p(u)
        small, large = np.abs(a * u) < 0.02, power > 30.0
        value = np.log(np.maximum(np.expm1(np.minimum(power, 31.0)) - a * u, 0.0))
        if small.any():
            v, b = u[small], a[small]
            series = np.ones_like(v)
            for j in range(6, 1, -1):
                series = 1 + (b - j) / (j + 1) * v * series
            value[small] = np.log(b * (b - 1) / 2 * v**2 * series)
        if large.any():
            b, far = a[large], loss[large]
            log_u = np.log(q[large]) + np.where(
                far > 40, far, np.log(np.expm1(np.minimum(far, 41)))
            )
            p = np.where(far > 700, b * log_u, power[large])
            value[large] = p + np.log1p(-np.exp(-p) - np.exp(np.log(b) + log_u - p))
    result: FloatArray = value - x**2 / 2
    return result


def epsilon_at(divergence: npt.ArrayLike, order: npt.ArrayLike, delta: float) -> FloatArray:
    """Epsilon of a Rényi bound: `R + log(1-1/a) - (log delta + log a)/(a-1)`, at least 0.

    Canonne, Kamath, Steinke 2020, https://arxiv.org/abs/2004.00010, Proposition 12.
    """
    a = np.asarray(order, dtype=np.float64)
    epsilon: FloatArray = (
        np.asarray(divergence) + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    )
    return np.maximum(epsilon, 0.0)


def divergence_of_schedule(
    rates: npt.ArrayLike, noises: npt.ArrayLike, counts: npt.ArrayLike, orders: npt.ArrayLike
) -> FloatArray:
    """Rényi divergence of runs of identical rounds at each of `orders`: divergences add up."""
    per_round = renyi_divergence(
        np.asarray(rates)[:, None], np.asarray(noises)[:, None], np.asarray(orders)[None, :]
    )
    total: FloatArray = np.asarray(counts, dtype=np.float64) @ per_round
    return total
