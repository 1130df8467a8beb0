"""The closed form of the spend-as-you-go paper, for understanding. It is not used for accounting.

Kiani et al. (2025) model a round's Rényi cost as `2 a q^2 / sigma^2`. Under that model a saving
round costs `(q_n / q)^2` of a spending round and the recursion of their Eq. 1 has the closed form
of Lemma 1. The real cost of the sampled Gaussian does not scale that way: planning with the factor
`(q_n / q)^2` and real noise overspends by 1 to 11%. Plans therefore recompute the true Rényi curve
each round.
"""

from __future__ import annotations

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number, whole_number


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
