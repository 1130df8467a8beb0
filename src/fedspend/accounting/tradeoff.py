"""What a membership test can achieve at best: true positives against false positives.

A test looks at everything that was released and says "took part" or "did not". Of those that did
not take part it accuses a share, the false positive rate (FPR); of those that did, it recognises a
share, the true positive rate (TPR). A mechanism's trade-off curve is the largest TPR of any test at
each FPR.

Guarantee: every curve here is at or above the true one. Each comes from a bound that holds for the
mechanism: its epsilon and delta, its Rényi divergence, its pessimistic privacy loss distribution,
or a closed form. The smallest of several bounds is a bound, so `tightest` may take the lowest at
every point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from fedspend.accounting.pld import privacy_profile
from fedspend.basics.arrays import FloatArray, distinct_rows

Read = Callable[[FloatArray], FloatArray]

MOST_DISTINCT = 32  # different rounds that a privacy loss distribution is composed of
MOST_POINTS = 2e5  # of the grid of privacy losses
PROFILE = np.linspace(0.0, 25.0, 501)  # epsilons at which a privacy profile is read
SMALLEST = 1e-9  # delta of the profile that is still told apart
BINS = 2048  # for the strength of what an observer who sees participation gets to see
STEPS = 55  # of bisections: beyond the digits of a float


@dataclass(frozen=True, eq=False)
class TradeOff:
    """An upper bound on what tests achieve; `how` says what it was read from."""

    how: str
    read: Read
    advantage: float  # largest TPR - FPR of any test

    def tpr(self, fpr: Any) -> FloatArray:
        """The largest TPR at each FPR.

        >>> gaussian(1.0).tpr([0.01, 0.5]).round(4).tolist()
        [0.0924, 0.8413]
        """
        asked = np.asarray(fpr, dtype=np.float64)
        found: FloatArray = np.clip(self.read(np.atleast_1d(asked)), np.atleast_1d(asked), 1.0)
        return found.reshape(asked.shape)

    @property
    def accuracy(self) -> float:
        """The largest share of right answers where half of those tested took part."""
        return 0.5 + self.advantage / 2


def tightest(*curves: TradeOff) -> TradeOff:
    """The lowest of several bounds at every point, named after the one with the smallest
    advantage.
    """
    best = min(curves, key=lambda one: one.advantage)
    return TradeOff(
        best.how,
        lambda fpr: np.min([one.tpr(fpr) for one in curves], axis=0),
        best.advantage,
    )


# --- from epsilon and delta -----------------------------------------------------------------------


def from_claim(epsilon: float, delta: float) -> TradeOff:
    """All that (epsilon, delta) alone says (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015).

    >>> from_claim(1.0, 0.0).tpr(0.1).round(4).item()
    0.2718
    """
    shrink = math.exp(-epsilon)

    def read(fpr: FloatArray) -> FloatArray:
        # e^epsilon may be beyond what a float holds; then the first bound says nothing
        grown = np.exp(np.minimum(epsilon + np.log(np.maximum(fpr, 1e-300)), 1.0)) + delta
        return np.minimum(np.where(fpr > 0, grown, delta), 1 - shrink * (1 - delta - fpr))

    advantage = (1 - shrink + 2 * delta * shrink) / (1 + shrink)
    return TradeOff("epsilon and delta alone", read, min(advantage, 1.0))


# --- closed forms ---------------------------------------------------------------------------------


def gaussian(mu: float) -> TradeOff:
    """A Gaussian whose mean moves by `mu` deviations: exact (Dong, Roth, Su 2022)."""

    def read(fpr: FloatArray) -> FloatArray:
        found: FloatArray = ndtr(ndtri(fpr) + mu)
        return found

    return TradeOff("a closed form", read, float(2 * ndtr(mu / 2) - 1))


def known_participation(rates: Any, noises: Any, counts: Any) -> TradeOff:
    """Rounds of a Gaussian whose cohorts are public: the observer sees in which rounds the client
    takes part, and those add up to one Gaussian, stronger or weaker as the draw goes.

    Its strength mu^2 is the sum of 1/noise^2 over those rounds. It is rounded up to a grid, and a
    larger mu can only reveal more.
    """
    mass, strength = _strengths(*_columns(rates, noises, counts))
    kept = mass > 1e-15
    spare, mass, mu = float(mass[~kept].sum()), mass[kept], np.sqrt(strength[kept])
    # A share of draws in which the client never takes part: every test is a guess there.
    idle, mass, mu = float(mass[mu == 0].sum()), mass[mu > 0], mu[mu > 0]

    def rates_at(loss: FloatArray) -> tuple[FloatArray, FloatArray]:
        """FPR and TPR of the test that says yes from this privacy loss on."""
        cut = loss[:, None] / mu
        guess = idle * (loss < 0)
        return guess + ndtr(-cut - mu / 2) @ mass, guess + ndtr(-cut + mu / 2) @ mass

    def read(fpr: FloatArray) -> FloatArray:
        if not mu.size:
            return fpr + spare
        low = np.full(fpr.size, -float(mu.max()) * (float(mu.max()) + 40))
        high = np.full(fpr.size, 60.0)
        for _ in range(STEPS):
            middle = (low + high) / 2
            over = rates_at(middle)[0] > fpr
            low, high = np.where(over, middle, low), np.where(over, high, middle)
        # Any loss gives a line that no test exceeds; the one found there is the lowest.
        false, true = rates_at(high)
        found: FloatArray = true + np.exp(high) * np.maximum(fpr - false, 0.0) + spare
        return found

    advantage = spare + float((2 * ndtr(mu / 2) - 1) @ mass)
    return TradeOff("a closed form", read, min(advantage, 1.0))


def _strengths(
    rate: FloatArray, noise: FloatArray, count: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How likely each value of mu^2 is, on a grid, rounded up."""
    from scipy.stats import binom  # takes half a second, and a plan may do without

    step = float((count / noise**2).sum()) / BINS
    mass = np.ones(1)
    for q, s, k in zip(rate, noise, count, strict=True):
        times = np.arange(int(k) + 1)
        # a hair below, so that a value on the grid stays where it is
        at = np.ceil(times / s**2 / step - 1e-9).astype(np.int64)
        mass = np.convolve(mass, np.bincount(at, weights=binom.pmf(times, int(k), q)))
    strength: FloatArray = step * (1 + 1e-9) * np.arange(mass.size, dtype=np.float64)
    return mass, strength


