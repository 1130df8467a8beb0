"""How people might choose budgets: the three distributions that Liu et al. (2024, Section 7)
simulate, with their parameters.

`ThreeLevels`: a few fixed levels. `BoundedPareto`: most want strict protection, a few do not.
`BoundedMixGauss`: several modes. The bounded ones stay within `[low, high]`: Pareto by its inverse
distribution function, the mixture by drawing again. (The paper writes N(0.1, 0.01), N(1, 0.05),
N(5, 0.5); we read the second number as the standard deviation.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.budgets.population import apportion
from fedspend.errors import InvalidInput, whole_number


class Preferences(Protocol):
    """A population of budgets to draw from."""

    def draw(self, records: int, generator: np.random.Generator) -> FloatArray: ...


def _check_bounds(low: float, high: float) -> None:
    if not 0 < low < high < np.inf:
        raise InvalidInput(
            f"bounds must be positive and finite, the lower one first, got {low!r} and {high!r}"
        )


@dataclass(frozen=True)
class ThreeLevels:
    """Exact shares of fixed levels, in random order."""

    levels: tuple[float, ...] = (0.1, 1.0, 5.0)
    shares: tuple[float, ...] = (0.7, 0.2, 0.1)

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.shares):
            raise InvalidInput(
                f"there must be one share per level: got {len(self.shares)} for {len(self.levels)}"
            )
        if not all(0 < level < np.inf for level in self.levels):
            raise InvalidInput(f"levels must be positive and finite, got {self.levels}")

    def draw(self, records: int, generator: np.random.Generator) -> FloatArray:
        counts = apportion(self.shares, whole_number("records", records, 1))
        return generator.permutation(np.repeat(np.asarray(self.levels, dtype=np.float64), counts))


@dataclass(frozen=True)
class BoundedPareto:
    shape: float = 1.0
    low: float = 0.1
    high: float = 10.0

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)
        if not 0 < self.shape < np.inf:
            raise InvalidInput(f"shape must be positive and finite, got {self.shape!r}")

    def draw(self, records: int, generator: np.random.Generator) -> FloatArray:
        share = generator.random(whole_number("records", records, 1)) * (
            1 - (self.low / self.high) ** self.shape
        )
        budget: FloatArray = np.clip(
            self.low * (1 - share) ** (-1 / self.shape), self.low, self.high
        )
        return budget


@dataclass(frozen=True)
class BoundedMixGauss:
    means: tuple[float, ...] = (0.1, 1.0, 5.0)
    deviations: tuple[float, ...] = (0.01, 0.05, 0.5)
    shares: tuple[float, ...] = (0.7, 0.2, 0.1)
    low: float = 0.1
    high: float = 10.0

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)
        if not len(self.means) == len(self.deviations) == len(self.shares):
            raise InvalidInput(
                "a mixture needs one mean, one deviation and one share for each part"
            )
        if not all(self.low <= mean <= self.high for mean in self.means) or not all(
            0 < d < np.inf for d in self.deviations
        ):
            raise InvalidInput(
                f"means must lie in [{self.low:g}, {self.high:g}] and deviations must be positive "
                "and finite"
            )

    def draw(self, records: int, generator: np.random.Generator) -> FloatArray:
        counts = apportion(self.shares, whole_number("records", records, 1))
        part = generator.permutation(np.repeat(np.arange(len(self.means)), counts))
        budget, left = np.empty(records), np.arange(records)
        while left.size:  # ends, because each part's mean lies within the bounds
            drawn = generator.normal(
                np.asarray(self.means)[part[left]], np.asarray(self.deviations)[part[left]]
            )
            budget[left] = drawn
            left = left[~((drawn >= self.low) & (drawn <= self.high))]
        return budget


PREFERENCES: Mapping[str, Preferences] = MappingProxyType(
    {
        "three-levels": ThreeLevels(),
        "bounded-pareto": BoundedPareto(),
        "bounded-mix-gauss": BoundedMixGauss(),
    }
)
