"""A record-level plan as plain Python values, which `plan_json` writes and reads: the format of a
client-level plan (docs/reference/plan-format.md), with records in place of clients.
"""

from __future__ import annotations

import numpy as np

from fedspend.errors import InvalidInput
from fedspend.planning.plan_json import (
    Content,
    Kind,
    check_size,
    floats,
    integers,
    table_of,
    to_runs,
)
from fedspend.planning.schedules import Schedules
from fedspend.records.planning import ADJACENCY, OBSERVER, RecordPlan
from fedspend.records.terms import Terms

FORMAT, VERSION = "fedspend-record-plan", 1


def to_content(plan: RecordPlan) -> Content:
    s = plan.schedules
    return {
        "format": FORMAT,
        "version": VERSION,
        "guarantee": {
            "unit": "record",
            "adjacency": ADJACENCY,
            "observer": OBSERVER,
            "delta": plan.delta,
            "accountant": "rdp",
        },
        "parameters": plan.parameters,
        "terms": vars(plan.terms),
        "clip": plan.clip,
        "classes": [
            {
                "epsilon": float(s.epsilon[k]),
                "order": float(s.order[k]),
                "rate": to_runs(s.sampling_rate[:, k]),
            }
            | ({} if plan.short is None else {"steps": to_runs(plan.steps[:, k])})
            for k in range(s.count)
        ],
        "clients": list(plan.clients),
        "records": {
            "id": list(plan.records),
            "client": plan.owner.tolist(),
            "budget": plan.budget.tolist(),
            "class": s.of_client.tolist(),
        },
        "orders": list(plan.orders),
    }


def from_content(content: Content) -> RecordPlan:
    terms = Terms.checked(**content["terms"])
    guarantee, records, listed = content["guarantee"], content["records"], content["classes"]
    for name, expected in (
        ("unit", "record"),
        ("adjacency", ADJACENCY),
        ("observer", OBSERVER),
        ("delta", terms.delta),
    ):
        if guarantee[name] != expected:
            raise InvalidInput(
                f"the guarantee's {name} {guarantee[name]!r} is not one that this version of "
                "fedspend can check"
            )
    check_size(terms.rounds, len(listed))
    words = (content["parameters"][name] for name in ("policy", "method"))
    if not all(isinstance(name, str) for name in (*records["id"], *content["clients"], *words)):
        raise InvalidInput("the plan is malformed: a name is not text")
    rate = table_of([one["rate"] for one in listed], terms.rounds)
    short = None
    if any("steps" in one for one in listed):
        short = table_of([one["steps"] for one in listed], terms.rounds)
    clip = float(floats([content["clip"]])[0])
    return RecordPlan(
        records=tuple(records["id"]),
        owner=integers(records["client"]),
        clients=tuple(content["clients"]),
        budget=floats(records["budget"]),
        schedules=Schedules(
            noise_multiplier=np.full(rate.shape, terms.noise_multiplier),
            sampling_rate=rate,
            clip_norm=np.full(rate.shape, clip),
            epsilon=floats([one["epsilon"] for one in listed]),
            order=floats([one["order"] for one in listed]),
            of_client=integers(records["class"]),
        ),
        terms=terms,
        clip=clip,
        parameters=dict(content["parameters"]),
        orders=tuple(floats(content["orders"]).tolist()),
        short=short,
    )


RECORD_PLAN = Kind(
    FORMAT,
    VERSION,
    ("guarantee", "parameters", "terms", "clip", "classes", "clients", "records", "orders"),
    build=from_content,
)
