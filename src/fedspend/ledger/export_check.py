"""The check of a ledger that was exported as JSON, without the database that it came from.

Guarantee: if the result is ok, the exported entries are one unbroken chain, everything else in the
file follows from them, and every balance was recomputed by the second accountant and is within its
budget. Whatever an export holds, the answer is a list of findings, never an exception; a file that
is no export is bad input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedspend.basics.findings import Finding, guarded, unforeseen
from fedspend.basics.json_values import number
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger.audit import LedgerAudit, named_head, recheck_balances
from fedspend.ledger.chain import START, Damaged, Head, follow, parse
from fedspend.ledger.spending import balances
from fedspend.ledger.state import UNITS, State

_SAME = 1e-6  # two readings of a balance by one accountant, relative: `remaining` is solved for
_NUMBERS = ("budget", "delta", "spent", "reserved", "remaining")


def audit_export(path: str | Path, *, heads: Sequence[str] = ()) -> LedgerAudit:
    """Check an export; it must contain `heads` (`ENTRIES:HASH`, or files that hold one)."""
    result, wanted = LedgerAudit(), [named_head(text) for text in heads]
    document = _document(Path(path))
    try:
        found = _read(document)
    except Exception as error:  # a forged entry may fail in any way
        result.checks.append(Finding("chain", False, _words(error)))
        return result
    state = found.state
    result.head = str(state.head)
    result.checks = [
        Finding("chain", True, f"{state.entries} entries, each linked to the one before"),
        guarded("statements", lambda: _check_statements(document, state)),
        guarded("heads", lambda: _check_heads(found, wanted)),
        *(
            guarded(f"{unit} balances{where}", partial(_check_unit, listed, one, unit))
            for where, listed, one in _projects(document, state)
            for unit in UNITS
            if len(one.accounts[unit])
        ),
    ]
    return result


@dataclass(frozen=True)
class _Read:
    """The state that the entries add up to, and the hash of each."""

    state: State
    hashes: list[str]


def _document(path: Path) -> dict[str, Any]:
    """The export in the file."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the export {str(path)!r}: {error.strerror}") from None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("entries"), list):
        return document
    raise InvalidInput(
        f"{path} is no export of a ledger, or it was cut off; make one with: fedspend ledger "
        "export -o FILE.json"
    )


def _read(document: dict[str, Any]) -> _Read:
    found = _Read(State(), [])
    for place, text, hash in follow(_rows(document["entries"]), 0, START):
        found.state.apply(place, parse(place, text), hash)
        found.hashes.append(hash.hex())
    if not found.hashes:
        raise Damaged("the ledger is damaged: it has no entries")
    return found


def _rows(entries: list[Any]) -> Iterator[tuple[int, bytes, bytes]]:
    for place, entry in enumerate(entries, 1):
        try:
            text = entry["text"].encode()
            if text[:1] != b"{":  # an export holds the plain text, never a packed one
                raise ValueError
            yield entry["number"], text, bytes.fromhex(entry["hash"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Damaged(f"the ledger is damaged: entry {place} cannot be read") from None


def _projects(document: dict[str, Any], state: State) -> Iterator[tuple[str, Any, State]]:
    """What the file lists of each project's balances, and the entries as that project sees them."""
    yield "", document.get("balances"), state.of("")
    listed = document.get("projects")
    for name in state.projects:
        mine = listed.get(name) if isinstance(listed, dict) else None
        yield f", {name}", mine, state.of(name)


def _check_statements(document: dict[str, Any], state: State) -> tuple[bool, str]:
    """What the file says beside its entries must be what they say."""
    stated = {
        "ledger": state.id,
        "simulation": state.simulation,
        "head": str(state.head),
    }
    for name, true in stated.items():
        said = document.get(name)
        if type(said) is not type(true) or said != true:
            raise Damaged(f"the export says {name} {_short(said)}, but its entries say {true!r}")
    for _, listed, one in _projects(document, state):
        units = {unit for unit in UNITS if len(one.accounts[unit])}
        if not isinstance(listed, dict) or set(listed) != units:
            raise Damaged("the export does not list the balances of exactly the accounts it has")
    named = document.get("projects", {})
    if not isinstance(named, dict) or set(named) != set(state.projects):
        raise Damaged("the export does not list the projects that its entries have")
    return True, "ledger, head, and simulation or not are those of the entries"


def _check_heads(found: _Read, wanted: Sequence[tuple[Head, str]]) -> tuple[bool | None, str]:
    for head, where in wanted:
        if head.ledger not in ("", found.state.id):
            raise Damaged(
                f"{where} belongs to ledger {head.ledger[:12]}, but this is ledger "
                f"{found.state.id[:12]}"
            )
        if not 1 <= head.entries <= len(found.hashes):
            raise Damaged(
                f"the export was cut off, or is older: it has {len(found.hashes)} entries, and "
                f"{where} has seen {head.entries}"
            )
        if found.hashes[head.entries - 1] != head.hash:
            raise Damaged(
                f"this is not the ledger that {where} has seen: entry {head.entries} differs"
            )
    if not wanted:
        return None, "no head to compare with, so missing last entries would go unnoticed: --head"
    return True, f"all {len(wanted)} heads are in the chain"


def _check_unit(project: Any, state: State, unit: str) -> tuple[bool, str]:
    """The balances that are listed are those of the entries, and the second accountant agrees."""
    computed = balances(state, unit)
    listed = project.get(unit) if isinstance(project, dict) else None
    if not isinstance(listed, list) or len(listed) != len(computed.names):
        raise Damaged(f"the export does not list the balance of every {unit}")
    for row, true in zip(listed, computed.rows(unit=unit), strict=True):
        name = true[unit]
        # version 0.1 names a record under "client", too
        if not isinstance(row, dict) or row.get(unit, row.get("client")) != name:
            raise Damaged(f"the export does not list the balance of {unit} {name!r} in its place")
        if row.get("withdrawn") is not true["withdrawn"]:
            raise Damaged(f"the export is wrong about whether {unit} {name!r} has withdrawn")
        for key in (*_NUMBERS, *(["order"] if "order" in true else [])):
            said = number(row.get(key))
            if said is None or not abs(said - true[key]) <= _SAME * max(1.0, abs(true[key])):
                raise Damaged(
                    f"the export says {key} {_short(row.get(key))} for {unit} {name!r}, but its "
                    f"entries say {true[key]:.9g}"
                )
    return recheck_balances(state, unit, computed)


def _words(error: Exception) -> str:
    if isinstance(error, FedspendError):
        return str(error)
    return unforeseen(error)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
