"""Whom an explanation is about: a client, a record or a group, and the schedule it follows.

Guarantee: a group is represented by its least protected member, the one with the largest claim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.basics.choices import choose
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan


@dataclass(frozen=True)
class Subject:
    """Who is explained, and the number of their schedule."""

    label: str
    schedule: int
    members: int
    budget: float
    epsilon: float


def one_unit(plan: AnyPlan, unit: str, name: str) -> Subject:
    """The client or record with this name."""
    at = unit_number(plan, unit, name)
    schedule = int(plan.schedules.of_client[at])
    return Subject(
        f"{unit} {name}",
        schedule,
        1,
        float(plan.budget[at]),
        float(plan.schedules.epsilon[schedule]),
    )


def unit_number(plan: AnyPlan, unit: str, name: str) -> int:
    """The position of a client or record in the plan; refuses the other kind."""
    if unit != plan.unit:
        raise InvalidInput(
            f"--{unit} {name!r}: this plan protects {plan.unit}s; name one with --{plan.unit}"
        )
    if name not in plan.names:
        if name.isdecimal() and plan.names == tuple(map(str, range(len(plan.names)))):
            raise InvalidInput(
                f"unknown {unit} {name!r}; this plan has {unit}s 0 to {len(plan.names) - 1}"
            )
        choose(unit, name, plan.names)
    return plan.names.index(name)


def group(plan: AnyPlan, label: str, members: IntArray) -> Subject:
    """The least protected member of a group."""
    schedules = np.unique(plan.schedules.of_client[members])
    schedule = int(schedules[plan.schedules.epsilon[schedules].argmax()])
    return Subject(
        f"budget {label}: {counted(members.size, plan.unit)}",
        schedule,
        int(members.size),
        float(plan.budget[members].max()),
        float(plan.schedules.epsilon[schedule]),
    )
