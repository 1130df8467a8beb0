"""From a sum to a release: the one place where the server adds noise.

Guarantee: a release carries Gaussian noise of exactly the planned standard deviation, whoever
answered: what clients added counts as received, and the rest is topped up here. It is divided by
the planned denominator, never by a count. With a grid all this happens in whole numbers, and the
noise is a discrete Gaussian: nothing depends on floating point.

A mechanism may have a memory: noise that is correlated across rounds needs earlier draws.
`release(sum, memory)` returns the memory for the next round; the store keeps release and memory in
one file, so that a kill cannot separate them. The memory is private: anyone who knows it can remove
noise from a release. The current mechanisms remember nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray
from fedspend.noise.discrete_gaussian import Words
from fedspend.noise.grid import Grid, squared
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness

Memory = Mapping[str, npt.NDArray[Any]]
NO_MEMORY: Memory = {}


@dataclass(frozen=True, eq=False)
class Sum:
    """The input of a mechanism: a sum of bounded contributions, the noise already in it, and what
    was planned.
    """

    round: int
    total: FloatArray
    received_variance: float | Fraction  # on a grid at every size (`grid.squared`)
    deviation: float  # planned standard deviation of the noise on the sum
    denominator: float  # planned
    grid: Grid | None = None


@dataclass(frozen=True, eq=False)
class Noised:
    """The noised mean, and how many coordinates overflowed the grid's modulus (not private: for
    simulations only).
    """

    update: FloatArray
    overflowed: int | None = None


class Mechanism(Protocol):
    def start(self) -> Memory:
        """The memory before the first round; empty for a mechanism that has none."""
        ...

    def release(self, sum: Sum, memory: Memory) -> tuple[Noised, Memory]: ...


@dataclass(frozen=True)
class Gaussian:
    """Independent noise in every round: continuous, or discrete if the sum is on a grid."""

    randomness: Randomness

    def start(self) -> Memory:
        return NO_MEMORY

    def release(self, sum: Sum, memory: Memory) -> tuple[Noised, Memory]:
        return (
            self._continuous(sum) if sum.grid is None else self._discrete(sum, sum.grid)
        ), memory

    def _continuous(self, sum: Sum) -> Noised:
        missing, total = sum.deviation**2 - float(sum.received_variance), sum.total
        if missing > 0:
            total = total + np.sqrt(missing) * self.randomness.normal(
                total.size, "noise", sum.round
            )
        return Noised(total / sum.denominator)

    def _discrete(self, sum: Sum, grid: Grid) -> Noised:
        missing = grid.in_steps(squared(sum.deviation) - Fraction(sum.received_variance))
        noised = sum.total.astype(np.int64)
        if missing > 0:  # else all of it was received
            noised = noised + grid.noise(missing, self.randomness.words("noise", sum.round))
        wrapped, overflowed = grid.wrapped(noised)
        update: FloatArray = wrapped.astype(np.float64) * grid.step / sum.denominator
        return Noised(update, overflowed)


def release_bit(
    bits: float,
    deviation: float,
    denominator: float,
    randomness: Randomness,
    round: int,
    *,
    grid: NumberGrid | None = None,
    received: Fraction = Fraction(),
) -> float:
    """The noised share of clients whose update was within their clip, from the sum of their shifted
    bits.

    A client contributes 1/2, -1/2, or 0 if it has no rows, so zeroing one moves the sum by at most
    1/2. The noise is always discrete: a sum of halves plus a double would betray the sum by its
    last digits. `received` is the variance of what clients have added on `grid`.
    """
    grid = grid or NumberGrid.of(deviation, 1, distributed=False)
    words = randomness.words("bit-noise", round)
    return _release_number(bits, deviation, received, denominator, grid, words)


def release_metric(
    metrics: float,
    deviation: float,
    denominator: float,
    randomness: Randomness,
    round: int,
    *,
    grid: NumberGrid,
    received: Fraction = Fraction(),
) -> float:
    """The noised mean, over clients, of the share of held-out rows that are right, from the sum of
    their shifted metrics: like a bit, at most 1/2 from 0, and discrete.
    """
    words = randomness.words("metric-noise", round)
    return _release_number(metrics, deviation, received, denominator, grid, words)


def _release_number(
    total: float,
    deviation: float,
    received: Fraction,
    denominator: float,
    grid: NumberGrid,
    words: Words,
) -> float:
    """The sum, with its noise brought up to the planned deviation (`received` is in it already),
    over the planned denominator.
    """
    if deviation == 0:  # where nothing is to be protected
        return total / denominator + 0.5
    steps = int(total * grid.steps)  # exact: a multiple of a step, and a power of two
    missing = Fraction(deviation) ** 2 - received
    if missing > 0:  # else all of it was received
        steps += grid.noise(missing, words)
    return float(Fraction(steps, grid.steps)) / denominator + 0.5
