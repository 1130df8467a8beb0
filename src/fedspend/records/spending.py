"""What a record has spent after all rounds, computed from its rate: accounting for client sampling
and record sampling.

Unit and adjacency: one record's gradients become zero (zero-out); the other records of its client
and all other clients stay. A record enters each of its client's local steps with probability `q`,
its own rate; the noise on a step's sum of clipped gradients has the multiplier `sigma`. With `r`
the Rényi divergence of that step and `R = local_steps * r`, all rounds together cost

| observer | sees | divergence |
|---|---|---|
| `public` | every model; also every other client | `rounds * log(1 - p + p exp((a-1) R)) / (a-1)` |
| `sees-participation` | a server: each client's own update, and who takes part | the same |
| `picks-participants` | a server that may pick the client in every round | `rounds * R` |

Who takes part is drawn without looking at the record, so seeing it reveals nothing.

Guarantee: epsilon is the lowest over the orders used, and every order gives an upper bound, so it
is an upper bound for any set of orders. The bound `p * rounds * R` that Liu et al. (2024, Theorem
1) state for a server is too low and is not offered (docs/how-to/records.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import two_stage
from fedspend.accounting.rdp import ORDERS, check_orders, rdp
from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import choose
from fedspend.records.terms import Terms, check_rates

OBSERVERS = ("public", "sees-participation", "picks-participants")
CONVERSIONS = ("balle", "classic")
# (share of the full rate, number of rounds), one after the other
Stretches = tuple[tuple[float, int], ...]
_AT_ONCE = 512  # distinct rates whose curves are in memory at once


def epsilon(
    rates: Any,
    *,
    delta: float,
    rounds: int,
    local_steps: int,
    client_rate: float,
    noise_multiplier: float,
    observer: str = "public",
    orders: Any = None,
    conversion: str = "balle",
) -> Any:
    """Epsilon at `delta` of records with these sampling rates, against `observer`; same shape as
    `rates`.

    `conversion` turns Rényi divergence into epsilon: `balle` is the tight one (Balle et al. 2020;
    Canonne et al. 2020), `classic` is Mironov's `R + log(1/delta)/(a-1)`, which the paper uses and
    which gives higher values. A record at rate 0 spends nothing.

    >>> terms = dict(delta=1e-3, rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1)
    >>> round(epsilon(0.1, **terms, orders=range(2, 65)), 8)
    4.2099069
    """
    terms = Terms.checked(
        delta=delta,
        rounds=rounds,
        local_steps=local_steps,
        client_rate=client_rate,
        noise_multiplier=noise_multiplier,
    )
    q, alpha = check_rates(rates), check_orders(ORDERS if orders is None else orders)
    choose("observer", observer, OBSERVERS)
    cost = conversion_costs(alpha, terms.delta, choose("conversion", conversion, CONVERSIONS))
    distinct, of_record = np.unique(q, return_inverse=True)
    found = np.zeros(distinct.size)
    for start in range(0, distinct.size, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        found[some] = np.maximum(
            (divergence(distinct[some], alpha, terms, observer) + cost).min(axis=1), 0.0
        )
    found[distinct == 0] = 0.0
    spent = found[of_record].reshape(q.shape)
    return float(spent) if spent.ndim == 0 else spent


def divergence(
    rate: FloatArray,
    alpha: FloatArray,
    terms: Terms,
    observer: str = "public",
    stretches: Stretches | None = None,
) -> FloatArray:
    """Rényi divergence of all rounds, (rates, orders). With `stretches`, each round runs at its
    stretch's share of the rate.
    """
    total = np.zeros((rate.size, alpha.size))
    for share, rounds in stretches or ((1.0, terms.rounds),):
        inner = terms.local_steps * rdp(share * rate, terms.noise_multiplier, alpha)
        total += rounds * (
            inner
            if observer == "picks-participants"
            else two_stage(inner, np.array(terms.client_rate), alpha)
        )
    return total


def conversion_costs(alpha: FloatArray, delta: float, conversion: str = "balle") -> FloatArray:
    """What a conversion adds to the divergence at each order."""
    if conversion == "balle":
        return conversion_cost(alpha, delta)
    return np.asarray(np.log(1 / delta) / (alpha - 1))
