"""What the best of a random number of trials costs, computed another way than the planner does.

Guarantee: `best_of` is an upper bound on the Rényi divergence of releasing the best of K trials,
for the distribution of K that is given, if `base` bounds that of one trial at `orders`, in both
directions. It is derived from the generating function f of K (Papernot and Steinke 2022,
https://openreview.net/forum?id=-70L8lpp9DF, Lemma 7): the divergence at order a is at most

    R(a) + max over (q, q') of [a log f'(q) - (a - 1) log f'(q')] / (a - 1)

where q and q' are the probabilities of one event under neighbours. The planner uses the closed
forms of the theorems instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput

ENOUGH = 1e-13  # of the mean is left out of its sum
MOST_TERMS = 10_000_000


def best_of(base: npt.ArrayLike, orders: npt.ArrayLike, trials: Mapping[str, Any]) -> FloatArray:
    """The curve of the best of K trials at `orders`; `trials` is K's distribution as stored."""
    curve, order = np.asarray(base, dtype=np.float64), np.asarray(orders, dtype=np.float64)
    if not (curve.shape == order.shape and bool(np.all((curve >= 0) & (order > 1)))):
        raise InvalidInput("the accountant needs a divergence of at least 0 at each order above 1")
    try:
        if trials["name"] == "negative-binomial":
            eta, gamma = float(trials["eta"]), float(trials["gamma"])
            return _lowest(_negative_binomial(curve, order, eta, gamma), order)
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidInput(f"the accountant does not know this number of trials: {trials!r}")


def _lowest(bound: FloatArray, order: FloatArray) -> FloatArray:
    """A divergence is at most that of any higher order."""
    return np.array([bound[order >= a].min() for a in order])


def mean_by_summing(eta: float, gamma: float) -> float:
    """E[K] of the truncated negative binomial: the sum of k P(k), and of P(k), term by term."""
    k = np.arange(1.0, max(1000.0, min(60 / gamma, MOST_TERMS)))
    log_weight = np.append(0.0, np.cumsum(np.log((k + eta) / (k + 1)) + math.log1p(-gamma)))
    weight, number = np.exp(log_weight), np.append(k, k[-1] + 1)
    if not weight[-1] * number[-1] / gamma < ENOUGH * float(number @ weight):
        raise InvalidInput("the accountant cannot sum up that many trials")
    return float(number @ weight) / float(weight.sum())


def _negative_binomial(
    curve: FloatArray, order: FloatArray, eta: float, gamma: float
) -> FloatArray:
    """With z = 1 - (1 - gamma) q, `log f'` is `log E[K] + (eta + 1) (log gamma - log z)`, and z' is
    the probability of an event as well, so `b log z' - (b - 1) log z <= (b - 1) R(b)`. What is to
    be maximised is linear in log z, so the ends, z = gamma and z = 1, are enough.
    """
    if not (-1 < eta < math.inf and 0 < gamma < 1):
        raise ValueError
    log_mean = math.log(mean_by_summing(eta, gamma))
    worst = np.full((order.size, order.size + 1), -np.inf)  # first order, second order
    for log_z in (math.log(gamma), 0.0):
        # the second order, then 1, at which nothing is known of z' but that it is at most 1
        log_other = np.append(((order - 1) * (curve + log_z)) / order, 0.0)
        log_other = np.clip(log_other, math.log(gamma), 0.0)
        rise = log_mean + (eta + 1) * (math.log(gamma) - log_z)
        fall = log_mean + (eta + 1) * (math.log(gamma) - log_other)
        value = (order[:, None] * rise - (order[:, None] - 1) * fall) / (order[:, None] - 1)
        worst = np.maximum(worst, value)
    result: FloatArray = curve + worst.min(axis=1)
    return result
