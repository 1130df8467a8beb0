"""Which noise multiplier suits a set of budgets: more noise lets every record be sampled more often
(the paper's Figure 6).

A step releases the noised sum of clipped gradients divided by the expected batch, so in units of
the clip each coordinate of a client's step carries noise `sigma / batch`, where `batch` is the sum
of the client's rates at that sigma. Rates grow with sigma until budgets no longer bind; the
suggestion is the sigma with the least noise in the clients' average.

Guarantee: only budgets and terms are used, so the choice costs no privacy beyond what the budgets
themselves reveal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput, Refused
from fedspend.records.table import ladder
from fedspend.records.terms import Terms, check_budgets

CANDIDATES = tuple(float(f"{sigma:.3g}") for sigma in np.geomspace(0.3, 100.0, 21))
# Coarser ladders are enough to compare candidates; they assign no rates.
_STEP, _COARSE = 0.03, 25


@dataclass(frozen=True, eq=False)
class Candidate:
    """What one noise multiplier would mean."""

    noise_multiplier: float
    expected_batch: float  # mean over clients
    # root mean square over clients of sigma / batch; infinite if a client would have no batch
    step_noise: float
    mean_rate: float
    left_out: float  # share of records at rate 0
    always_in: float  # share at rate 1


@dataclass(frozen=True, eq=False)
class Suggestion:
    noise_multiplier: float
    candidates: tuple[Candidate, ...]


def suggest_noise(
    epsilons: Any,
    *,
    delta: float,
    rounds: int,
    local_steps: int,
    client_rate: float,
    clients: Any = None,
) -> Suggestion:
    """The noise multiplier with the least noise per step for records with these budgets; `clients`
    names each record's client.

    >>> terms = dict(delta=1e-3, rounds=15, local_steps=10, client_rate=1.0)
    >>> suggest_noise([0.5, 1.0, 4.0] * 100, **terms).noise_multiplier
    7.32
    """
    budget = check_budgets(epsilons).ravel()
    terms = Terms.checked(
        delta=delta,
        rounds=rounds,
        local_steps=local_steps,
        client_rate=client_rate,
        noise_multiplier=1.0,
    )
    owner = (
        np.zeros(budget.size, dtype=np.int64)
        if clients is None
        else np.unique(np.asarray(clients), return_inverse=True)[1]
    )
    if owner.shape != budget.shape:
        raise InvalidInput(
            f"there must be one client per record: got {owner.size} for {budget.size} records"
        )
    candidates = tuple(
        judge(budget, owner, replace(terms, noise_multiplier=sigma)) for sigma in CANDIDATES
    )
    best = min(candidates, key=lambda candidate: candidate.step_noise)
    if not best.step_noise < np.inf:
        raise Refused(
            f"no noise multiplier up to {CANDIDATES[-1]:g} gives every client a record to train "
            "with; use larger budgets, a larger delta or fewer rounds, or leave out clients whose "
            "records cannot pay"
        )
    return Suggestion(best.noise_multiplier, candidates)


def judge(budget: FloatArray, owner: IntArray, terms: Terms) -> Candidate:
    rate = ladder(terms, _STEP, _COARSE).highest_within(budget)
    batch = np.bincount(owner, weights=rate)
    with np.errstate(divide="ignore"):
        noise = float(np.sqrt(np.mean((terms.noise_multiplier / batch) ** 2)))
    return Candidate(
        terms.noise_multiplier,
        float(batch.mean()),
        noise,
        float(rate.mean()),
        float((rate == 0).mean()),
        float((rate == 1).mean()),
    )
