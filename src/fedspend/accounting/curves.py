"""The Rényi curve of one rate as a function of the noise, tabulated on demand.

A `Curve` memoises the exact kernel on a fixed logarithmic grid of noise multipliers and
interpolates the log-moment between the nodes (six-point Lagrange). It steers: it finds noise for a
hundred thousand budgets in seconds. It does not certify: every finished schedule is sealed with the
exact kernel (`calibration.seal`), so no guarantee rests on interpolation. Threads may share one.
"""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

import numpy as np

from fedspend.accounting.moments import log_moment, log_moment_parts
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.arrays import FloatArray, IntArray

_REACH = 3  # nodes on either side of a point
_LOW, _HIGH = float(np.log(NOISE_RANGE[0])), float(np.log(NOISE_RANGE[1]))
# Below this rate the log-moment has a kink too sharp for any grid; its two parts are smooth (see
# `log_moment_parts`).
_SPLIT_BELOW = 0.3
# Column i holds the coefficients of the i-th Lagrange polynomial on the nodes -2..3, highest power
# first.
_NODES = np.arange(1.0 - _REACH, _REACH + 1)
_LAGRANGE = np.linalg.inv(np.vander(_NODES))
# Nodes are computed so many at a time, always the same ones: a node's last digits depend on those
# that are computed with it, and no plan may depend on earlier ones.
_BLOCK = 32
# Two threads that extend one table at the same time would both add the same nodes.
_EXTENDING = Lock()


class Curve:
    """`rdp(rate, noise)` at every order, for any noise multiplier in `NOISE_RANGE`."""

    def __init__(self, rate: float, orders: tuple[float, ...]) -> None:
        self.rate = rate
        self.orders = np.asarray(orders)
        self._degree = self.orders - 1
        self._split = rate < _SPLIT_BELOW
        self._step = 0.01 if self._split else 0.02
        self._first = 0
        self._tables: list[FloatArray] = []

    def rdp(self, log_noise: FloatArray, columns: slice = slice(None)) -> FloatArray:
        """(n,) -> (n, orders)."""
        tables, start, weights = self._place(log_noise)
        parts = [_interpolate(table[:, columns], start, weights) for table in tables]
        values: FloatArray = _log1p_exp(parts) / self._degree[columns]
        return values

    def rdp_at(self, log_noise: FloatArray, column: IntArray) -> FloatArray:
        """(n,), (n,) -> (n,): each noise at its own order."""
        tables, start, weights = self._place(log_noise)
        steps = start[:, None] + np.arange(2 * _REACH)
        parts = [(table[steps, column[:, None]] * weights).sum(axis=1) for table in tables]
        values: FloatArray = _log1p_exp(parts) / self._degree[column]
        return values

    def _place(self, log_noise: FloatArray) -> tuple[list[FloatArray], IntArray, FloatArray]:
        """The tables, and of each point the first row in them and the six weights."""
        position = np.clip(log_noise, _LOW, _HIGH) / self._step
        node = np.floor(position)
        with _EXTENDING:
            self._extend(int(node.min()) + 1 - _REACH, int(node.max()) + _REACH)
            tables, first = self._tables, self._first
        return tables, node.astype(np.int64) + (1 - _REACH - first), _weights(position - node)

    def _extend(self, low: int, high: int) -> None:
        """Compute the nodes low..high that are still missing, by whole blocks."""
        low, high = low // _BLOCK * _BLOCK, high // _BLOCK * _BLOCK + _BLOCK - 1
        if not self._tables:
            self._first, self._tables = low, self._compute(low, high)
            return
        last = self._first + len(self._tables[0]) - 1
        if low < self._first:
            self._tables = [
                np.concatenate(pair)
                for pair in zip(self._compute(low, self._first - 1), self._tables, strict=True)
            ]
            self._first = low
        if high > last:
            self._tables = [
                np.concatenate(pair)
                for pair in zip(self._tables, self._compute(last + 1, high), strict=True)
            ]

    def _compute(self, low: int, high: int) -> list[FloatArray]:
        blocks = [self._block(first) for first in range(low, high, _BLOCK)]
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def _block(self, low: int) -> list[FloatArray]:
        high = low + _BLOCK - 1
        noise = np.exp(np.arange(low, high + 1) * self._step)
        rate = np.full(noise.size, self.rate)
        if self._split:
            return list(log_moment_parts(rate, noise, self.orders))
        return [log_moment(rate, noise, self.orders)]


def _weights(part: FloatArray) -> FloatArray:
    """(n,) -> (n, 6): the Lagrange polynomials at these points, by Horner's rule.

    Value by value, not as a product of matrices: how that is rounded depends on the processor and
    on how many points there are, and no budget's noise may depend on how many others are planned.
    """
    x = part[:, None]
    weights: FloatArray = x * _LAGRANGE[0]
    for coefficients in _LAGRANGE[1:-1]:
        weights += coefficients
        weights *= x
    weights += _LAGRANGE[-1]
    return weights


def _interpolate(table: FloatArray, start: IntArray, weights: FloatArray) -> FloatArray:
    value = weights[:, :1] * table[start]
    for offset in range(1, 2 * _REACH):
        row = table[start + offset]
        row *= weights[:, offset, None]
        value += row
    return value


def _log1p_exp(parts: list[FloatArray]) -> FloatArray:
    """log(1 + e^x) or log(1 + e^x + e^y), even where the last exponential would overflow."""
    top = np.maximum(parts[-1] - 600.0, 0.0) if parts[-1].max() > 600 else 0.0
    moment = np.exp(np.minimum(parts[0] - top, 600.0))
    for part in parts[1:]:
        moment += np.exp(part - top)
    return np.log1p(moment, out=moment) + top


@lru_cache(maxsize=512)
def curve(rate: float, orders: tuple[float, ...]) -> Curve:
    """A shared curve: plans with the same rate reuse its table."""
    return Curve(rate, orders)
