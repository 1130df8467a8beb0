"""What of a plan may be shown: to everyone, one bound that covers all clients; to a client, its own
part.

Guarantee: the bound depends on the largest rate and the smallest noise multiplier of each round
alone. A sampled Gaussian costs more the higher its rate and the lower its noise, so nobody's
schedule costs more than the bound. Neither part shows how many budgets there are, or whose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedspend.accounting.accountants import ACCOUNTANTS
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.rdp import rdp
from fedspend.basics.arrays import FloatArray
from fedspend.planning.parts import BIT_NOISE, METRIC_NOISE
from fedspend.planning.schedules import Schedules

if TYPE_CHECKING:
    from fedspend.planning.plan import Plan

ANYONE = "anyone"  # the made-up unit of a bound
# Parameters that a check needs; the others may tell budgets or how they are grouped. The noise on
# bits and metrics, which may have been chosen for the smallest budget, only a client's own check
# needs.
_PUBLIC = ("noise", "grid_steps")
_NEEDED = ("policy", *_PUBLIC, BIT_NOISE, METRIC_NOISE)


def bound(plan: Plan, slack: float) -> Plan:
    """A plan of one made-up client that costs no less than any client of `plan`.

    Its budget is its claim, that part `slack` more, and rounded up: the number to state.
    """
    from fedspend.planning.plan import Plan

    used = np.flatnonzero(plan.schedules.clients_of > 0)
    noise = plan.schedules.noise_multiplier[:, used].min(axis=1)
    rate = plan.schedules.sampling_rate[:, used].max(axis=1)
    counted = plan.accounted_noise[:, used].min(axis=1)
    epsilon, order = _reading(counted, rate, plan.delta, plan.orders)
    # an accountant of the user's own is not known to whoever checks this
    accountant = "pld" if plan.accountant == "pld" else "rdp"
    if accountant == "pld":
        reader = ACCOUNTANTS[accountant].epsilon
        assert reader is not None
        epsilon, order = float(reader(counted, rate, plan.delta, epsilon)), 0.0
    return Plan(
        clients=(ANYONE,),
        budget=[rounded_up(epsilon * (1 + slack))],
        schedules=_alone(noise, rate, epsilon, order),
        delta=plan.delta,
        clip=1.0,
        accountant=accountant,
        orders=plan.orders,
        parameters={"policy": "bound"}
        | {name: plan.parameters[name] for name in _PUBLIC if name in plan.parameters},
    )


def part_of(plan: Plan, client: int) -> Plan:
    """What the plan says about one client: its budget, schedule and claim. Its clips count from 1,
    because they depend on everybody's noise.
    """
    from fedspend.planning.plan import Plan

    table, own = plan.schedules, int(plan.schedules.of_client[client])
    return Plan(
        clients=(plan.clients[client],),
        budget=[float(plan.budget[client])],
        schedules=_alone(
            table.noise_multiplier[:, own],
            table.sampling_rate[:, own],
            float(table.epsilon[own]),
            float(table.order[own]),
        ),
        delta=plan.delta,
        clip=1.0,
        accountant=plan.accountant,
        orders=plan.orders,
        parameters={name: plan.parameters[name] for name in _NEEDED if name in plan.parameters},
    )


def shows_others(plan: Plan) -> str | None:
    """Why what may be shown of one client would tell budgets of others; None if it does not.

    Schedules must be functions of their own budget and of public terms. Where they are not, whoever
    knows one of them can try budgets of the others.
    """
    from fedspend.planning.making import BY_PUBLIC_TERMS
    from fedspend.planning.policies.table import BY_OWN_BUDGET

    chosen = plan.parameters.get("accountant")
    if plan.policy not in BY_OWN_BUDGET:
        return (
            f"policy {plan.policy!r} gives everyone a schedule that depends on the budgets of "
            f"others; plan with one of {', '.join(BY_OWN_BUDGET)}"
        )
    if plan.parameters.get("budget_rounding"):
        return "there are so many budgets that all were rounded; plan with fewer distinct ones"
    if chosen is not None and chosen not in BY_PUBLIC_TERMS:
        return (
            f"the accountant of everyone was chosen by budgets of others ({chosen}); name one "
            'when planning: privacy.accountant = "rdp"'
        )
    used = np.flatnonzero(plan.schedules.clients_of > 0)
    noise = plan.schedules.noise_multiplier[:, used]
    if plan.policy == "optimal" and plan.rounds > 1 and bool(np.all(noise == noise[0])):
        return (
            "policy 'optimal' may have left everyone at even noise because of the budgets of "
            'others; plan with privacy.policy = "uniform"'
        )
    return find_crossing(plan.schedules.sampling_rate[:, used], -noise)


def find_crossing(*tables: FloatArray) -> str | None:
    """Whether no single schedule has the largest value of every round, in each of these tables of
    (rounds, schedules): the bound would then be made of several budgets.
    """
    most = [(table == table.max(axis=1, keepdims=True)).all(axis=0) for table in tables]
    if np.logical_and.reduce(most).any():
        return None
    return (
        "schedules cross, so a bound over all of them would tell more budgets than the largest; "
        "plan with one saving rate for all"
    )


def covers(bound: Schedules, own: Schedules) -> bool:
    """Whether nobody in `own` is sampled more, or with less noise, than the one unit of `bound`."""
    return (
        own.rounds == bound.rounds
        and bound.count == 1
        and bool(np.all(own.sampling_rate <= bound.sampling_rate))
        and bool(np.all(own.noise_multiplier >= bound.noise_multiplier))
    )


def rounded_up(epsilon: float) -> float:
    """Four digits, never less than `epsilon`.

    >>> rounded_up(9.9999999), rounded_up(0.0123401), rounded_up(20.0), rounded_up(0.0)
    (10.0, 0.01235, 20.0, 1e-06)
    """
    value = max(epsilon, 1e-6)
    digits = 3 - math.floor(math.log10(value))
    found = float(f"{math.ceil(value * 10.0**digits) / 10.0**digits:.4g}")
    return found if found >= value else float(f"{value * 1.001:.4g}")


def _reading(
    noise: FloatArray, rate: FloatArray, delta: float, orders: tuple[float, ...]
) -> tuple[float, float]:
    """Epsilon of one schedule by Rényi curves, and the order that it is read at."""
    pairs, counts = np.unique(np.stack([rate, noise]), axis=1, return_counts=True)
    total = counts @ rdp(pairs[0], pairs[1], orders) + conversion_cost(orders, delta)
    best = int(np.argmin(total))
    return max(float(total[best]), 0.0), float(orders[best])


def _alone(noise: FloatArray, rate: FloatArray, epsilon: float, order: float) -> Schedules:
    return Schedules(
        noise_multiplier=noise[:, None],
        sampling_rate=rate[:, None],
        clip_norm=np.ones((noise.size, 1)),
        epsilon=np.array([epsilon]),
        order=np.array([order]),
        of_client=np.zeros(1, dtype=np.int64),
    )
