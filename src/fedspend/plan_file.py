"""A plan as a file: JSON that a person can read and a stranger can check with their own script.

Guarantee: saving and loading is lossless to the last bit; a file is written whole or not at all; a file that is malformed,
of an unknown version, or whose content does not match its hash is refused. `docs/plan-format.md` describes every key.

Columns of equal numbers are stored as runs: `[[2.5, 12], [1.9, 13]]` is twelve rounds of 2.5, then thirteen of 1.9.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.arrays import FloatArray
from fedspend.errors import FedspendError, InvalidInput
from fedspend.files import write_whole
from fedspend.planning import ADJACENCY, OBSERVER, Plan
from fedspend.schedules import TABLES, Schedules

FORMAT, VERSION = "fedspend-plan", 1
_KEYS = ("format", "version", "hash", "guarantee", "parameters", "rounds", "clip", "schedules", "clients", "orders")


def save(plan: Plan, path: Path) -> None:
    """Write the plan next to `path` and move it into place."""
    content = to_content(plan)
    content["hash"] = hash_of(canonical(content))
    body = _readable(content).encode()
    write_whole(path, gzip.compress(body, compresslevel=5, mtime=0) if path.suffix == ".gz" else body)


def _readable(content: dict[str, Any]) -> str:
    """One line for each key, and one for each schedule."""
    lines = {key: json.dumps(value, allow_nan=False) for key, value in content.items() if key != "schedules"}
    lines["schedules"] = "[\n  " + ",\n  ".join(json.dumps(one, allow_nan=False) for one in content["schedules"]) + "\n ]"
    order = [key for key in _KEYS if key in lines]
    return "{\n" + ",\n".join(f' "{key}": {lines[key]}' for key in order) + "\n}\n"


def content_hash(plan: Plan) -> str:
    return hash_of(canonical(to_content(plan)))


def canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def to_content(plan: Plan) -> dict[str, Any]:
    """Everything in a plan but its hash, as plain Python."""
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
        "orders": list(plan.orders),
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
        "clients": {"id": list(plan.clients), "budget": plan.budget.tolist(), "schedule": s.of_client.tolist()},
    }


def to_runs(column: FloatArray) -> list[list[float | int]]:
    first = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    lengths = np.diff(np.append(first, column.size))
    return [list(pair) for pair in zip(column[first].tolist(), lengths.tolist(), strict=True)]


def load(path: Path) -> Plan:
    """Read, check the hash, check the shape, build."""
    try:
        content = read_content(path)
        return from_content(content)
    except FedspendError as error:
        raise InvalidInput(f"{path}: {error}") from None


def read_content(path: Path, format: str = FORMAT, keys: tuple[str, ...] = _KEYS) -> dict[str, Any]:
    """The checked JSON of a plan file, without its hash."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the plan: {error.strerror}") from None
    try:
        if body[:2] == b"\x1f\x8b":
            body = gzip.GzipFile(fileobj=io.BytesIO(body)).read()
        content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (EOFError, OSError, zlib.error):
        raise InvalidInput("not a plan: the compressed file is damaged or cut off") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, FedspendError):
            raise
        raise InvalidInput(f"not a plan: it is not valid JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict) or content.get("format") != format:
        raise InvalidInput(f'not a plan: a plan is a JSON object with "format": "{format}"')
    if content.get("version") != VERSION:
        raise InvalidInput(f"plan version {content.get('version')!r} is not {VERSION}, the one that this fedspend reads")
    stored = content.pop("hash", None)
    if stored != hash_of(canonical(content)):
        raise InvalidInput("the content does not match its hash: the file was altered or damaged after it was saved")
    unknown, missing = sorted(set(content) - set(keys)), sorted(set(keys) - {"hash"} - set(content))
    if unknown or missing:
        raise InvalidInput(f"unknown key {unknown[0]!r} in the plan" if unknown else f"the plan has no key {missing[0]!r}")
    return content


def _no_constant(name: str) -> float:
    raise InvalidInput(f"not a plan: it holds {name}, which is not a number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise InvalidInput("not a plan: a key appears twice in one object")
    return out


def from_content(content: dict[str, Any]) -> Plan:
    """Build a plan from parsed JSON; anything of the wrong type or shape is bad input."""
    try:
        rounds, guarantee, clients = content["rounds"], content["guarantee"], content["clients"]
        listed = content["schedules"]
        tables = {name: np.column_stack([from_runs(one[name], rounds) for one in listed]) for name in TABLES}
        schedules = Schedules(
            epsilon=floats([one["epsilon"] for one in listed]),
            order=floats([one["order"] for one in listed]),
            of_client=integers(clients["schedule"]),
            **tables,
        )
        for name, expected in (("unit", "client"), ("adjacency", ADJACENCY), ("observer", OBSERVER)):
            if guarantee[name] != expected:
                raise InvalidInput(f"the guarantee's {name} {guarantee[name]!r} is not one that this fedspend can check")
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
    except FedspendError:
        raise
    except KeyError as error:
        raise InvalidInput(f"the plan has no key {error}") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError):
        raise InvalidInput("the plan is malformed: a value has the wrong type or length") from None


def floats(values: list[Any]) -> FloatArray:
    if not all(type(value) in (float, int) for value in values):
        raise InvalidInput("the plan is malformed: a number was expected")
    return np.array(values, dtype=np.float64)


def integers(values: list[Any]) -> Any:
    if not all(type(value) is int for value in values):
        raise InvalidInput("the plan is malformed: a whole number was expected")
    return np.array(values, dtype=np.int64)


def from_runs(runs: list[list[Any]], rounds: int) -> FloatArray:
    values, lengths = zip(*runs, strict=True)
    counts = integers(list(lengths))
    if not (type(rounds) is int and counts.min() >= 1 and counts.sum() == rounds):
        raise InvalidInput(f"the plan is malformed: a column does not have {rounds} rounds")
    return np.repeat(floats(list(values)), counts)
