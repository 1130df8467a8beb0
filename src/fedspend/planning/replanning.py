"""Replans the rest of a client-level run after rounds were lost: same rates, a little more noise.

Guarantee: rounds already begun stay as they are. Together with them, the new rounds claim no more
for any client than the old plan did, and together with everything the client has spent elsewhere
they stay within its lifetime budget. All this is read by Rényi curves, also where the old plan's
claims were by privacy loss distributions: what is planned after releases have been seen is read at
a Rényi order.
"""

from __future__ import annotations

import numpy as np

from fedspend.accounting.accountants import ACCOUNTANTS, PLD
from fedspend.accounting.fitting import scaled_to_budget
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.accounting.smoothing import drawn
from fedspend.basics.arrays import FloatArray, distinct_rows
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.clipping import stretched
from fedspend.planning.parts import BIT_NOISE, METRIC_NOISE, left_for_updates, taken
from fedspend.planning.plan import Plan, clip_norms
from fedspend.planning.policies import Spending, Terms, by_itself
from fedspend.planning.schedules import Schedules

MOST_TAKEN = 0.99  # of a round, by bits and metrics
# what a plan says of its accountant, if it was by privacy loss distributions before
REPLANNED = "Rényi curves, since it was replanned"


def extended(plan: Plan, begun: int, more: int, others: Mechanisms, lifetime: FloatArray) -> Plan:
    """`plan` with `more` rounds added and more noise in all rounds after `begun`.

    It claims no more than before. `others` is what each client has spent and holds elsewhere; with
    that, the plan stays within each `lifetime` budget.
    """
    if plan.accountant not in ("rdp", PLD):
        raise InvalidInput(
            f"replanning needs accountant 'rdp' or 'pld', and this plan is by {plan.accountant!r}; "
            "drop --replan"
        )
    old, orders = plan.schedules, WHOLE_ORDERS if others.whole().any() else plan.orders
    first, of_client = distinct_rows(old.of_client, others.alike(), lifetime)
    column = old.of_client[first]
    as_drawn, noise, rate = (
        _longer(table[:, column], more)
        for table in (old.noise_multiplier, plan.accounted_noise, old.sampling_rate)
    )
    rest = np.arange(plan.rounds + more)[:, None] >= np.full(first.size, begun)
    nothing, claim = Mechanisms.none(first.size), old.epsilon[column]
    try:
        scaled = scaled_to_budget(noise, rate, rest, claim, plan.delta, nothing, plan.orders).noise
        within = scaled_to_budget(
            noise, rate, rest, lifetime[first], plan.delta, others.take(first), orders
        ).noise
    except Refused:
        if plan.accountant != PLD:
            raise
        raise Refused(
            "the rounds that have begun were planned by privacy loss distributions, and by Rényi "
            "curves, which replanning needs, they leave too little; drop --replan"
        ) from None
    noise = np.where(rest, np.maximum(scaled, within), noise)
    terms = Terms(plan.delta, float(rate.max()), plan.rounds + more, plan.orders)
    spending = by_itself(Spending(noise, rate, np.zeros(first.size), np.zeros(first.size)), terms)
    noise = np.where(rest, drawn(noise, plan.grid_steps), as_drawn)
    factors = stretched(plan.clip_factors, plan.dropped_rounds, begun, more)
    parts = room_for_updates(plan, float(noise.max()))
    updates = left_for_updates(noise, parts.get(BIT_NOISE), parts.get(METRIC_NOISE))
    clients_of = np.bincount(of_client, minlength=first.size)
    schedules = Schedules(
        noise,
        rate,
        clip_norms(plan.clip * factors, updates, clients_of),
        spending.epsilon,
        spending.order,
        of_client,
    )
    parameters = plan.parameters | parts | {"planned_anew_after": begun}
    if "clip_factors" in parameters:
        parameters["clip_factors"] = factors.tolist()
    parameters.pop("expected", None)  # it was about the rounds as they were planned
    if plan.accountant == PLD:
        parameters["accountant"] = REPLANNED
    return plan.replace(schedules=schedules, accountant="rdp", parameters=parameters)


def claimed_before(plan: Plan) -> FloatArray | None:
    """Cumulative epsilon, (rounds, schedules), of the rounds that had begun when a plan by privacy
    loss distributions was replanned, by that accountant: what was said of them when they were
    played. None for any other plan.
    """
    begun = plan.parameters.get("planned_anew_after")
    if plan.parameters.get("accountant") != REPLANNED or type(begun) is not int or begun < 1:
        return None
    noise, rate = (table[:begun] for table in (plan.accounted_noise, plan.schedules.sampling_rate))
    first, alike = distinct_rows(*noise, *rate)
    spent = ACCOUNTANTS[PLD].after_each_round(
        noise[:, first], rate[:, first], plan.delta, plan.orders
    )
    return spent[:, alike]


def room_for_updates(plan: Plan, largest: float) -> dict[str, float]:
    """Noise on bits and metrics, where the plan states it: as it was, unless rounds whose noise
    multipliers now reach `largest` leave nothing for updates. Then it grows as they have.
    """
    stated = {BIT_NOISE: plan.bit_noise, METRIC_NOISE: plan.metric_noise}
    parts = {name: noise for name, noise in stated.items() if noise is not None}
    if taken(plan.bit_noise, plan.metric_noise) * largest**2 <= MOST_TAKEN:
        return parts
    factor = largest / float(plan.schedules.noise_multiplier.max())
    return {name: noise * max(1.0, factor) for name, noise in parts.items()}


def _longer(table: FloatArray, more: int) -> FloatArray:
    return np.concatenate([table, np.repeat(table[-1:], more, axis=0)])
