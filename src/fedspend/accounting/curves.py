"""The Rényi curve of one rate as a function of the noise, tabulated on demand.

A `Curve` memoises the exact kernel on a fixed logarithmic grid of noise multipliers and interpolates the log-moment
between the nodes (six-point Lagrange). It steers: it finds noise for a hundred thousand budgets in seconds. It does not
certify: every finished schedule is sealed with the exact kernel (`calibration.seal`), so no guarantee rests on interpolation.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedspend.accounting.moments import log_moment, log_moment_parts
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.arrays import FloatArray, IntArray

_REACH = 3  # nodes on either side of a point
_LOW, _HIGH = float(np.log(NOISE_RANGE[0])), float(np.log(NOISE_RANGE[1]))
# Below this rate the log-moment has a kink too sharp for any grid; its two parts are smooth (see `log_moment_parts`).
_SPLIT_BELOW = 0.3


class Curve:
    """`rdp(rate, noise)` at every order, for any noise multiplier in `NOISE_RANGE`."""

    def __init__(self, rate: float, orders: tuple[float, ...]) -> None:
        self.rate = rate
        self.orders = np.asarray(orders)
        self._split = rate < _SPLIT_BELOW
        self._step = 0.01 if self._split else 0.02
        self._first = 0
        self._tables: list[FloatArray] = []

    def rdp(self, log_noise: FloatArray, columns: slice = slice(None)) -> FloatArray:
        """(n,) -> (n, orders)."""
        return self.rdp_and_slope(log_noise, columns)[0]

    def rdp_and_slope(self, log_noise: FloatArray, columns: slice = slice(None)) -> tuple[FloatArray, FloatArray]:
        """The curve and `d rdp / d log noise`, the latter to first order in the grid."""
        position = np.clip(log_noise, _LOW, _HIGH) / self._step
        node = np.floor(position).astype(np.int64)
        self._extend(int(node.min()) + 1 - _REACH, int(node.max()) + _REACH)
        start = node + 1 - _REACH - self._first
        weights = _lagrange(position - node)
        parts = [_interpolate(table[:, columns], start, weights, self._step) for table in self._tables]
        # log1p(e^x + e^y) with the part beyond the range of exp taken out first
        beyond = np.maximum(parts[-1][0] - 600.0, 0.0)
        moment, change = np.zeros_like(beyond), np.zeros_like(beyond)
        for log_part, slope in parts:
            part = np.exp(np.minimum(log_part - beyond, 600.0))
            moment += part
            change += part * slope
        degree = self.orders[columns] - 1
        return (np.log1p(moment) + beyond) / degree, change / ((1 + moment) * degree)

    def _extend(self, low: int, high: int) -> None:
        """Compute the nodes low..high that are not there yet."""
        if not self._tables:
            self._first, self._tables = low, self._compute(low, high)
            return
        last = self._first + len(self._tables[0]) - 1
        if low < self._first:
            self._tables = [np.concatenate(pair) for pair in zip(self._compute(low, self._first - 1), self._tables, strict=True)]
            self._first = low
        if high > last:
            self._tables = [np.concatenate(pair) for pair in zip(self._tables, self._compute(last + 1, high), strict=True)]

    def _compute(self, low: int, high: int) -> list[FloatArray]:
        noise = np.exp(np.arange(low, high + 1) * self._step)
        rate = np.full(noise.size, self.rate)
        if self._split:
            return list(log_moment_parts(rate, noise, self.orders))
        return [log_moment(rate, noise, self.orders)]


def _interpolate(table: FloatArray, start: IntArray, weights: list[FloatArray], step: float) -> tuple[FloatArray, FloatArray]:
    rows = [table[start + offset] for offset in range(2 * _REACH)]
    slope = (rows[_REACH] - rows[_REACH - 1]) / step
    value = weights[0][:, None] * rows[0]
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        row *= weight[:, None]
        value += row
    return value, slope


def _lagrange(x: FloatArray) -> list[FloatArray]:
    """Weights of the nodes -2..3 for a point at 0 <= x < 1."""
    nodes = range(1 - _REACH, _REACH + 1)
    weights = []
    for i in nodes:
        weight = np.ones_like(x)
        for j in nodes:
            if j != i:
                weight = weight * (x - j) / (i - j)
        weights.append(weight)
    return weights


@lru_cache(maxsize=512)
def curve(rate: float, orders: tuple[float, ...]) -> Curve:
    """A shared curve: plans with the same rate re-use its table."""
    return Curve(rate, orders)