# --- from privacy loss distributions --------------------------------------------------------------


def sampled_gaussians(rates: Any, noises: Any, counts: Any) -> TradeOff:
    """Rounds of a Gaussian on a Poisson sample that nobody sees, by pessimistic privacy loss
    distributions.

    Its delta at each epsilon bounds both directions, so each epsilon gives two lines that no test
    exceeds: `TPR <= e^epsilon FPR + delta` and `1 - FPR <= e^epsilon (1 - TPR) + delta`. Near
    rounds are merged to the lower noise and the higher rate while there are too many.
    """
    rate, noise, count = _merged(*_columns(rates, noises, counts))
    every = np.repeat(np.arange(rate.size), count.astype(np.int64))
    interval = _interval(rate, noise, count)
    profile = privacy_profile(noise[every], rate[every], PROFILE, interval, SMALLEST)

    def read(fpr: FloatArray) -> FloatArray:
        few = fpr[:, None] * np.exp(PROFILE) + profile
        many = 1 - np.exp(-PROFILE) * (1 - fpr[:, None] - profile)
        found: FloatArray = np.minimum(few, many).min(axis=1)
        return found

    return TradeOff("a privacy loss distribution", read, min(float(profile[0]), 1.0))


def _interval(rate: FloatArray, noise: FloatArray, count: FloatArray) -> float:
    """Width of the grid of losses: a small part of the deviation of one round's loss, and never so
    small that the grid becomes long. Coarser is still a bound.
    """
    fine = float(np.clip(0.03 * (rate / noise).min(), 3e-4, 1e-2))
    strength = float((count / noise**2).sum())
    longest = strength / 2 + 20 * math.sqrt(strength) + float((20 / noise).max())
    return max(fine, longest / MOST_POINTS)


def _merged(
    rate: FloatArray, noise: FloatArray, count: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Few enough different rounds, each at the highest rate and the lowest noise of those it
    stands for.
    """
    step, of_round = 1e-4, np.arange(rate.size)
    while np.unique(of_round).size > MOST_DISTINCT:
        _, of_round = distinct_rows(*(np.floor(np.log(x) / step) for x in (rate, noise)))
        step *= 1.5
    size = int(of_round.max()) + 1
    highest, lowest, many = np.zeros(size), np.full(size, np.inf), np.zeros(size)
    np.maximum.at(highest, of_round, rate)
    np.minimum.at(lowest, of_round, noise)
    np.add.at(many, of_round, count)
    return highest, lowest, many


# --- from Rényi divergence ------------------------------------------------------------------------


def from_renyi(divergence: Any, orders: Any) -> TradeOff:
    """From divergences at some orders that hold in both directions.

    The answers of a test are a coin with two sides, and post-processing cannot raise the
    divergence, so at every order the coin of a member and the coin of others are no further apart
    than `divergence`. The largest TPR that fits all orders is a bound.
    """
    order = np.asarray(orders, dtype=np.float64)
    # right to 1e-9; a hair more is on the safe side
    limit = (order - 1) * np.asarray(divergence, dtype=np.float64) * (1 + 1e-8)

    def fits(one: FloatArray, other: FloatArray) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            yes = order * np.log(one) + (1 - order) * np.log(other)
            no = order * np.log1p(-one) + (1 - order) * np.log1p(-other)
            return np.logaddexp(yes, no) <= limit

    def read(fpr: FloatArray) -> FloatArray:
        false = np.broadcast_to(np.clip(fpr, 1e-12, 1.0)[:, None], (fpr.size, order.size))
        low, high = false.copy(), np.ones_like(false)
        for _ in range(STEPS):
            middle = (low + high) / 2
            good = fits(middle, false) & fits(false, middle)
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        found: FloatArray = high.min(axis=1)
        return found

    return TradeOff("the Rényi curve", read, _largest_gap(read))


def _largest_gap(read: Read) -> float:
    """The largest TPR - FPR of a concave curve, from above: near the best point of a coarse grid,
    and between two points of a fine one TPR is at most the right one's, FPR at least the left
    one's.
    """
    coarse = np.linspace(0.0, 1.0, 33)
    best = int((read(coarse) - coarse).argmax())
    fine = np.linspace(coarse[max(best - 1, 0)], coarse[min(best + 1, 32)], 65)
    return float(np.clip((read(fine[1:]) - fine[:-1]).max(), 0.0, 1.0))


def _columns(rates: Any, noises: Any, counts: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Equal rounds counted together; rounds at rate 0 left out."""
    rate, noise, count = (
        np.asarray(column, dtype=np.float64) for column in (rates, noises, counts)
    )
    used = (rate > 0) & (count > 0)
    rate, noise, count = rate[used], noise[used], count[used]
    first, of_round = distinct_rows(rate, noise)
    return rate[first], noise[first], np.bincount(of_round, weights=count).astype(np.float64)
