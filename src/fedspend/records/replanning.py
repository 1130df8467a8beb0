"""Planning the rest of a record-level run anew, after rounds were lost.

Guarantee: rounds that were begun stay as they are, to the last bit. With them, the new rounds claim no more for any record than
the old plan did (under `filter`, no more than its budget), and with everything that it has spent elsewhere they stay within its
lifetime budget. Who took no part still takes none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.arrays import FloatArray, IntArray, distinct_rows
from fedspend.ledger.rules import busy
from fedspend.records.planning import RecordPlan, claims
from fedspend.records.policies import stretches_of
from fedspend.records.remaining import Past, highest_rates, rounds_affordable, stopping
from fedspend.schedules import Schedules


def extended_records(plan: RecordPlan, begun: int, more: int, spent: Mechanisms, others: Past, lifetime: FloatArray) -> RecordPlan:
    """`plan` with `more` rounds at its end and new rates for all rounds after `begun`.

    `spent` is what each class has spent in this run, `others` what each record has spent and holds elsewhere.
    """
    old = plan.schedules
    here = Past(spent, old.of_client)
    limits = ((plan.epsilon, here), (lifetime, here.joined(others)))
    if plan.parameters["method"] == "filter":
        limits = ((plan.budget, here), limits[1])  # it goes on until a budget is used up
    rest, of_record = _rest(plan, begun, more, limits)
    first, of_client = distinct_rows(old.of_client, of_record)
    table = np.concatenate([old.sampling_rate[:begun, old.of_client[first]], rest[:, of_record[first]]])
    terms = replace(plan.terms, rounds=len(table))
    epsilon, order = claims(table, terms)
    schedules = Schedules(
        noise_multiplier=np.full(table.shape, terms.noise_multiplier),
        sampling_rate=table,
        clip_norm=np.full(table.shape, plan.clip),
        epsilon=epsilon,
        order=order,
        of_client=of_client,
    )
    return replace(plan, schedules=schedules, terms=terms, parameters=plan.parameters | {"planned_anew_after": begun})


def _rest(plan: RecordPlan, begun: int, more: int, limits: tuple[tuple[FloatArray, Past], ...]) -> tuple[FloatArray, IntArray]:
    """Rates of the rounds to come, (rounds, classes), and the class of each record: the most that all limits allow."""
    old = plan.schedules.sampling_rate
    terms = replace(plan.terms, rounds=plan.rounds + more - begun)
    takes_part = busy(old, plan.schedules.of_client)
    if plan.parameters["method"] == "filter":
        common = float(old.max())
        lasts = np.minimum(*(rounds_affordable(common, budget, past, terms) for budget, past in limits))
        return stopping(common, np.where(takes_part, lasts, 0), terms.rounds)
    shares = np.append(_shares(plan)[begun:], np.ones(more))
    rate = np.minimum(*(highest_rates(budget, past, terms, stretches_of(shares)) for budget, past in limits))
    values, of_record = np.unique(np.where(takes_part, rate, 0.0), return_inverse=True)
    return shares[:, None] * values, of_record


def _shares(plan: RecordPlan) -> FloatArray:
    """Each round's share of the full rate: below 1 while records save, which they all do in the same rounds."""
    rate = plan.schedules.sampling_rate
    saves = (rate < rate[-1] * (1 - 1e-9)).any(axis=1)
    return np.where(saves, plan.parameters.get("saving_share", 1.0), 1.0)
