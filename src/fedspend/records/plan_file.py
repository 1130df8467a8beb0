"""A record-level plan as a file: JSON like a client-level plan's (docs/plan-format.md), with records in place of clients.

Guarantee: saving and loading is lossless to the last bit; what is malformed, altered or of another format is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.errors import FedspendError, InvalidInput
from fedspend.files import write_whole
from fedspend.plan_file import canonical, floats, from_runs, hash_of, integers, read_content, to_runs
from fedspend.records.planning import ADJACENCY, OBSERVER, AnyPlan, RecordPlan
from fedspend.records.terms import Terms
from fedspend.schedules import Schedules

FORMAT, VERSION = "fedspend-record-plan", 1
_KEYS = ("format", "version", "hash", "guarantee", "parameters", "terms", "clip", "classes", "clients", "records", "orders")


def save(plan: RecordPlan, path: Path) -> None:
    content = to_content(plan)
    content["hash"] = hash_of(canonical(content))
    lines = ",\n".join(f' "{key}": {json.dumps(content[key], allow_nan=False)}' for key in _KEYS)
    write_whole(path, ("{\n" + lines + "\n}\n").encode())


def content_hash(plan: RecordPlan) -> str:
    return hash_of(canonical(to_content(plan)))


def to_content(plan: RecordPlan) -> dict[str, Any]:
    s = plan.schedules
    return {
        "format": FORMAT,
        "version": VERSION,
        "guarantee": {"unit": "record", "adjacency": ADJACENCY, "observer": OBSERVER, "delta": plan.delta, "accountant": "rdp"},
        "parameters": plan.parameters,
        "terms": vars(plan.terms),
        "clip": plan.clip,
        "classes": [
            {"epsilon": float(s.epsilon[k]), "order": float(s.order[k]), "rate": to_runs(s.sampling_rate[:, k])}
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


def load(path: Path) -> RecordPlan:
    """Read, check the hash, check the shape, build."""
    try:
        return from_content(read_content(path, FORMAT, _KEYS))
    except FedspendError as error:
        raise InvalidInput(f"{path}: {error}") from None


def from_content(content: dict[str, Any]) -> RecordPlan:
    try:
        terms = Terms.checked(**content["terms"])
        guarantee, records, listed = content["guarantee"], content["records"], content["classes"]
        for name, expected in (("unit", "record"), ("adjacency", ADJACENCY), ("observer", OBSERVER), ("delta", terms.delta)):
            if guarantee[name] != expected:
                raise InvalidInput(f"the guarantee's {name} {guarantee[name]!r} is not one that this fedspend can check")
        if not all(isinstance(name, str) for name in (*records["id"], *content["clients"], content["parameters"]["policy"])):
            raise InvalidInput("the plan is malformed: a name is not text")
        rate = np.column_stack([from_runs(one["rate"], terms.rounds) for one in listed])
        short = None
        if any("steps" in one for one in listed):
            short = np.column_stack([from_runs(one["steps"], terms.rounds) for one in listed])
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
    except FedspendError:
        raise
    except KeyError as error:
        raise InvalidInput(f"the plan has no key {error}") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError):
        raise InvalidInput("the plan is malformed: a value has the wrong type or length") from None


def load_any_plan(path: Path) -> AnyPlan:
    """The plan in a file, client-level or record-level, by what the file says it is."""
    from fedspend.planning import Plan

    try:
        head = path.read_bytes()[:200]
    except OSError:
        head = b""
    return RecordPlan.load(path) if FORMAT.encode() in head else Plan.load(path)
