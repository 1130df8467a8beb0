"""A ledger as the page reads it: again for every question, and only what was added since.

Guarantee: the page shows what the ledger says now, read with the rights of who started the server,
and writes nothing. The chain is checked when it is first read and with every entry that is added; a
ledger that is cut off, replaced or altered in its last entry is refused instead of shown. An
epsilon is never shown too low: until the readings by PLD are ready it is the bound by Rényi curves,
and the answer says so.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.budgets.identity import normal
from fedspend.errors import InvalidInput, whole_number
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.ledger.documents import (
    Entry,
    account_number,
    client_document,
    closed_because,
    concerning,
    entries_since,
    run_document,
    run_line,
)
from fedspend.ledger.rules import find_run
from fedspend.ledger.spending import Balances, balances, histories
from fedspend.ledger.state import UNITS, Run, State

PAGE = 20  # lines on one page of a table
LONGEST = 1000  # characters of a search
SHOWN = ("all", "active", "exhausted", "withdrawn")
SORTED = ("registered", "name", "budget", "spent", "used", "remaining")
KEPT = 8  # balances that are kept, of projects and units


@dataclass(frozen=True)
class Asked:
    """Whose accounts a question is about."""

    project: str
    unit: str

    @staticmethod
    def of(body: dict[str, Any], state: State) -> Asked:
        project, unit = _text(body, "project", ""), _text(body, "unit", "")
        if project and project not in state.projects:
            raise InvalidInput(f"there is no project {project!r} in the ledger")
        if unit not in UNITS:
            raise InvalidInput(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
        return Asked(project, unit)


Key = tuple[bytes, Asked, bool]  # the last entry, whose accounts, whether exact


class Reader:
    """Answers questions about the ledger at `location`, from several threads."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()  # of everything below
        self._state: State | None = None
        self._shown = ""  # the location, without a password
        self._entries: list[Entry] = []
        self._balances: dict[Key, tuple[Balances, int]] = {}
        self._exact = threading.Lock()  # long readings come one after the other
        self._checking = threading.Lock()

    # --- reading it ---

    @contextlib.contextmanager
    def _reading(self) -> Iterator[State]:
        """What the ledger says now. Whatever goes wrong, the next question reads it from its
        beginning.
        """
        with self._lock:
            known, self._state = self._state, None
            with (
                Ledger.open(self._location)
                if known is None
                else Ledger.reopen(self._location, known)
            ) as ledger:
                if known is None:
                    self._entries = []
                last = self._entries[-1].line if self._entries else None
                seen = (last["entry"], bytes.fromhex(last["hash"])) if last else ()
                self._entries.extend(entries_since(ledger, *seen))
                self._state, self._shown = ledger.state, ledger.location
            yield self._state

    def _balances_of(self, state: State, asked: Asked) -> tuple[Balances, int]:
        """The balances, and how many readings by PLD they lack; under the lock."""
        exact, quick = ((state.hash, asked, one) for one in (True, False))
        found = self._balances.get(exact) or self._balances.get(quick)
        if found is None:
            found = _snapshot(state.of(asked.project), asked.unit)
            self._keep(quick, found)
        return found

    def _keep(self, key: Key, found: tuple[Balances, int]) -> None:
        while len(self._balances) >= KEPT:
            self._balances.pop(next(iter(self._balances)))
        self._balances[key] = found

    # --- what the page asks ---

    def overview(self, _: dict[str, Any]) -> dict[str, Any]:
        """The ledger as a whole, and whose accounts it has."""
        with self._reading() as state:
            holders = [
                {
                    "project": project,
                    "unit": unit,
                    "accounts": len(state.of(project).accounts[unit]),
                }
                for project in ("", *state.projects)
                for unit in UNITS
                if len(state.of(project).accounts[unit])
            ]
            return {
                "ledger": state.id,
                "location": self._shown,
                "simulation": state.simulation,
                "entries": state.entries,
                "head": str(state.head),
                "holders": holders,
                "begun": self._entries[0].line.get("time"),
                "last": self._entries[-1].line.get("time"),
            }

    def accounts(self, body: dict[str, Any]) -> dict[str, Any]:
        """One page of balances: those that are searched for, sorted."""
        search = _text(body, "search", "")
        show, sort = _one_of(body, "show", SHOWN), _one_of(body, "sort", SORTED)
        page = _page(body)
        with self._reading() as state:
            asked = Asked.of(body, state)
            found, lacking = self._balances_of(state, asked)
            runs = state.of(asked.project).runs_of(asked.unit)
        spent_up = (found.remaining <= 0) & ~found.withdrawn
        chosen = _matching(found.names, search)
        kept = {
            "all": np.ones(len(found.names), dtype=bool),
            "active": ~found.withdrawn & ~spent_up,
            "exhausted": spent_up,
            "withdrawn": found.withdrawn,
        }[show]
        who = _in_order(found, chosen[kept[chosen]], sort)
        return {
            **_paged(who.size, page),
            "lacking": lacking,
            "rows": list(found.rows(_of_page(who.tolist(), page), "name")),
            "total": {
                "accounts": len(found.names),
                "exhausted": int(spent_up.sum()),
                "withdrawn": int(found.withdrawn.sum()),
                "runs": len(runs),
                "open": sum(run.closed is None for run in runs),
            },
        }

    def exact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Wait until the balances are exact: from a state of its own, nobody waits."""
        with self._reading() as state:
            asked = Asked.of(body, state)
        with self._exact, Ledger.open(self._location, project=asked.project) as ledger:
            key = (ledger.state.hash, asked, True)
            if key not in self._balances:
                found = ledger.balances(asked.unit)
                with self._lock:
                    self._keep(key, (found, 0))
        return {"exact": True}

    def account(self, body: dict[str, Any]) -> dict[str, Any]:
        """One account: its balance, its runs, its node's key, and its entries, newest first."""
        name, page = _text(body, "name"), _page(body)
        with self._reading() as state:
            asked = Asked.of(body, state)
            mine, (found, lacking) = state.of(asked.project), self._balances_of(state, asked)
            number = account_number(mine, name, asked.unit)
            document = client_document(mine, found, name, asked.unit)
            name = mine.accounts[asked.unit].names[number]
            lines = list(concerning(mine, self._entries, name, None, asked.unit))
            keys = mine.keys.get(name, []) if asked.unit == "client" else []
            sealed = mine.accounts[asked.unit].rows_of.get(name)
        document.pop("client")
        return {
            "name": name,
            "lacking": lacking,
            "balance": document,
            "keys": [_short(key) for key in keys],
            "sealed": sealed is not None,
            "history": _newest(lines, page),
        }

    def runs(self, body: dict[str, Any]) -> dict[str, Any]:
        """One page of the runs on these accounts, newest first."""
        page, search = _page(body), _text(body, "search", "")
        with self._reading() as state:
            asked = Asked.of(body, state)
            runs = state.of(asked.project).runs_of(asked.unit)[::-1]
            chosen = [runs[n] for n in _matching([run.id for run in runs], search)]
            shown = [_line(run) for run in _of_page(chosen, page)]
        return {**_paged(len(chosen), page), "rows": shown}

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """One run: its classes, who takes part, and its entries, newest first."""
        id, page = _text(body, "run"), _page(body)
        with self._reading() as state:
            asked = Asked.of(body, state)
            mine = state.of(asked.project)
            run = find_run(mine, id)
            document = run_document(mine, id) | _line(run)
            names = mine.accounts[run.unit].names
            members = [names[n] for n in run.accounts[:PAGE].tolist()]
            lines = list(concerning(mine, self._entries, None, id, asked.unit))
        return {"run": document, "members": members, "history": _newest(lines, page)}

    def history(self, body: dict[str, Any]) -> dict[str, Any]:
        """One page of the entries of the whole ledger, newest first."""
        page, search = _page(body), _text(body, "search", "").lower()
        with self._reading():
            lines = [
                entry
                for entry in self._entries
                if not search or search in " ".join(map(str, entry.line.values())).lower()
            ]
        return _newest(lines, page)

    def verify(self, _: dict[str, Any]) -> dict[str, Any]:
        """The independent check, of the whole ledger as it is now."""
        with self._checking:
            result = audit(self._location)
        now = datetime.datetime.now(datetime.UTC)
        return result.to_dict() | {"time": now.strftime("%Y-%m-%d %H:%M UTC")}


