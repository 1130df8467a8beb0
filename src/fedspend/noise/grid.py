"""Updates as whole numbers: a public grid per round, rounding within the clip, and modular sums.

Guarantee: a rounded update is a vector of whole numbers whose norm is at most `clip / step`; this
is checked on the result, however the coins fell. So discrete Gaussian noise of deviation
`clip * noise_multiplier / step` protects it as the plan's Gaussian protects a real vector
(docs/explanation/methods.md). The grid depends on planned and released numbers only. The
clients' part of a sum cannot overflow; with noise, a sum overflows with a probability of at
most 2^-40 per round.

A real run has a grid even if its noise is planned as continuous: floating-point noise would betray
by its last digits which sum it was added to. That grid is as fine as doubles allow: sums are exact,
and noise has so many steps that it counts as the planned continuous noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedspend.basics.arrays import PIECE, FloatArray, IntArray, pieces
from fedspend.errors import InvalidInput, Refused
from fedspend.noise.discrete_gaussian import MOST_DEVIATION, Words, sample, sample_around

if TYPE_CHECKING:
    from fedspend.planning.plan import Plan

FEWEST_BITS, MOST_BITS = 8, 32
# In place of continuous noise: whole numbers below 2^53 add up exactly in doubles. Noise of so many
# steps counts as continuous (`accounting.smoothing`) but for 4e-12 of it; plans leave more over.
FINE_BITS, FINE_STEPS = 53, 2**20
_OVERFLOW = 2.0**-40
_ROUNDING = 1 - 1e-9  # the plan's clip and noise match to 1e-9
_TRIALS = 20
# At order a, a round costs at most (2a - 1) / (a - 1) <= 3 times the excess extra. Plans leave 1e-8
# of every budget unspent.
_EXCESS = 1e-18


@dataclass(frozen=True)
class Grid:
    """Vectors of `dimension` multiples of `step`, summed modulo `2 ** bits`.

    `step` is a power of two, so that scaling is exact.
    """

    step: float
    bits: int
    dimension: int

    @classmethod
    def of(cls, clip_norms: FloatArray, deviation: float, dimension: int, bits: int) -> Grid:
        """The finest grid on which sums of clipped updates never overflow, and noise hardly ever.

        `deviation` is that of the noise.
        """
        if bits != FINE_BITS:
            check_bits(bits)
        # a discrete Gaussian is sub-Gaussian: P(|x| >= t) <= 2 exp(-t^2 / (2 variance))
        tail = deviation * math.sqrt(2 * math.log(2 * dimension / _OVERFLOW))
        largest = float(clip_norms.sum()) + tail
        least = max(largest / (2 ** (bits - 1) - 1), deviation / MOST_DEVIATION)
        grid = cls(2.0 ** math.ceil(math.log2(least)), bits, dimension)
        if not bool(np.all(grid.inner(clip_norms) > 0)):
            raise InvalidInput(
                f"{bits} bits are too few for discrete noise here: {clip_norms.size} clients and "
                f"{dimension} parameters need a grid step of {grid.step:g}, which is too coarse "
                f"for a clip of {clip_norms.min():g}; raise bits"
            )
        return grid

    @property
    def fine(self) -> bool:
        """Whether it stands in for real numbers: rounding towards zero then loses nothing that
        counts, and never makes a vector longer.
        """
        return self.bits == FINE_BITS

    def inner(self, clip_norms: FloatArray) -> FloatArray:
        """The clip to use before rounding; rounded updates then mostly stay within `clip_norms`.

        If it is not positive, there is no such clip. Random rounding adds at most `step^2 d / 4` to
        the expected square of the norm; Kairouz, Liu, Steinke (2021) bound the square by
        `(c + step sqrt(d))^2` always, and with probability 1 - exp(-1/2) by
        `c^2 + step^2 d/4 + step (c + step sqrt(d)/2)`.
        """
        clip, step, d = clip_norms * _ROUNDING, self.step, self.dimension
        if self.fine:
            return clip
        room = clip**2 + step**2 * (1 - d - 2 * math.sqrt(d)) / 4
        likely = np.sqrt(np.maximum(room, 0.0)) - step / 2
        inner: FloatArray = np.maximum(likely, clip - step * math.sqrt(d))
        return inner

    def rounded(self, update: FloatArray, clip: float, coins: np.random.Generator) -> FloatArray:
        """`update / step`, rounded at random to whole numbers of norm at most `clip / step`.

        Each draw is unbiased; a result that is too long is drawn again, and after that rounded
        towards zero. The coins need not be secret: the bound holds for all of them. On a fine grid
        all is rounded towards zero.
        """
        if self.fine:
            return np.trunc(update / self.step)
        # a sum of squares in doubles is off by at most this factor
        limit = (clip * _ROUNDING / self.step) ** 2 * (1 - (update.size + 8) * 2.0**-52)
        whole, drawn = np.empty_like(update), np.empty(min(PIECE, update.size))
        for _ in range(_TRIALS):
            for piece in pieces(update.size):
                here = whole[piece]
                np.divide(update[piece], self.step, out=here)
                here += coins.random(out=drawn[: here.size])
                np.floor(here, out=here)
            if float(whole @ whole) <= limit:
                return whole
        whole = np.trunc(update / self.step)
        return whole if float(whole @ whole) <= limit else np.zeros_like(whole)

    def variance(self, deviation: float) -> Fraction:
        """The variance of noise of this deviation in squared steps of the grid, exactly: a square
        in doubles may be zero while the deviation is not.
        """
        return (Fraction(deviation) / Fraction(self.step)) ** 2

    def in_steps(self, variance: float | Fraction) -> Fraction:
        """A variance in squared steps of the grid, exactly."""
        return Fraction(variance) / Fraction(self.step) ** 2

    def noise(self, variance: Fraction, words: Words) -> IntArray:
        """Discrete Gaussian noise on every coordinate; the variance is in squared steps. One that
        is not positive is refused: whoever asks for noise does not go without.
        """
        return sample(variance, self.dimension, words)

    def wrapped(self, total: IntArray) -> tuple[IntArray, int]:
        """The sum modulo `2 ** bits`, centred on zero, and how many numbers that changed."""
        half = 2 ** (self.bits - 1)
        inside: IntArray = (total + half) % (2 * half) - half
        return inside, int((inside != total).sum())


def squared(deviation: float, times: int = 1) -> Fraction:
    """`times` the square, rounded as doubles round it, and at every size: where their own square
    would be zero or infinite, this one is not.

    >>> squared(0.3) == Fraction(0.3**2), float(squared(1e-170) / Fraction(1e-170) ** 2)
    (True, 1.0)
    """
    mantissa, exponent = math.frexp(deviation)
    return Fraction(times * mantissa**2) * Fraction(4) ** exponent


def noised_exactly(total: FloatArray, deviation: float, words: Words) -> FloatArray:
    """A sum of real numbers with Gaussian noise: multiples of a power of two near 2^-32 deviations.

    The noise is a discrete Gaussian around the sum itself, which is not rounded first; it is what
    continuous noise becomes when it is rounded at random, and that is post-processing. It costs
    what continuous noise costs but for 1e-18 of it (docs/explanation/methods.md).
    """
    step = 2.0 ** (math.floor(math.log2(deviation)) - 32)
    whole = sample_around(total / step, (Fraction(deviation) / Fraction(step)) ** 2, words)
    return whole.astype(np.float64) * step


def check_bits(bits: int) -> int:
    if not FEWEST_BITS <= bits <= MOST_BITS:
        raise InvalidInput(f"bits must be from {FEWEST_BITS} to {MOST_BITS}, got {bits!r}")
    return bits


def check_on_grid(plan: Plan, dimension: int, bits: int, distributed: bool) -> None:
    """Before training, refuse a plan whose claims would not hold on the grid in some round."""
    fine = bits == FINE_BITS
    if not (fine or plan.discrete):
        raise Refused(
            "the plan is for continuous noise: its claims use orders at which nothing is proven "
            "for discrete noise; plan with noise = 'discrete'"
        )
    s, parts = plan.schedules, len(plan.clients) if distributed else 1
    steps = FINE_STEPS if fine else plan.grid_steps
    # noise may change from round to round while clips stay, and with it the grid and what a part of
    # the noise is worth on it
    other = (s.clip_norm[1:] != s.clip_norm[:-1]).any(axis=1) | (
        plan.round_deviation[1:] != plan.round_deviation[:-1]
    )
    for t in np.flatnonzero(np.append(True, other)):
        deviation = float(plan.round_deviation[t])
        grid = Grid.of(s.clip_norm[t, s.of_client], deviation, dimension, bits)
        if steps is not None:
            check_steps(grid, deviation, parts, steps)
            continue
        # a clip that follows releases may make the grid coarser by a factor of 2 before it is
        # rounded to a power of two
        if (
            distributed
            and not sum_excess(grid.variance(deviation) / parts / 4, parts, dimension) <= _EXCESS
        ):
            raise InvalidInput(
                f"{bits} bits are too few for distributed discrete noise among {parts} clients: "
                "each part has a deviation of only "
                f"{deviation / grid.step / math.sqrt(parts):.3g} grid steps, and parts that coarse "
                "do not add up to a discrete Gaussian; raise bits"
            )


def check_steps(grid: Grid, deviation: float, parts: int, least: int) -> None:
    """Refuse noise, or parts of it, that is coarser on its grid than the plan reckons with."""
    if not grid.variance(deviation) / parts >= Fraction(least) ** 2:
        of_what = "the noise" if parts == 1 else "a client's part of the noise"
        if grid.fine:
            raise Refused(
                f"{of_what} is too small beside the sum of all clips: whole numbers that doubles "
                f"hold exactly give it {deviation / grid.step / math.sqrt(parts):.4g} steps, and "
                f"{least} are needed; raise the noise, or ask fewer clients"
            )
        raise Refused(
            f"{grid.bits} bits are too few: {of_what} has a deviation of "
            f"{deviation / grid.step / math.sqrt(parts):.4g} steps of its grid, and the plan "
            f"reckons with {least}; raise bits, or plan for this noise and these bits"
        )


def sum_excess(variance: Fraction, parts: int, dimension: int) -> float:
    """A bound on `|log(P(x) / Q(x))|`, how far a sum of discrete Gaussians is from a single one.

    P is the sum of `parts` discrete Gaussian vectors of at least this variance, Q a single one of
    the total variance. Two of variances a and b differ from one of a + b by the shift t in
    `sum_x exp(-(x - t)^2 / (2 v))`, v = ab/(a+b), which by Poisson's formula is constant up to a
    factor `1 +- 2 sum_n exp(-2 pi^2 n^2 v)`. From v = 1/8 on that is at most `5 exp(-2 pi^2 v)` in
    logarithms, and v is at least half the smaller variance. The bound of Kairouz, Liu, Steinke
    (2021) is twice this one.
    """
    if parts <= 1:
        return 0.0
    if not variance >= Fraction(1, 4):
        return math.inf
    return 10 * dimension * (parts - 1) * math.exp(-min(700.0, math.pi**2 * float(variance)))
