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

from fedspend.basics.arrays import IntArray
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
    if not 0 < variance <= Fraction(MOST_DEVIATION) ** 2:
        raise InvalidInput(
            "the variance of discrete noise must be positive and at most 2^80, got "
            f"{float(variance):g}"
        )
    shift = max(0, round(math.log2(math.sqrt(variance))))
    ceiling = _ceiling(variance, shift)
    parts: list[IntArray] = []
    missing = size
    while missing > 0:
        accepted = _propose(min(_AT_ONCE, 2 * missing + 64), shift, variance, ceiling, words)[
            :missing
        ]
        parts.append(accepted)
        missing -= accepted.size
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _ceiling(variance: Fraction, shift: int) -> Fraction:
    """M: at least the largest `2^k exp(-(k s)^2 / (2 variance))` for k = 0, 1, ..., rounded up."""
    ratio = float(Fraction(4**shift) / variance)
    peak = math.floor(math.log(2) / ratio) if ratio > 0 else 0
    largest = max(k * math.log(2) - k * k * ratio / 2 for k in (0, peak, peak + 1))
    return Fraction(math.ceil(math.exp(largest) * (1 + 1e-9) * 2**20) + 1, 2**20)


def _propose(
    count: int, shift: int, variance: Fraction, ceiling: Fraction, words: Words
) -> IntArray:
    """Those of `count` proposals that are accepted."""
    drawn = words(count)
    inside = (drawn & np.uint64(2**shift - 1)).astype(np.int64)
    negative = (drawn >> np.uint64(shift)) & np.uint64(1) == 1
    block = _trailing_zeros(drawn >> np.uint64(shift + 1), 63 - shift, words)
    size = (block << shift) + inside
    coin = words(count)
    chance = np.exp(
        block * math.log(2) - size.astype(np.float64) ** 2 / float(2 * variance)
    ) / float(ceiling)
    uniform = coin.astype(np.float64) * 2.0**-64
    accept = uniform < chance
    for n in np.flatnonzero(np.abs(uniform - chance) <= _MARGIN):
        accept[n] = _decide(int(coin[n]), int(size[n]), int(block[n]), variance, ceiling, words)
    accept &= ~((size == 0) & negative)  # zero has one sign only
    return np.where(negative, -size, size)[accept]


def _trailing_zeros(values: npt.NDArray[np.uint64], bits: int, words: Words) -> IntArray:
    """Geometric with ratio 1/2: the number of zeros below the lowest set bit of `bits` random bits.

    If no bit is set, counting goes on in fresh words.
    """
    lowest = values & (~values + np.uint64(1))
    # exact for powers of two; -1 if no bit is set
    zeros = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    for n in np.flatnonzero(values == 0):
        zeros[n] = bits + int(_trailing_zeros(words(1), 64, words)[0])
    return zeros


def _decide(
    coin: int, size: int, block: int, variance: Fraction, ceiling: Fraction, words: Words
) -> bool:
    """Whether a uniform number that begins with the bits of `coin` means accept.

    It does if it is below `2^block exp(-size^2 / (2 variance)) / ceiling`.
    """
    bits, digits = 64, 40
    while True:
        with localcontext() as context:
            context.prec = digits + 30
            exponent = Decimal(size * size * variance.denominator) / Decimal(2 * variance.numerator)
            chance = (-exponent).exp() * 2**block * ceiling.denominator / ceiling.numerator
            # far above the rounding of any step, since the chance is at most 1
            error = Decimal(10) ** -digits
            if Decimal(coin + 1) / 2**bits <= chance - error:
                return True
            if Decimal(coin) / 2**bits >= chance + error:
                return False
        coin, bits, digits = coin << 64 | int(words(1)[0]), bits + 64, digits + 20