# --- parts ----------------------------------------------------------------------------------------


def _snapshot(state: State, unit: str) -> tuple[Balances, int]:
    """Balances by Rényi curves that no later entry changes, and how many histories PLD would read
    lower.
    """
    found, accounts = balances(state, unit, quick=True), state.accounts[unit]
    fixed = replace(
        found,
        names=list(accounts.names),
        budget=accounts.budget.copy(),
        delta=accounts.delta.copy(),
        withdrawn=accounts.withdrawn.copy(),
    )
    return fixed, int(histories(state, unit, held=True).by_pld.sum())


def _line(run: Run) -> dict[str, Any]:
    """A run in a table; a tune has no rounds, but is spent whole."""
    return run_line(run) | {
        "status": run.status,
        "closed": run.closed and closed_because(run),
        "tune": run.is_tune,
    }


def _matching(names: Sequence[str], search: str) -> IntArray:
    """Positions of the names that hold the searched text, whatever its case."""
    if not search:
        return np.arange(len(names))
    wanted = normal(search).casefold()
    return np.array(
        [n for n, name in enumerate(names) if wanted in name.casefold()], dtype=np.int64
    )


def _in_order(found: Balances, who: IntArray, sort: str) -> IntArray:
    """Largest first, except for names; equal ones in the order of registration."""
    if sort == "registered":
        return who
    if sort == "name":
        return np.array(sorted(who.tolist(), key=lambda n: found.names[n]), dtype=np.int64)
    value = found.spent / found.budget if sort == "used" else getattr(found, sort)
    descending: IntArray = who[np.argsort(-value[who], kind="stable")]
    return descending


def _newest(entries: Sequence[Entry], page: int) -> dict[str, Any]:
    shown = _of_page(entries[::-1], page)
    return {**_paged(len(entries), page), "rows": [entry.line for entry in shown]}


def _paged(count: int, page: int) -> dict[str, int]:
    pages = max(1, -(-count // PAGE))
    return {"count": count, "page": min(page, pages), "pages": pages}


def _of_page(rows: Sequence[Any], page: int) -> Sequence[Any]:
    first = (_paged(len(rows), page)["page"] - 1) * PAGE
    return rows[first : first + PAGE]


def _short(key: str) -> str:
    from fedspend.engines.flower.keys import short

    try:
        return short(key)
    except ValueError:
        return "a key that cannot be read"


def _text(body: dict[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > LONGEST:
        raise InvalidInput(f"{name} must be text of up to {LONGEST:,} characters")
    return value


def _one_of(body: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = body.get(name, choices[0])
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def _page(body: dict[str, Any]) -> int:
    return whole_number("page", body.get("page", 1), 1)
