"""Discrete noise, accounted as slightly smaller continuous noise.

Guarantee: a discrete Gaussian of deviation sigma, counted in steps of its grid, around any whole
number, is the result of rounding continuous noise of deviation `sqrt(sigma^2 - 3^2)` to whole
numbers in a way that does not see the data, up to a factor `exp(+-2 eta)` per number with
`eta = 2 exp(-2 pi^2 3^2) (1 + ...) < 2e-77`; docs/explanation/methods.md has the proof. Rounding is
post-processing. So discrete noise of `steps` steps or more costs at most what continuous noise of
`share(steps)` times its multiplier costs, at every order and by every accountant: all the factors
together change a claim by less than a double can tell.
"""

from __future__ import annotations

import math

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput

ROUNDING_DEVIATION = 3.0  # in steps: deviation of the random rounding of continuous noise
FEWEST_STEPS, MOST_STEPS = 16, 4096
# the tail of the noise that a modulus must hold, in deviations: enough for 2^40 numbers
_TAIL = 11.0


def share(steps: float) -> float:
    """The share of a discrete noise multiplier that is accounted as continuous.

    >>> 1 - share(4096) < 3e-7, round(share(16), 4)
    (True, 0.9823)
    """
    return math.sqrt(1 - (ROUNDING_DEVIATION / steps) ** 2)


def accounted(noise: FloatArray, steps: int | None) -> FloatArray:
    """Continuous noise that costs no less than noise drawn on a grid; None: it is continuous."""
    return noise if steps is None else noise * share(steps)


def drawn(noise: FloatArray, steps: int | None) -> FloatArray:
    """The other way: what must be drawn for this much to count, and a rounding error more."""
    return noise if steps is None else noise / share(steps) * (1 + 2.0**-50)


def steps_of(round_noise: FloatArray, clients: int, bits: int, *, distributed: bool) -> int:
    """The least deviation of any round's noise, in steps of its grid: a power of two.

    At most `MOST_STEPS`. It is that of the whole noise, or of each client's part if clients add it.
    The grid's step is the smallest power of two with which the sum of all clips (`clients` times
    the plan's clip) and the tail of the noise stay below `2^(bits - 1)`.
    """
    least = float(round_noise.min())
    steps = least * (2 ** (bits - 1) - 1) / (clients + _TAIL * least) / 2
    if distributed:
        steps /= math.sqrt(clients)
    if not steps >= FEWEST_STEPS:
        raise InvalidInput(
            f"{bits} bits are too few for discrete noise among {clients} clients: its deviation is "
            f"{steps:.3g} grid steps and must be at least {FEWEST_STEPS}; raise bits"
        )
    return int(min(MOST_STEPS, 2 ** math.floor(math.log2(steps))))
