"""The privacy loss of one round, on a grid: never smaller than it is.

Guarantee: `round_losses` gives, for each direction, a distribution of losses on multiples of
`interval` that dominates the round's own, up to the errors that its caller adds (`MASS_ERROR`,
`slip`): whoever bounds the first bounds the second, also when rounds are composed.
docs/explanation/methods.md has the proof.

A round compares `P = (1-q) N(0, s^2) + q N(1, s^2)`, the client with its chance q of taking part,
with `Q = N(0, s^2)`, the client emptied. The loss is `log(P/Q)` under P ("remove") or `log(Q/P)`
under Q ("add"). Between two points of the grid lie a mass of P and a mass of Q; both are moved to
the two points so that neither changes (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray

# Masses of cells are right to this relative error; scipy's `ndtr` alone is right to 4e-14.
MASS_ERROR = 2e-12
# A cell this narrow, measured by how much the density changes in it, is integrated by a series.
_NARROW = 0.2


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses `(first + i) * interval` with mass `mass[i]`, and infinite ones with mass `beyond`."""

    first: int
    mass: FloatArray
    beyond: float

    @property
    def size(self) -> int:
        return int(self.mass.size)

    @cached_property
    def variance(self) -> float:
        """In squared steps of the grid."""
        index = np.arange(self.size)
        mean = float(self.mass @ index)
        return float(self.mass @ (index - mean) ** 2)


@dataclass(frozen=True, eq=False)
class RoundLosses:
    """Both directions of one round. A point of the grid may be off by `slip`."""

    remove: Losses
    add: Losses
    slip: float


@lru_cache(maxsize=512)
def round_losses(rate: float, noise: float, interval: float, reach: float) -> RoundLosses:
    """Losses of a round; those more than `reach` deviations out are counted as infinite."""
    low, high = (float(loss_at(z, rate, noise)) for z in (-reach, 1 / noise + reach))
    index = np.arange(math.floor(low / interval), math.ceil(high / interval) + 1)
    edge = _outcomes(index * np.float64(interval), rate, noise)
    absent = _normal_mass(edge[:-1], edge[1:])  # of Q
    present = _normal_mass(edge[:-1] - 1 / noise, edge[1:] - 1 / noise)
    mixed = (1 - rate) * absent + rate * present  # of P
    below, above = float(ndtr(edge[0])), float(ndtr(-edge[-1]))
    mixed_below, mixed_above = (
        (1 - rate) * tail + rate * float(ndtr(other))
        for tail, other in ((below, edge[0] - 1 / noise), (above, 1 / noise - edge[-1]))
    )
    remove = _on_points(index, mixed, absent, interval, beneath=mixed_below, beyond=mixed_above)
    add = _on_points(-index[::-1], absent[::-1], mixed[::-1], interval, beneath=above, beyond=below)
    slip = 2.0**-48 * (1 + max(abs(low), abs(high)) - math.log(rate))
    return RoundLosses(remove, add, slip)


def loss_at(z: float, rate: float, noise: float) -> float:
    """`log(P/Q)` at the outcome `z * noise`."""
    exponent = z / noise - 0.5 / noise**2
    return float(
        np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + exponent)
    )


def _outcomes(loss: FloatArray, rate: float, noise: float) -> FloatArray:
    """The outcome, in deviations, at which each loss is reached; -inf for losses below all.

    Two forms of `log((e^loss - (1 - q)) / q)`: each keeps the loss that is reached right to a few
    units in the last place on its side of 0.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = (1 - rate) * np.exp(-np.minimum(loss, 0.0))
        falling = np.minimum(loss, 0.0) + np.log1p(-np.minimum(left, 1.0)) - math.log(rate)
        rising = np.log1p(np.expm1(np.clip(loss, 0.0, 700.0)) / rate)
        rising = np.where(loss > 700, loss - math.log(rate), rising)
    found: FloatArray = noise * np.where(loss < 0, falling, rising) + 0.5 / noise
    return found


def _on_points(
    index: IntArray,
    upper: FloatArray,
    lower: FloatArray,
    interval: float,
    *,
    beneath: float,
    beyond: float,
) -> Losses:
    """Cells between points of the grid, as masses of those points.

    The loss is that of `upper` against `lower`. Of a cell's mass the part b goes to its upper
    point, with `a + b = upper` and `a e^-low + b e^-high = lower`; what rounding may have taken
    from b goes up too. Losses `beneath` the grid are raised to its first point.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.exp(index[:-1] * interval + np.log(lower) - np.log(upper))
    part = (1 - kept) / -math.expm1(-interval) + 4 * MASS_ERROR / interval
    part = np.where(upper > 0, np.clip(part, 0.0, 1.0), 0.0)
    mass = np.zeros(index.size)
    mass[:-1] = upper * (1 - part)
    mass[1:] += upper * part
    mass[0] += beneath
    return Losses(int(index[0]), mass, beyond)


def _normal_mass(left: FloatArray, right: FloatArray) -> FloatArray:
    """Mass of N(0, 1) between neighbouring edges, to `MASS_ERROR` of itself.

    Where a cell is narrow, the difference of two distribution functions would lose digits, and a
    series around its middle does not. Elsewhere the difference is taken in the nearer tail.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        width, middle = right - left, (left + right) / 2
        narrow: BoolArray = width * np.maximum(1.0, np.abs(middle)) <= _NARROW
    mass = np.empty(left.size)
    mass[narrow] = _series(middle[narrow], width[narrow])
    wide = ~narrow
    flip = left[wide] + right[wide] > 0
    from_left = np.where(flip, -right[wide], left[wide])
    from_right = np.where(flip, -left[wide], right[wide])
    mass[wide] = ndtr(from_right) - ndtr(from_left)
    return np.maximum(mass, 0.0)


def _series(middle: FloatArray, width: FloatArray) -> FloatArray:
    """`phi(m) w sum_k He_2k(m) (w/2)^2k / (2k+1)!`; the terms left out are below 1e-14 of it."""
    x, y = middle**2, (width / 2) ** 2
    hermite_4 = 3 + x * (x - 6)
    hermite_6 = -15 + x * (45 + x * (x - 15))
    hermite_8 = 105 + x * (-420 + x * (210 + x * (x - 28)))
    total = 1 + y * (
        (x - 1) / 6 + y * (hermite_4 / 120 + y * (hermite_6 / 5040 + y * hermite_8 / 362880))
    )
    mass: FloatArray = np.exp(-x / 2) * (width / math.sqrt(2 * math.pi)) * total
    return mass
