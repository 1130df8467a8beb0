"""Replans the rest of a record-level run after rounds were lost.

Guarantee: rounds that were begun stay as they are, to the last bit. Together with them, the new
rounds claim no more for any record than the old plan did (under `filter`, no more than its budget);
together with everything it has spent elsewhere, they stay within its lifetime budget. A record that
took no part still takes none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import FloatArray, IntArray, distinct_rows
from fedspend.errors import InvalidInput
from fedspend.ledger.rules import busy
from fedspend.planning.schedules import Schedules
from fedspend.records.filtering import stopping
from fedspend.records.planning import RecordPlan, claims
from fedspend.records.policies import stretches_of
from fedspend.records.remaining import Past, highest_rates, steps_on_top


def extended_records(
    plan: RecordPlan, begun: int, more: int, spent: Mechanisms, others: Past, lifetime: FloatArray
) -> RecordPlan:
    """`plan` with `more` rounds at its end and new rates for all rounds after `begun`.

    `spent` is what each class has spent in this run, `others` what each record has spent or
    reserved elsewhere.
    """
    if plan.by_norm:
        raise InvalidInput(
            "--replan does not work with a filter by norms: its lost rounds are charged the most "
            "they could cost, and records continue with what is left"
        )
    old = plan.schedules
    here = Past(spent, old.of_client)
    limits = ((plan.epsilon, here), (lifetime, here.joined(others)))
    if plan.filters:
        limits = ((plan.budget, here), limits[1])  # a filter continues until a budget is used up
    rest, steps, of_record = _rest(plan, begun, more, limits)
    first, of_client = distinct_rows(old.of_client, of_record)
    table = np.concatenate(
        [old.sampling_rate[:begun, old.of_client[first]], rest[:, of_record[first]]]
    )
    terms, short = replace(plan.terms, rounds=len(table)), None
    if plan.filters:
        short = np.concatenate(
            [plan.steps[:begun, old.of_client[first]], steps[:, of_record[first]]]
        )
    epsilon, order = claims(table, terms, short)
    schedules = Schedules(
        noise_multiplier=np.full(table.shape, terms.noise_multiplier),
        sampling_rate=table,
        clip_norm=np.full(table.shape, plan.clip),
        epsilon=epsilon,
        order=order,
        of_client=of_client,
    )
    parameters = plan.parameters | {"planned_anew_after": begun}
    return replace(plan, schedules=schedules, terms=terms, parameters=parameters, short=short)


def _rest(
    plan: RecordPlan, begun: int, more: int, limits: tuple[tuple[FloatArray, Past], ...]
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Rates and steps of the remaining rounds, each (rounds, classes), and each record's class: the
    most that all limits allow.
    """
    old = plan.schedules.sampling_rate
    terms = replace(plan.terms, rounds=plan.rounds + more - begun)
    takes_part = busy(old, plan.schedules.of_client)
    if plan.filters:
        common = float(old.max())
        lasts = np.minimum(*(steps_on_top(common, budget, past, terms) for budget, past in limits))
        return stopping(common, np.where(takes_part, lasts, 0), terms)
    shares = np.append(_shares(plan)[begun:], np.ones(more))
    rate = np.minimum(
        *(highest_rates(budget, past, terms, stretches_of(shares)) for budget, past in limits)
    )
    values, of_record = np.unique(np.where(takes_part, rate, 0.0), return_inverse=True)
    rates = shares[:, None] * values
    return rates, np.where(rates > 0, float(terms.local_steps), 0.0), of_record


def _shares(plan: RecordPlan) -> FloatArray:
    """Each round's share of the full rate: below 1 while records save, all in the same rounds."""
    rate = plan.schedules.sampling_rate
    saves = (rate < rate[-1] * (1 - 1e-9)).any(axis=1)
    return np.where(saves, plan.parameters.get("saving_share", 1.0), 1.0)
