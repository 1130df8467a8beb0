"""A client-level plan as plain Python values, which `plan_json` writes and reads.

`docs/reference/plan-format.md` describes every key.
"""

from __future__ import annotations

from fedspend.errors import InvalidInput
from fedspend.planning.plan import ADJACENCY, OBSERVER, Plan
from fedspend.planning.plan_json import (
    Content,
    Kind,
    check_size,
    floats,
    integers,
    table_of,
    to_runs,
)
from fedspend.planning.schedules import TABLES, Schedules

FORMAT, VERSION = "fedspend-plan", 1


def to_content(plan: Plan) -> Content:
    s = plan.schedules
    return {
        "format": FORMAT,
        "version": VERSION,
        "guarantee": {
            "unit": "client",
            "adjacency": ADJACENCY,
            "observer": OBSERVER,
            "delta": plan.delta,
            "accountant": plan.accountant,
        },
        "parameters": plan.parameters,
        "rounds": plan.rounds,
        "clip": plan.clip,
        "schedules": [
            {
                "epsilon": float(s.epsilon[k]),
                "order": float(s.order[k]),
                **{name: to_runs(getattr(s, name)[:, k]) for name in TABLES},
            }
            for k in range(s.count)
        ],
        "clients": {
            "id": list(plan.clients),
            "budget": plan.budget.tolist(),
            "schedule": s.of_client.tolist(),
        },
        "orders": list(plan.orders),
    }


def from_content(content: Content) -> Plan:
    rounds, guarantee, clients = content["rounds"], content["guarantee"], content["clients"]
    listed = content["schedules"]
    check_size(rounds, len(listed))
    tables = {name: table_of([one[name] for one in listed], rounds) for name in TABLES}
    schedules = Schedules(
        epsilon=floats([one["epsilon"] for one in listed]),
        order=floats([one["order"] for one in listed]),
        of_client=integers(clients["schedule"]),
        **tables,
    )
    for name, expected in (("unit", "client"), ("adjacency", ADJACENCY), ("observer", OBSERVER)):
        if guarantee[name] != expected:
            raise InvalidInput(
                f"the guarantee's {name} {guarantee[name]!r} is not one that this version of "
                "fedspend can check"
            )
    return Plan(
        clients=clients["id"],
        budget=floats(clients["budget"]),
        schedules=schedules,
        delta=floats([guarantee["delta"]])[0],
        clip=floats([content["clip"]])[0],
        accountant=guarantee["accountant"],
        orders=floats(content["orders"]).tolist(),
        parameters=dict(content["parameters"]),
    )


CLIENT_PLAN = Kind(
    FORMAT,
    VERSION,
    ("guarantee", "parameters", "rounds", "clip", "schedules", "clients", "orders"),
    build=from_content,
)
