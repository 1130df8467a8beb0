"""What a ledger says, as documents: for `--json`, for tables, and for the ledger page.

Guarantee: everything is read from the entries; nothing is changed, and no name is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.basics.words import counted
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import START, Body, parse
from fedspend.ledger.rules import account_numbers, find_run, known_names
from fedspend.ledger.spending import Balances
from fedspend.ledger.state import UNITS, Run, State, stopped_because

# parts of an entry that are too long for a line
LONG = (
    *("names", "budgets", "classes", "rate", "noise", "accounts", "orders", "curves"),
    *("keys", "key", "signature"),
)
ALL_SPENT = "all of its rounds stay spent"


def account_number(state: State, name: str, unit: str) -> int:
    return int(account_numbers(state, unit, known_names(state, unit, [name]))[0])


def ledger_document(ledger: Ledger) -> dict[str, Any]:
    return {
        "ledger": ledger.state.id,
        "location": ledger.location,
        "accounts are": "simulated: they protect nobody" if ledger.simulation else "real",
        "head": str(ledger.state.head),
        **{f"{unit}s": len(ledger.accounts(unit)) for unit in UNITS if len(ledger.accounts(unit))},
        **_projects(ledger),
        "runs": [
            run_line(run) | ({"project": run.project} if ledger.state.projects else {})
            for run in ledger.state.runs.values()
            if ledger.project in ("", run.project)
        ],
    }


def _projects(ledger: Ledger) -> dict[str, Any]:
    if ledger.project:
        return {"project": ledger.project}
    known = ledger.state.projects
    return {"projects": ", ".join(known)} if known else {}


def run_line(run: Run) -> dict[str, Any]:
    states = list(run.rounds.values())
    return {
        "run": run.id,
        "opened": run.about.get("time"),
        "method": run.about.get("method"),
        "status": run.status if run.closed is None else f"closed: {closed_because(run)}",
        "members": int(run.accounts.size),
        "rounds": run.planned,
        "begun": run.next_round,
        "committed": states.count("committed"),
        "lost": states.count("lost"),
    }


def closed_because(run: Run) -> str:
    """Why a run is over, and whether what it left out stays spent."""
    return f"{run.closed}; {ALL_SPENT}" if run.frees_nothing else str(run.closed)


def run_document(state: State, id: str) -> dict[str, Any]:
    run = find_run(state, id)
    members = np.bincount(run.of_class, minlength=run.noise.shape[1])
    return {
        **run_line(run),
        **({"project": run.project} if run.project else {}),
        "unit": run.unit,
        "plan": run.about.get("plan"),
        "folder": run.about.get("folder"),
        "accountant": run.accountant,
        **({"alone": True} if run.alone else {}),
        "classes": _tuned_classes(run, members)
        if run.is_tune
        else [
            {
                "class": n,
                "members": int(members[n]),
                "rate": spread(run.rate[:, n]),
                "noise multiplier": spread(run.noise[:, n]),
                "client rate": run.client_rate,
                "steps": spread(run.steps[:, n]),
            }
            for n in range(run.noise.shape[1])
        ],
    }


def _tuned_classes(run: Run, members: IntArray) -> list[dict[str, Any]]:
    """What each class of a private tune has spent, at a few orders of its curve."""
    curves = np.zeros((0, 0)) if run.curves is None else run.curves
    orders = [int(at) for at in np.searchsorted(run.orders, (2, 8, 32)) if at < run.orders.size]
    return [
        {
            "class": n,
            "members": int(members[n]),
            **{f"at order {run.orders[at]:.4g}": float(f"{curve[at]:.4g}") for at in orders},
        }
        for n, curve in enumerate(curves)
    ]


def spread(values: Any) -> str:
    """A number, or how it changes from the first round to the last; nothing without rounds."""
    if not len(values):
        return ""
    return (
        f"{values[0]:.4g}"
        if np.all(values == values[0])
        else f"{values[0]:.4g} to {values[-1]:.4g}"
    )


def client_document(state: State, balances: Balances, name: str, unit: str) -> dict[str, Any]:
    number = account_number(state, name, unit)
    (line,) = balances.rows([number])
    mine = [(run, np.flatnonzero(run.accounts == number)) for run in state.runs_of(unit)]
    return line | {
        "runs": [
            {
                "run": run.id,
                "status": run.status,
                "begun": "private tune" if run.is_tune else f"{run.next_round} of {run.planned}",
                "rate": spread(run.rate[:, run.of_class[at[0]]]),
                "noise multiplier": spread(run.noise[:, run.of_class[at[0]]]),
            }
            for run, at in mine
            if at.size
        ]
    }


@dataclass(frozen=True)
class Entry:
    """One entry of the chain in short form, and whom it names."""

    line: dict[str, Any]
    names: frozenset[str]

    @staticmethod
    def of(number: int, body: Body, hash: bytes) -> Entry:
        kept = {key: value for key, value in body.items() if key not in LONG}
        line = {"entry": number, **kept, "about": about(body), "hash": hash.hex()}
        return Entry(line, frozenset(body.get("names", ())))


def entries_since(ledger: Ledger, number: int = 0, hash: bytes = START) -> Iterator[Entry]:
    """The entries after this one, checked to follow it."""
    for n, text, found in ledger.entries(number, hash):
        yield Entry.of(n, parse(n, text), found)


def concerning(
    state: State, entries: Iterable[Entry], client: str | None, run: str | None, unit: str
) -> Iterator[Entry]:
    """The entries about a client and about a run, where these are given."""
    taking_part = set()
    if client is not None:
        number = account_number(state, client, unit)
        client = state.accounts[unit].names[number]
        taking_part = {one.id for one in state.runs_of(unit) if number in one.accounts}
    if run is not None:
        find_run(state, run)
    for entry in entries:
        line = entry.line
        named = (
            client in entry.names
            and line.get("unit", "client") == unit
            and line.get("project", "") == state.project
        )
        if (client is None or named or line.get("run") in taking_part) and (
            run is None or line.get("run") == run
        ):
            yield entry


def history(ledger: Ledger, client: str | None, run: str | None, unit: str) -> list[dict[str, Any]]:
    """Entries in short form; only those of `client` or `run` if given."""
    found = concerning(ledger.state, entries_since(ledger), client, run, unit)
    return [entry.line for entry in found]


def about(body: dict[str, Any]) -> str:
    kind = body["kind"]
    if kind == "ledger":
        return "a new ledger for " + ("simulations" if body["simulation"] else "real accounts")
    if kind == "project":
        return str(body["name"])
    if kind == "move":
        return str(body["folder"])
    if kind == "keys":
        return f"of {', '.join(body['names'])}"
    if kind == "rotate-key":
        signed = "signed with the old one" if "signature" in body else "the old one is lost"
        return f"{body['names'][0]}, {signed}: {body['reason']}"
    if kind in ("register", "change", "withdraw", "rows", "accept-rows"):
        who = (
            body["names"][0]
            if len(body["names"]) == 1
            else counted(len(body["names"]), body["unit"])
        )
        budgets = body.get("budgets") or [0]
        range_ = (
            f"{min(budgets):g}"
            if min(budgets) == max(budgets)
            else f"{min(budgets):g} to {max(budgets):g}"
        )
        return (
            who
            + (f" of {body['project']}" if "project" in body else "")
            + (f", budget {range_}" if kind in ("register", "change") else "")
            + (f": {body['reason']}" if "reason" in body else "")
        )
    if kind in ("open", "tune", "replan"):
        return (
            f"{counted(len(body['classes']), body.get('unit', 'client'))}, plan "
            f"{body['plan'].rpartition(':')[2][:12]}"
        )
    if kind in ("close", "migrate"):
        return str(body["reason"])
    if kind == "stop":
        spent = "" if body.get("frees") else f"; {ALL_SPENT}"
        return f"run {body['run']}: {stopped_because(body)}{spent}"
    return f"round {body['round'] + 1}" + (
        f", release {body['release'][:12]}" if kind == "commit" else ""
    )
