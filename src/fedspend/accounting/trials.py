"""A random number of trials of which only the best is released: how it is drawn and what it costs.

Guarantee: if one trial has the Rényi curve R in both directions, then the best of K independent
trials has at most the curve `price(R)`, provided that K is drawn from this distribution and never
shown (Papernot and Steinke 2022, https://openreview.net/forum?id=-70L8lpp9DF, Theorem 2;
docs/how-to/tuning.md derives it). "Best" is any order of the trials' whole outputs; how ties are
broken does not matter, as trials are alike.

`draw` computes with 60 digits, so the distribution that is drawn from is the one that is accounted
to 1e-45.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import numpy as np

from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS
from fedspend.basics.arrays import FloatArray
from fedspend.basics.removed import refuse_removed
from fedspend.errors import InvalidInput, finite_number

TUNE_ORDERS: tuple[float, ...] = tuple(sorted({*ORDERS, *WHOLE_ORDERS}))
"""The orders of a tuned curve: all that histories are read at, with and without discrete rounds."""

DIGITS, BITS = 60, 192  # of the numbers that the number of trials is drawn with
MOST_TRIALS = 1000.0  # the largest mean
# Below this the tail is so heavy that millions of trials may be drawn, and nobody could sum it up.
SMALLEST_GAMMA = 1e-5
NAMES = ("logarithmic", "geometric", "negative-binomial")
DEFAULT = "logarithmic"
DEFAULT_MEAN = 10.0


@dataclass(frozen=True)
class NegativeBinomial:
    """P(K = k) is proportional to `(1 - gamma)^k prod_{0 < l < k} (l + eta) / (l + 1)`, k >= 1.

    `eta` 0 is the logarithmic distribution, 1 the geometric one.
    """

    eta: float
    gamma: float
    name: ClassVar[str] = "negative-binomial"

    def __post_init__(self) -> None:
        if not -1 < self.eta <= 100:
            raise InvalidInput(f"eta must lie in (-1, 100], got {self.eta!r}")
        if not SMALLEST_GAMMA <= self.gamma < 1:
            raise InvalidInput(
                f"gamma must lie in [{SMALLEST_GAMMA:g}, 1), got {self.gamma!r}; choose fewer "
                "trials or a larger eta"
            )

    @property
    def mean(self) -> float:
        return mean_of(self.eta, self.gamma)

    def price(self, curve: FloatArray, orders: tuple[float, ...]) -> FloatArray:
        """Theorem 2: `R(a) + (1+eta) min_b [(1 - 1/b) R(b) + log(1/gamma) / b] + log E[K] / (a-1)`.

        The second order b may be any of `orders`, or 1, where R(b) does not count. Divergences
        rise with their order, so the price at any higher order is a bound, too.
        """
        alpha = np.asarray(orders)
        second = (1 - 1 / alpha) * curve - math.log(self.gamma) / alpha
        least = np.minimum(second.min(axis=-1, keepdims=True), -math.log(self.gamma))
        return rising(curve + (1 + self.eta) * least + math.log(self.mean) / (alpha - 1))

    def draw(self, word: int) -> int:
        with localcontext() as context:
            context.prec = DIGITS
            eta, gamma = Decimal(self.eta), Decimal(self.gamma)
            first = (1 - gamma) / -gamma.ln()
            if eta != 0:
                first = eta * (1 - gamma) / ((-eta * gamma.ln()).exp() - 1)
            return _inverse(word, 1, first, lambda k: (1 - gamma) * (k + eta) / (k + 1))

    def content(self) -> dict[str, Any]:
        return {"name": self.name, "eta": self.eta, "gamma": self.gamma}


def _inverse(
    word: int, smallest: int, probability: Decimal, ratio: Callable[[int], Decimal]
) -> int:
    """The smallest k whose distribution function is above `word` / 2^BITS.

    `probability` is that of `smallest`, and `ratio(k)` is P(k + 1) / P(k).
    """
    wanted, k, below = Decimal(word) / Decimal(2**BITS), smallest, probability
    least = Decimal(10) ** -(DIGITS - 5)
    # in the last tail, where 1 is missed by rounding alone, the sum no longer moves
    while not wanted < below and (ratio(k) >= 1 or probability > least):
        probability *= ratio(k)
        k, below = k + 1, below + probability
    return k


def rising(bound: FloatArray) -> FloatArray:
    """The lowest of the bounds at each order and all higher ones; orders are ascending."""
    lowest: FloatArray = np.minimum.accumulate(bound[..., ::-1], axis=-1)[..., ::-1]
    return lowest


def mean_of(eta: float, gamma: float) -> float:
    """E[K] of the truncated negative binomial."""
    log = -math.log(gamma)
    if abs(eta * log) < 1e-9:  # the logarithmic limit
        return math.expm1(log) / log
    return eta * math.expm1(log) / -math.expm1(-eta * log)


def trials_of(
    distribution: str = DEFAULT, mean: float = DEFAULT_MEAN, eta: float | None = None
) -> NegativeBinomial:
    """The distribution with this name and mean; `eta` is for "negative-binomial".

    >>> found = trials_of("geometric", 10)
    >>> found.eta, round(found.gamma, 6)
    (1.0, 0.1)
    """
    refuse_removed(f"--distribution {distribution}")
    if distribution not in NAMES:
        raise InvalidInput(f"distribution must be one of {', '.join(NAMES)}; got {distribution!r}")
    mean = finite_number("the mean number of trials", mean)
    if not 1 < mean <= MOST_TRIALS:
        raise InvalidInput(
            f"the mean number of trials must be above 1 and at most {MOST_TRIALS:g}, got {mean:g}"
        )
    if (eta is not None) != (distribution == "negative-binomial"):
        raise InvalidInput(
            'eta goes with distribution "negative-binomial", and only with it; got '
            f"{'no eta' if eta is None else f'eta {eta!r}'} with {distribution!r}"
        )
    shape = {"logarithmic": 0.0, "geometric": 1.0}.get(distribution)
    shape = finite_number("eta", eta) if shape is None else shape
    return NegativeBinomial(shape, _gamma_for(shape, mean))


def _gamma_for(eta: float, mean: float) -> float:
    from scipy.optimize import brentq  # slow to import, and a node of Flower's does so every time

    NegativeBinomial(eta, 0.5)  # refuses a bad eta

    def gap(log: float) -> float:
        return math.log(mean_of(eta, math.exp(-log))) - math.log(mean)

    return math.exp(-float(brentq(gap, 1e-12, 600.0, xtol=1e-13)))


def trials_from(content: Any) -> NegativeBinomial:
    """The distribution that `content` describes."""
    try:
        refuse_removed(f"--distribution {content['name']}")
        if content["name"] == NegativeBinomial.name:
            return NegativeBinomial(float(content["eta"]), float(content["gamma"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidInput(f"not a distribution of the number of trials: {content!r}")
