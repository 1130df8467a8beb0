"""The theory of the spend-as-you-go paper, for understanding. It is not used for accounting.

Kiani et al. (2025) model a round's Rényi cost as `2 a q^2 / sigma^2`. Under that model a saving
round costs `(q_n / q)^2` of a spending round and the recursion of their Eq. 1 has the closed form
of Lemma 1. The real cost of the sampled Gaussian does not scale that way: planning with the factor
`(q_n / q)^2` and real noise overspends by 1 to 11%. Plans therefore recompute the true Rényi curve
each round.

Its Theorems 2 and 3 bound the bias of a round, `E(mean of all updates - released mean)`, from
rates, clips and a moment of update norms. docs/explanation/methods.md says
what holds of them, and what not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number, whole_number

if TYPE_CHECKING:
    from fedspend.planning.plan import Plan


def lemma_1(
    budget_rdp: float, *, rounds: int, transition: int, saving_rate: float, rate: float
) -> FloatArray:
    """Rényi budget spent in each round under the quadratic model (Lemma 1).

    With `x = (saving_rate / rate)^2`, round t < T_n spends
    `B x / (T-t+1) prod_{i=1}^{t-1} (1 - x / (T-t+1+i))`, and every round from T_n on spends
    `B / (T-T_n+1) prod_{i=1}^{T_n-1} (1 - x / (T-T_n+1+i))`. It never falls, is constant from T_n
    on (Theorem 1), and sums to B.

    >>> lemma_1(1.0, rounds=4, transition=3, saving_rate=0.5, rate=1.0).round(4).tolist()
    [0.0625, 0.0781, 0.4297, 0.4297]
    """
    budget = finite_number("budget_rdp", budget_rdp)
    rounds = whole_number("rounds", rounds, 1)
    transition = whole_number("transition", transition, 1)
    if not (budget > 0 and transition <= rounds and 0 < saving_rate <= rate <= 1):
        raise InvalidInput(
            "lemma_1 needs a positive budget, a transition from 1 to rounds, and 0 < saving_rate "
            f"<= rate <= 1; got budget_rdp={budget_rdp!r}, transition={transition!r}, "
            f"saving_rate={saving_rate!r}, rate={rate!r}"
        )
    x = (saving_rate / rate) ** 2
    t = np.arange(1, rounds + 1)
    # After t-1 saving rounds the share left is prod_{s<t} (1 - x / (T-s+1)).
    left = np.concatenate([[1.0], np.cumprod(1 - x / (rounds - t[: transition - 1] + 1))])
    saving = budget * x / (rounds - t[: transition - 1] + 1) * left[:-1]
    spending = np.full(rounds - transition + 1, budget / (rounds - transition + 1) * left[-1])
    return np.concatenate([saving, spending])


def clipping_bias(moment: FloatArray, clip: FloatArray, power: float = 2.0) -> FloatArray:
    """At most how far clipping moves the mean of a client's updates, from a moment of their norms.

    `moment` is `E |update|^power`. Clipping shortens an update of norm x by `max(x - c, 0)`, and

        max(x - c, 0) <= k x^p / c^(p-1)        k = (p-1)^(p-1) / p^p, attained at x = c p / (p-1)

    so the lemma of Das et al. (2023), which has k = 1, holds with a constant that is 4 times
    smaller for p = 2.

    >>> clipping_bias(np.array([4.0]), np.array([1.0])).tolist()  # updates of norm 2, clip 1
    [1.0]
    """
    power = checked_power(power)
    constant = (power - 1) ** (power - 1) / power**power
    bias: FloatArray = constant * moment / clip ** (power - 1)
    return bias


def theorem_2(
    rate: Any, clip: Any, *, mean: Any, moment: Any, power: float = 2.0
) -> tuple[float, float]:
    """What a round's expected update is off by: at most the sum of these two (Theorem 2).

    The first is due to individual rates: clients that are sampled more often count more. The
    second is due to clipping. `rate`, `clip` and `moment` (of update norms, without clipping) have
    one number per client, and `mean` has one row: its expected update. Holds for every
    distribution of updates, if a round's cohort does not depend on them.

    >>> by_rates, by_clips = theorem_2(
    ...     [0.5, 1.0], [1.0, 1.0], mean=[[0.9], [0.3]], moment=[0.81, 0.09]
    ... )
    >>> round(by_rates, 6), round(by_clips, 6)
    (0.1, 0.0825)
    """
    q, c, m = checked_round(rate, clip, moment)
    means = np.asarray(mean, dtype=np.float64)
    if means.ndim != 2 or len(means) != q.size or not np.all(np.isfinite(means)):
        raise InvalidInput(
            f"mean must have one row of finite numbers per client, {q.size} rows; got shape "
            f"{means.shape}"
        )
    counted = q / q.mean()
    by_rates = float(np.linalg.norm((1 - counted) @ means)) / q.size
    by_clips = float(counted @ clipping_bias(m, c, power)) / q.size
    return by_rates, by_clips


def theorem_3(rate: Any, clip: Any, *, moment: Any, power: float = 2.0) -> float:
    """The same for budgets that are dealt to the clients at random (Theorem 3).

    Over all ways of dealing them, individual rates cancel, and what is left is the mean moment
    times `k mean_n (q_n / qbar) / c_n^(p-1)`. It says nothing about one given assignment, for
    which `theorem_2` has its first term. And it holds for updates that do not depend on who got
    which budget: from the same model, so in the first round, or in any one round for budgets
    dealt afresh; later models depend on who was sampled before.

    >>> round(theorem_3([0.5, 1.0], [1.0, 1.0], moment=[0.81, 0.09]), 6)
    0.1125
    """
    q, c, m = checked_round(rate, clip, moment)
    counted = q / q.mean()
    return float(m.mean() * (counted @ clipping_bias(np.ones(q.size), c, power))) / q.size


def bias_of_plan(plan: Plan, moment: Any, power: float = 2.0) -> FloatArray:
    """Theorem 3 for every round of a plan, (rounds,).

    `moment` is the mean over clients of `E |update|^power`: one number, or one per round.
    """
    s = plan.schedules
    shape = (s.noise_multiplier.shape[0],)
    try:
        moments = np.broadcast_to(np.asarray(moment, dtype=np.float64), shape)
    except (TypeError, ValueError):
        raise InvalidInput(f"moment must be a number, or {shape[0]}, one per round") from None
    if not np.all(np.isfinite(moments) & (moments >= 0)):
        raise InvalidInput("moment must be finite and not negative in every round")
    counted = s.sampling_rate * (s.clients_of / s.clients_of.sum())
    each = clipping_bias(np.ones_like(s.clip_norm), s.clip_norm, power)
    bias: FloatArray = moments * (counted * each).sum(axis=1) / counted.sum(axis=1)
    return bias


def checked_power(power: Any) -> float:
    value = finite_number("power", power)
    if not value >= 1:
        raise InvalidInput(f"power must be at least 1, got {power!r}")
    return value


def checked_round(rate: Any, clip: Any, moment: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rate, clip and moment of every client in one round."""
    try:
        q, c, m = np.broadcast_arrays(
            *(np.asarray(one, dtype=np.float64) for one in (rate, clip, moment))
        )
    except (TypeError, ValueError):
        raise InvalidInput("rate, clip and moment must be numbers, one per client") from None
    if q.ndim != 1 or not q.size:
        raise InvalidInput(f"rate, clip and moment must have one number per client, got {q.shape}")
    if not (np.all((q > 0) & (q <= 1)) and np.all(c > 0) and np.all(m >= 0)):
        raise InvalidInput("rates must lie in (0, 1], clips be positive, and no moment negative")
    if not (np.all(np.isfinite(c)) and np.all(np.isfinite(m))):
        raise InvalidInput("clips and moments must be finite")
    return q, c, m
