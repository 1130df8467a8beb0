"""What of a plan of records may be shown: to everyone, one bound that covers all records; to a
client, the part of the plan that is about its own records.

Guarantee: the bound depends on the largest rate and the most steps of each round alone, so no
record costs more than it; the number of records is not shown.
"""

from __future__ import annotations

import numpy as np

from fedspend.planning.disclosure import ANYONE, find_crossing, rounded_up
from fedspend.planning.disclosure import covers as covers_rates
from fedspend.planning.schedules import Schedules
from fedspend.records.planning import RecordPlan, claims

# methods whose rates are functions of a record's own budget (`minimum`: of the smallest)
BY_OWN_BUDGET = ("rpdp", "minimum")
_NEEDED = ("policy", "method", "charge")


def bound(plan: RecordPlan, slack: float) -> RecordPlan:
    """A plan of one made-up record that costs no less than any record of `plan`."""
    used = np.flatnonzero(plan.schedules.clients_of > 0)
    rate = plan.schedules.sampling_rate[:, used].max(axis=1)[:, None]
    short = None if plan.short is None else plan.steps[:, used].max(axis=1)[:, None]
    epsilon, order = claims(rate, plan.terms, short)
    return RecordPlan(
        records=(ANYONE,),
        owner=np.zeros(1, dtype=np.int64),
        clients=(ANYONE,),
        budget=np.array([rounded_up(float(epsilon[0]) * (1 + slack))]),
        schedules=Schedules(
            noise_multiplier=np.full(rate.shape, plan.terms.noise_multiplier),
            sampling_rate=rate,
            clip_norm=np.ones(rate.shape),
            epsilon=epsilon,
            order=order,
            of_client=np.zeros(1, dtype=np.int64),
        ),
        terms=plan.terms,
        clip=1.0,
        parameters=_parameters(plan) | {"policy": "bound"},
        short=short,
    )


def part_of(plan: RecordPlan, client: int) -> RecordPlan:
    """What the plan says about one client's records: their budgets, rates and claims."""
    mine = np.flatnonzero(plan.owner == client)
    classes, of_record = np.unique(plan.schedules.of_client[mine], return_inverse=True)
    table = plan.schedules
    return RecordPlan(
        records=tuple(plan.records[n] for n in mine),
        owner=np.zeros(mine.size, dtype=np.int64),
        clients=(plan.clients[client],),
        budget=plan.budget[mine].copy(),
        schedules=Schedules(
            noise_multiplier=table.noise_multiplier[:, classes],
            sampling_rate=table.sampling_rate[:, classes],
            clip_norm=np.ones((table.rounds, classes.size)),
            epsilon=table.epsilon[classes],
            order=table.order[classes],
            of_client=of_record,
        ),
        terms=plan.terms,
        clip=1.0,
        parameters=_parameters(plan),
        orders=plan.orders,
        short=None if plan.short is None else plan.short[:, classes],
    )


def shows_others(plan: RecordPlan) -> str | None:
    """Why what may be shown of one record would tell budgets of others; None if it does not."""
    method = plan.parameters["method"]
    if method not in BY_OWN_BUDGET:
        return (
            f"method {method!r} samples every record at a rate that depends on the budgets of "
            f"others; plan with one of {', '.join(BY_OWN_BUDGET)}"
        )
    used = np.flatnonzero(plan.schedules.clients_of > 0)
    return find_crossing(plan.schedules.sampling_rate[:, used], plan.steps[:, used])


def covers(bound: RecordPlan, own: RecordPlan) -> bool:
    """Whether no record in `own` is sampled more often than the one of `bound`."""
    return (
        own.terms == bound.terms
        and covers_rates(bound.schedules, own.schedules)
        and bool(np.all(own.steps <= bound.steps))
    )


def _parameters(plan: RecordPlan) -> dict[str, object]:
    return {name: plan.parameters[name] for name in _NEEDED if name in plan.parameters}
