"""From coins and guesses to a lower bound on epsilon.

Guarantee: if every coin decides about one protected unit of an (epsilon, delta)-DP mechanism, and
guesses are made from releases by a rule that was fixed without these coins, then
`lower_bound` exceeds epsilon with probability at most `1 - confidence`. Nothing is assumed about
the mechanism: neither that noise is Gaussian, nor that coins of one run do not affect each other.
Runs must be independent of each other; they are, because each has its own seed.

Why (after Steinke, Nasr, Jagielski 2023, Theorem 5.2). Take the coins of a run in any order, and
let a and b be the probabilities of its guesses t and of the earlier coins, given that this coin
fell +1 or -1. If the guess is +1, it is right with probability a / (a + b). Where a <= e^epsilon b,
that is at most q = e^epsilon / (1 + e^epsilon). Otherwise a = e^epsilon b + x: with probability
x / (a + b) call the guess a gift; given that it is not one, it is right with probability q. Since
the sums of x over all outcomes are at most delta in both directions, a coin is a gift with
probability at most delta. So if no more than s guesses were gifts, at most s + Bin(r - s, q) of r
guesses are right. Gifts of one run may come all at once, those of different runs are independent:
their number is a sum of independent numbers between 0 and the coins of a run, with expectation at
most delta times the coins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedspend.basics.arrays import FloatArray

LARGEST = 50.0  # no number of coins that fits into memory can show more


@dataclass(frozen=True)
class Coins:
    """A number of independent runs, and the most coins in each."""

    runs: int
    each: int

    @property
    def all(self) -> int:
        return self.runs * self.each


def gift_tail(gifts: int, coins: Coins, delta: float) -> float:
    """A bound on the probability of more than `gifts` gifts among these coins."""
    if coins.each == 1:
        return float(stats.binom.sf(gifts, coins.runs, delta))
    share = (gifts + 1) / coins.all
    if share > 1:
        return 0.0
    if share <= delta or delta == 0:
        return float(delta > 0)
    rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - delta))
    divergence = share * math.log(share / delta) + rest
    markov = delta * coins.all / (gifts + 1)
    return min(1.0, markov, math.exp(-coins.runs * divergence))  # Chernoff, in units of one run


def most_gifts(coins: Coins, delta: float, level: float) -> int:
    """The smallest number that the gifts exceed with probability at most `level`."""
    low, high = -1, coins.all
    while high - low > 1:
        middle = (low + high) // 2
        if gift_tail(middle, coins, delta) <= level:
            high = middle
        else:
            low = middle
    return high


def lower_bound(right: int, wrong: int, coins: Coins, delta: float, confidence: float) -> float:
    """Epsilon is at least this, at the given confidence; 0 if nothing can be said.

    >>> round(lower_bound(600, 0, Coins(1, 1000), delta=0.0, confidence=0.95), 3)
    5.089
    """
    # half of the risk is for more gifts than assumed, half for luck
    level = (1 - confidence) / 2
    bound = bounds(np.array([right]), np.array([wrong]), most_gifts(coins, delta, level), level)
    return float(bound[0])


def bounds(right: FloatArray, wrong: FloatArray, gifts: int, level: float) -> FloatArray:
    """The bounds for many counts at once.

    Clopper and Pearson's bound on the share of right guesses, without the gifts, as an epsilon.
    """
    earned = np.maximum(np.asarray(right, dtype=np.float64) - gifts, 0.0)
    share = np.where(
        earned > 0, stats.beta.ppf(level, np.maximum(earned, 1.0), np.asarray(wrong) + 1.0), 0.5
    )
    logit = np.log(share) - np.log1p(-np.minimum(share, 1 - 1e-16))
    found: FloatArray = np.clip(logit, 0.0, LARGEST)
    return found
