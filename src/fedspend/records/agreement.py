"""Whether an existing plan matches a config; if not, one line says what differs.

Guarantee: a plan is used for a run only if it has the run's records, each with the same client and
budget, and the run's method, rounds, steps, clip, client rate and delta. (The verifier checks that
it keeps its promise.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan
from fedspend.records.planning import RecordPlan
from fedspend.records.policies import Wanted


def check_agrees(
    plan: AnyPlan,
    *,
    records: tuple[str, ...],
    owner: IntArray,
    clients: tuple[str, ...],
    clip: float,
    wanted: Wanted,
    terms: dict[str, Any],
    budget: FloatArray | None,
) -> RecordPlan:
    """Returns the plan, or refuses it and names the first difference. If `budget` or the noise
    multiplier is not given, any value will do.
    """
    made = RecordPlan.expect(
        plan,
        f"the plan is for {plan.unit}s, but method {wanted.method!r} is for records; make them "
        "agree",
    )
    differences = chain(
        _settings(made, clip, wanted, terms), _records(made, records, owner, clients, budget)
    )
    first = next(differences, None)
    if first is not None:
        what, planned, asked = first
        raise InvalidInput(
            f"the plan has {what} {planned}, and the config {asked}; make them agree, or make "
            "another plan"
        )
    return made


def _settings(
    plan: RecordPlan, clip: float, wanted: Wanted, terms: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    asked = vars(wanted) | {"clip": clip} | terms
    planned = (
        {name: plan.parameters.get(name) for name in vars(wanted)}
        | {"clip": plan.clip}
        | vars(plan.terms)
    )
    anew = "planned_anew_after" in plan.parameters  # replanning may add rounds
    if wanted.method == "filter":  # a filter charges by the clip unless set otherwise
        asked["charge"], planned["charge"] = asked["charge"] or "clip", planned["charge"] or "clip"
    for name, value in asked.items():
        left_open = (name == "noise_multiplier" and value is None) or (name == "rounds" and anew)
        if planned[name] != value and not left_open:
            yield name, _word(planned[name]), _word(value)


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _records(
    plan: RecordPlan,
    records: tuple[str, ...],
    owner: IntArray,
    clients: tuple[str, ...],
    budget: FloatArray | None,
) -> Iterator[tuple[str, str, str]]:
    if len(plan.records) != len(records) or len(plan.clients) != len(clients):
        yield "data for", size(plan.records, plan.clients), size(records, clients)
        return
    for what, planned, asked in (
        ("client", plan.clients, clients),
        ("record", plan.records, records),
    ):
        if planned != asked:
            at = next(n for n in range(len(asked)) if planned[n] != asked[n])
            yield f"{what} number {at + 1} named", repr(planned[at]), repr(asked[at])
            return
    for at in np.flatnonzero(plan.owner != owner)[:1].tolist():
        yield (
            f"record {records[at]!r} at client",
            repr(clients[plan.owner[at]]),
            repr(clients[owner[at]]),
        )
    if budget is not None:
        for at in np.flatnonzero(plan.budget != budget)[:1].tolist():
            yield f"for record {records[at]!r} a budget of", str(plan.budget[at]), str(budget[at])


def size(records: tuple[str, ...], clients: tuple[str, ...]) -> str:
    return f"{len(records):,} records of {len(clients):,} clients"
