"""The grid of single numbers that clients report beside their vectors: bits and metrics.

Guarantee: a number lies in [-1/2, 1/2] and is a multiple of `1 / steps`, so that whatever is added
to a sum of them stays on the grid: no digit of a release betrays the sum. A unit has at least 2^12
steps, and noise, or each client's share of it, has a deviation of at least 2^18: it then counts as
continuous noise (`accounting.smoothing`) but for 1e-10 of it, which plans leave over, and shares
add up to a discrete Gaussian but for `exp(-10^11)` (`grid.sum_excess`). Steps are powers of two, so
sums of doubles are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from fedspend.errors import InvalidInput
from fedspend.noise.discrete_gaussian import Words, sample

FEWEST_STEPS = 2**12  # a unit
_NOISE_STEPS = 18  # log2 of the steps that noise has at least
MOST_STEPS = 2**53
_TAIL = 16.0  # deviations that noise never reaches: less often than once in 10^55 draws


@dataclass(frozen=True)
class NumberGrid:
    """`own_deviation` is that of the noise that each client adds itself; 0 under central noise."""

    steps: int
    own_deviation: float = 0.0

    @classmethod
    def of(cls, deviation: float, clients: int, *, distributed: bool) -> NumberGrid:
        """The grid for noise of this deviation on a sum, with or without shares of the clients."""
        if deviation == 0:  # where nothing is to be protected
            return cls(FEWEST_STEPS)
        share = float(deviation / math.sqrt(clients)) if distributed else 0.0
        steps = steps_for(share or deviation)
        if not steps * (clients / 2 + _TAIL * deviation) <= 2.0**53:
            raise InvalidInput(
                f"noise of deviation {deviation:g} is too small to add up one number of each of "
                f"{clients:,} clients exactly; raise it"
            )
        return cls(steps, share)

    def rounded(self, numerator: int, denominator: int, coin: float) -> int:
        """The fraction in whole steps, rounded at random, without bias, by a uniform coin. It stays
        within the two multiples around it, however the coin falls.
        """
        whole, rest = divmod(numerator * self.steps, denominator)
        if denominator > 2**53:  # a product of doubles could be infinite
            return whole + int(Fraction(coin) * denominator < rest)
        return whole + int(coin * denominator < rest)

    def noise(self, variance: Fraction, words: Words) -> int:
        """Discrete Gaussian noise, in steps; the variance is in squared units, and one that is not
        positive is refused.
        """
        return int(sample(variance * self.steps**2, 1, words)[0])

    def own_noise(self, words: Words) -> int:
        """A client's own share, in steps; none under central noise."""
        if self.own_deviation == 0:
            return 0
        return self.noise(Fraction(self.own_deviation) ** 2, words)

    def holds(self, number: float) -> bool:
        """Whether this is a multiple of a step, and small enough for sums to be exact."""
        scaled = number * self.steps
        return math.isfinite(scaled) and scaled == math.floor(scaled) and abs(scaled) <= 2.0**50


def steps_for(deviation: float) -> int:
    """How many steps a unit has, for noise or a share of it of this deviation.

    >>> steps_for(1.0), steps_for(1000.0), steps_for(0.6)
    (262144, 4096, 524288)
    """
    return int(2 ** max(12, math.ceil(_NOISE_STEPS - math.log2(deviation))))
