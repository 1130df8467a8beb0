"""Guessing the coins: scores of canaries, and the thresholds for a guess.

Guarantee: what is decided here (which score, which thresholds, how much noise to expect) is learned
from pilot coins, which are not counted. A guess depends only on the releases of its own run and on
what was learned, so guesses of different runs are independent. The quality of the scores decides
how much is found, never whether the bound is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit, gammaln

from fedspend.auditing.bounds import Coins, bounds, most_gifts
from fedspend.auditing.observations import Expected, Observations
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray

Score = Literal["likelihood", "spread"]
_CUTS = 40  # candidates for each threshold
_BLOCK = 20_000  # coins that are scored at once
# a departure from the plan that chance would show once in a billion rounds is treated as real
_VISIBLE = 6.0
_LEAST_NOISE = 1e-6  # in planned deviations; less than this is as good as no noise
# of the fit: deviations at which scores are capped, number of steps, and the longest step
_FAR, _NEWTON, _STRIDE = 8.0, 25, 5.0


@dataclass(frozen=True, eq=False)
class Rule:
    """Guess "in" if the score is at least `high`, "out" if it is at most `low`, else not at all."""

    score: Score
    noise: FloatArray  # (rounds,) the assumed deviation of the signal's noise
    high: float
    low: float

    def scores(self, seen: Observations, expected: Expected) -> FloatArray:
        return scores(self.score, seen, expected, self.noise)

    def guesses(self, score: FloatArray) -> tuple[BoolArray, BoolArray]:
        """(guessed in, guessed out)."""
        return score >= self.high, score <= self.low


def scores(kind: Score, seen: Observations, expected: Expected, noise: FloatArray) -> FloatArray:
    """One score per coin; the higher it is, the more likely the canary is inside."""
    total = np.zeros(seen.unit.size)
    for start in range(0, total.size, _BLOCK):
        some = slice(start, start + _BLOCK)
        signal, unit = seen.signal[:, some].astype(np.float64), seen.unit[some]
        if kind == "likelihood":
            total[some] = _likelihood(signal, expected, unit, noise)
        else:
            total[some] = _spread(signal)
    return total


def _likelihood(
    signal: FloatArray, expected: Expected, unit: IntArray, noise: FloatArray
) -> FloatArray:
    """The log-likelihood ratio of in and out, summed over rounds.

    The model: independent Gaussian noise, and a shift in rounds that sample the unit.
    """
    total = np.zeros(signal.shape[1])
    for t, row in enumerate(signal):
        rate, steps = expected.rate[t, unit], expected.steps[t, unit]
        shift, value = expected.shift[t, unit] / noise[t], row / noise[t]
        most = int(steps.max(initial=0))
        if most == 0:
            continue
        times = np.arange(most + 1.0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            chance = _log_binomial(times, steps, rate)
            terms = chance + times * shift * value - (times * shift) ** 2 / 2
        top = terms.max(axis=0)
        ratio = top + np.log(np.exp(terms - top).sum(axis=0))
        total += np.where(np.isfinite(ratio), ratio, 0.0)
    return total


def _log_binomial(times: FloatArray, steps: IntArray, rate: FloatArray) -> FloatArray:
    """log P[Bin(steps, rate) = times]; -inf if that is impossible."""
    rest = steps - times
    ways = gammaln(steps + 1) - gammaln(times + 1) - gammaln(np.maximum(rest, 0) + 1)
    on = np.where(times > 0, times * np.log(rate), 0.0)
    off = np.where(rest > 0, rest * np.log1p(-rate), 0.0)
    chance: FloatArray = np.where(rest >= 0, ways + on + off, -np.inf)
    return chance


def _spread(signal: FloatArray) -> FloatArray:
    """How much a signal changes from round to round.

    Of little use with fresh noise, but noise that is the same in every round cancels, and then
    sampling shows.
    """
    seen = np.isfinite(signal)
    count = np.maximum(seen.sum(axis=0), 1)
    mean = np.where(seen, signal, 0.0).sum(axis=0) / count
    spread: FloatArray = np.sqrt(np.where(seen, (signal - mean) ** 2, 0.0).sum(axis=0) / count)
    return spread


def learn(
    pilot: Observations, expected: Expected, coins: Coins, delta: float, level: float
) -> Rule:
    """The rule with the best expected bound for `coins` more coins, learned from known coins."""
    noise = _noise_by_round(pilot)
    gifts = most_gifts(coins, delta, level)
    rounds = pilot.signal.shape[0]
    kinds: tuple[Score, ...] = ("likelihood",) if rounds == 1 else ("likelihood", "spread")
    best: tuple[float, Rule] | None = None
    for kind in kinds:
        found = scores(kind, pilot, expected, noise)
        promised, high, low = _thresholds(found, pilot.inside, coins.all, gifts, level)
        if best is None or promised > best[0]:
            best = promised, Rule(kind, noise, high, low)
    assert best is not None
    return best[1]


def _noise_by_round(pilot: Observations) -> FloatArray:
    """The plan's noise, which is 1, unless a round's zeroed canaries clearly show another."""
    noise = np.ones(pilot.signal.shape[0])
    for t, row in enumerate(pilot.signal[:, ~pilot.inside].astype(np.float64)):
        known = row[np.isfinite(row)]
        if known.size < 30:
            continue
        found = float(np.sqrt(np.mean(known**2)))
        if not abs(found - 1) <= _VISIBLE / np.sqrt(2 * known.size):
            noise[t] = max(found, _LEAST_NOISE)
    return noise


def _thresholds(
    score: FloatArray, inside: BoolArray, coins: int, gifts: int, level: float
) -> tuple[float, float, float]:
    """(expected bound, high, low): the thresholds that would give the best bound for `coins` coins.

    The share of right guesses is smoothed far out, where a pilot has few scores.
    """
    order = np.argsort(score, kind="stable")
    ranked, size = score[order], score.size
    chance = _chance_inside(ranked, inside[order])
    counts = np.unique(np.geomspace(1, max(2, size // 2), _CUTS).astype(int))
    # thresholds lie between scores, so equal scores are guessed alike
    high = np.append(np.inf, _midway(ranked[::-1], counts))
    low = np.append(-np.inf, _midway(ranked, counts))
    above = size - np.searchsorted(ranked, high, side="left")
    under = np.searchsorted(ranked, low, side="right")
    wrong_in = np.append(0.0, np.cumsum(1 - chance[::-1]))[above]
    wrong_out = np.append(0.0, np.cumsum(chance))[under]
    guesses = (above[:, None] + under[None, :]) * coins / size
    # half a wrong guess is added, so that more guesses are better if none is expected to be wrong
    wrong = (wrong_in[:, None] + wrong_out[None, :]) * coins / size + 0.5
    promised = bounds(np.maximum(guesses - wrong, 0.0), wrong, gifts, level)
    # never guess one coin both ways
    promised = np.where((high[:, None] > low[None, :]) & (guesses > 0), promised, -1.0)
    i, j = np.unravel_index(int(promised.argmax()), promised.shape)
    return float(promised[i, j]), float(high[i]), float(low[j])


def _chance_inside(score: FloatArray, inside: BoolArray) -> FloatArray:
    """The chance that a coin with this score is in: a logistic curve, fitted by Newton's method.

    A log-likelihood ratio already is on that scale if the run keeps to the plan; the fit corrects
    it if not.
    """
    spread = float(score.std())
    if not spread > 0:
        return np.full(score.size, 0.5)
    # robust against a few extreme scores, which decide nothing
    scaled = np.clip((score - np.median(score)) / spread, -_FAR, _FAR)
    columns = np.column_stack([np.ones(score.size), scaled])
    weights, ridge = np.zeros(2), 1e-3 * np.eye(2)
    for _ in range(_NEWTON):
        fitted = expit(columns @ weights)
        slope = columns.T @ (inside - fitted) - ridge @ weights
        curve = (columns * (fitted * (1 - fitted))[:, None]).T @ columns + ridge
        weights = weights + np.clip(np.linalg.solve(curve, slope), -_STRIDE, _STRIDE)
    chance: FloatArray = expit(columns @ weights)
    return chance


def _midway(ranked: FloatArray, counts: IntArray) -> FloatArray:
    """A value between the last of the first `counts` scores and the next one."""
    last, following = ranked[counts - 1], ranked[np.minimum(counts, ranked.size - 1)]
    middle: FloatArray = last + (following - last) / 2
    return middle
