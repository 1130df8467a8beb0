"""Exact samples of the discrete Gaussian: whole numbers x, weighted by `exp(-x^2 / (2 variance))`.

Guarantee: the samples have exactly that distribution, for any positive rational variance, if the
64-bit words they are made from are uniform. No rounding of a logarithm or an exponential can shift
a probability: a decision that floating point cannot make with certainty is made again in decimal
arithmetic, with as many digits and random bits as it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, pieces
from fedspend.errors import InvalidInput

Words = Callable[[int], npt.NDArray[np.uint64]]  # gives that many fresh uniform 64-bit words

MOST_DEVIATION = 2.0**40  # 64 blocks beyond it are still exact in a double
# |p computed - p| is below 2^-45: a few units in the last place while the exponent is below 40;
# above that, p itself is below 1e-13.
_MARGIN = 2.0**-40
_AT_ONCE = 1 << 16  # proposals that fit into the cache


def sample(variance: Fraction, size: int, words: Words) -> IntArray:
    """`size` independent samples.

    Rejection sampling from an envelope that needs random bits only: |x| = k s + j, where s is a
    power of two near the deviation, k is geometric with ratio 1/2 (trailing zeros of a word) and j
    is uniform below s. A proposal is kept with probability `2^k exp(-x^2 / (2 variance)) / M`; M is
    an upper bound on the numerator. About half of the proposals are kept.
    """
    _check(variance)
    shift = _shift(variance)
    ceiling = _ceiling(variance, shift)
    parts: list[IntArray] = []
    missing = size
    while missing > 0:
        count = min(_AT_ONCE, 2 * missing + 64)
        proposed, accept = _propose(np.zeros(count), shift, variance, ceiling, words)
        parts.append(proposed[np.flatnonzero(accept)[:missing]])
        missing -= parts[-1].size
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def sample_around(centre: FloatArray, variance: Fraction, words: Words) -> IntArray:
    """Whole numbers x, weighted by `exp(-(x - centre)^2 / (2 variance))`: one for each centre.

    A centre need not be whole: nothing is rounded before noise is added. Made as `sample` makes
    them; a proposal that is not kept is made again for the same centre.
    """
    _check(variance)
    if not variance >= 2**20:  # the ceiling is for centres that are close beside the deviation
        raise InvalidInput(
            f"noise around a real number must have a variance of at least 2^20, got "
            f"{float(variance):g}"
        )
    if not bool(np.all(np.abs(centre) <= 2.0**61)):
        raise InvalidInput("noise around a real number needs a centre of at most 2^61")
    shift = _shift(variance)
    # |x - f| >= |x| - 1 for a fraction f, so weights grow by at most exp(|x| / variance): less than
    # this up to 16 deviations, and beyond that there is nothing to bound
    ceiling = _ceiling(variance, shift) * (1 + Fraction(1, 32))
    below = np.floor(centre)
    fraction, result = centre - below, below.astype(np.int64)
    missing = np.arange(centre.size)
    while missing.size > 0:
        again = []
        for start in range(0, missing.size, _AT_ONCE):
            these = missing[start : start + _AT_ONCE]
            proposed, accept = _propose(fraction[these], shift, variance, ceiling, words)
            result[these[accept]] += proposed[accept]
            again.append(these[~accept])
        missing = np.concatenate(again)
    return result


def _check(variance: Fraction) -> None:
    if not 0 < variance <= Fraction(MOST_DEVIATION) ** 2:
        raise InvalidInput(
            "the variance of discrete noise must be positive and at most 2^80, got "
            f"{float(variance):g}"
        )


def _shift(variance: Fraction) -> int:
    return max(0, round(math.log2(math.sqrt(variance))))


def _ceiling(variance: Fraction, shift: int) -> Fraction:
    """M: at least the largest `2^k exp(-(k s)^2 / (2 variance))` for k = 0, 1, ..., rounded up."""
    ratio = float(Fraction(4**shift) / variance)
    peak = math.floor(math.log(2) / ratio) if ratio > 0 else 0
    largest = max(k * math.log(2) - k * k * ratio / 2 for k in (0, peak, peak + 1))
    return Fraction(math.ceil(math.exp(largest) * (1 + 1e-9) * 2**20) + 1, 2**20)


def _propose(
    fraction: FloatArray, shift: int, variance: Fraction, ceiling: Fraction, words: Words
) -> tuple[IntArray, BoolArray]:
    """A proposal for every fraction of a centre, and which of them are accepted."""
    count = fraction.size
    drawn = words(count)
    block = _trailing_zeros(drawn >> np.uint64(shift + 1), 63 - shift, words)
    coin = words(count)
    proposed, accept = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_)
    unsure = np.empty(count, dtype=np.bool_)
    for piece in pieces(count):
        # arithmetic instead of choices: a processor cannot guess how random bits will fall
        bits = drawn[piece].view(np.int64)
        negative = (bits >> shift) & 1
        size = (block[piece] << shift) + (bits & (2**shift - 1))
        here = np.multiply(size, 1 - 2 * negative, out=proposed[piece])
        away = here - fraction[piece]
        away *= away
        away /= float(2 * variance)
        chance = block[piece] * math.log(2)
        chance -= away
        np.exp(chance, out=chance)
        chance /= float(ceiling)
        uniform = _as_float(coin[piece])
        uniform *= 2.0**-64
        np.less(uniform, chance, out=accept[piece])
        uniform -= chance
        np.less_equal(np.abs(uniform, out=uniform), _MARGIN, out=unsure[piece])
    for n in np.flatnonzero(unsure):
        exactly = int(proposed[n]) - Fraction(float(fraction[n]))
        accept[n] = _decide(int(coin[n]), exactly, int(block[n]), variance, ceiling, words)
    zero = np.flatnonzero(proposed == 0)  # it has one sign only
    accept[zero] &= (drawn[zero] >> np.uint64(shift)) & np.uint64(1) == 0
    return proposed, accept


def _trailing_zeros(values: npt.NDArray[np.uint64], bits: int, words: Words) -> IntArray:
    """Geometric with ratio 1/2: the number of zeros below the lowest set bit of `bits` random bits.

    If no bit is set, counting goes on in fresh words.
    """
    lowest = values & (~values + np.uint64(1))
    # the exponent of a power of two, from the bits of its double
    zeros: IntArray = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023
    for n in np.flatnonzero(values == 0):
        zeros[n] = bits + int(_trailing_zeros(words(1), 64, words)[0])
    return zeros


def _as_float(values: npt.NDArray[np.uint64]) -> FloatArray:
    """The nearest doubles. Both halves are exact, and their sum is rounded once; numpy's own way
    asks of each number whether it has its highest bit, which takes five times as long.
    """
    high = (values >> np.uint64(32)).astype(np.float64)
    high *= 2.0**32
    high += (values & np.uint64(2**32 - 1)).astype(np.float64)
    return high


def _decide(
    coin: int, away: Fraction, block: int, variance: Fraction, ceiling: Fraction, words: Words
) -> bool:
    """Whether a uniform number that begins with the bits of `coin` means accept.

    It does if it is below `2^block exp(-away^2 / (2 variance)) / ceiling`.
    """
    power = away * away / (2 * variance)
    bits, digits = 64, 40
    while True:
        with localcontext() as context:
            context.prec = digits + 30
            exponent = Decimal(power.numerator) / Decimal(power.denominator)
            chance = (-exponent).exp() * 2**block * ceiling.denominator / ceiling.numerator
            # far above the rounding of any step, since the chance is at most 1
            error = Decimal(10) ** -digits
            if Decimal(coin + 1) / 2**bits <= chance - error:
                return True
            if Decimal(coin) / 2**bits >= chance + error:
                return False
        coin, bits, digits = coin << 64 | int(words(1)[0]), bits + 64, digits + 20
