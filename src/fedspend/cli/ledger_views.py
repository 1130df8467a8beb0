"""How `fedspend ledger` shows a ledger: as tables, and as documents for --json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.text import Text

from fedspend.basics.arrays import IntArray
from fedspend.basics.words import counted
from fedspend.cli.checked import show_findings
from fedspend.cli.tables import figures, frame
from fedspend.cli.terminal import console
from fedspend.ledger import Ledger
from fedspend.ledger.audit import Audit
from fedspend.ledger.chain import parse
from fedspend.ledger.rules import account_numbers, known_names
from fedspend.ledger.spending import Balances
from fedspend.ledger.state import STOPPED_EARLY, UNITS, Run

SHOWN = 40  # most accounts in a table; --json and export have all
# parts of an entry that are too long for a line
LONG = (
    *("names", "budgets", "classes", "rate", "noise", "accounts", "orders", "curves"),
    *("keys", "key", "signature"),
)


NOTES = (
    "Epsilons are at each account's delta, composed over all mechanisms. Epsilons do not simply",
    "add up, so remaining (the largest epsilon that a new plan like the last could claim) is",
    "usually more than budget minus spent.",
)
SIMULATED = "Simulated accounts: they protect nobody."


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def account_number(ledger: Ledger, name: str, unit: str) -> int:
    return int(account_numbers(ledger.state, unit, known_names(ledger.state, unit, [name]))[0])


# --- documents ------------------------------------------------------------------------------------


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
        "status": run.status if run.closed is None else f"closed: {run.closed}",
        "members": int(run.accounts.size),
        "rounds": run.planned,
        "begun": run.next_round,
        "committed": states.count("committed"),
        "lost": states.count("lost"),
    }


def run_document(ledger: Ledger, id: str) -> dict[str, Any]:
    run = ledger.run(id)
    members = np.bincount(run.of_class, minlength=run.noise.shape[1])
    return {
        **run_line(run),
        **({"project": run.project} if run.project else {}),
        "unit": run.unit,
        "plan": run.about.get("plan"),
        "folder": run.about.get("folder"),
        "accountant": run.accountant,
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


def client_document(ledger: Ledger, name: str, unit: str) -> dict[str, Any]:
    number = account_number(ledger, name, unit)
    (line,) = ledger.balances(unit).rows([number])
    mine = [(run, np.flatnonzero(run.accounts == number)) for run in ledger.state.runs_of(unit)]
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


def history(ledger: Ledger, client: str | None, run: str | None, unit: str) -> list[dict[str, Any]]:
    """Entries in short form; only those of `client` or `run` if given."""
    if client is not None:
        client = ledger.accounts(unit).names[account_number(ledger, client, unit)]
    if run is not None:
        ledger.run(run)
    taking_part = {
        id
        for id, found in ledger.state.runs.items()
        if client is not None
        and found.unit == unit
        and account_number(ledger, client, unit) in found.accounts
    }
    lines = []
    for number, text, hash in ledger.entries():
        body = parse(number, text)
        of_client = (
            client is None
            or body.get("run") in taking_part
            or (
                body.get("unit") == unit
                and body.get("project", "") == ledger.project
                and client in body.get("names", ())
            )
        )
        if of_client and (run is None or body.get("run") == run):
            lines.append(
                {
                    "entry": number,
                    **{key: value for key, value in body.items() if key not in LONG},
                    "about": about(body),
                }
            )
            lines[-1]["hash"] = hash.hex()
    return lines


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
            figures(min(budgets))
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
    if kind == "close":
        return str(body["reason"])
    if kind == "stop":
        return f"run {body['run']}: {STOPPED_EARLY}; all of its rounds stay spent"
    return f"round {body['round'] + 1}" + (
        f", release {body['release'][:12]}" if kind == "commit" else ""
    )


# --- for people -----------------------------------------------------------------------------------


def show_document(document: dict[str, Any]) -> None:
    out = console()
    tables = {key: value for key, value in document.items() if isinstance(value, list)}
    for key, value in document.items():
        if key not in tables:
            words = figures(value) if isinstance(value, float) else str(value)
            out.print(Text.assemble((f"{key:<14}", "bold"), words))
    for name, rows in tables.items():
        out.print()
        out.print(table_of(rows) if rows else Text(f"no {name}", style="dim"))


def table_of(rows: Sequence[dict[str, Any]]) -> Any:
    made = frame()
    for heading, value in rows[0].items():
        made.add_column(
            heading,
            justify="right"
            if isinstance(value, int | float) and not isinstance(value, bool)
            else "left",
            # in a narrow window, an id stays whole, and the rest is folded, never cut
            overflow="fold",
            no_wrap=heading == "run",
            min_width=max(len(str(row[heading])) for row in rows) if heading == "run" else None,
        )
    for row in rows:
        made.add_row(
            *(
                Text(figures(value) if isinstance(value, float) else str(value))
                for value in row.values()
            )
        )
    return made


def show_balances(
    balances: Balances, who: list[int] | None, unit: str, simulation: bool, plot: str | None
) -> None:
    """One line per account, or, if there are many, one per distinct balance."""
    out = console()
    rows = list(balances.rows(who))
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        figured = tuple(figures(row[key]) for key in ("budget", "spent", "reserved", "remaining"))
        together = "" if len(rows) > SHOWN else row["client"]
        alike.setdefault((*figured, row["withdrawn"], together), []).append(row["client"])
    made = frame(unit)
    for heading in ("budget", "spent", "reserved", "remaining"):
        made.add_column(heading, justify="right")
    made.add_column("")
    for key, names in list(alike.items())[:SHOWN]:
        made.add_row(Text(named(names, unit)), *key[:4], "withdrawn" if key[4] else "")
    out.print(made, "", sep="\n")
    if len(alike) > SHOWN:
        out.print(
            Text(
                f"{SHOWN} of {len(alike):,} different balances; --json and fedspend ledger export "
                "have all",
                style="dim",
            )
        )
    for note in NOTES + ((SIMULATED,) if simulation else ()):
        out.print(Text(note, style="dim"))
    if plot is not None:
        out.print(Text(f"Plot: {plot}"))


def named(names: list[str], unit: str) -> str:
    """A few names, or how many there are.

    >>> named(["a"], "client"), named(["a", "b", "c", "d"], "client")
    ('a', 'a, b, ... (4 clients)')
    """
    return (
        ", ".join(names)
        if len(names) <= 2
        else f"{names[0]}, {names[1]}, ... ({counted(len(names), unit)})"
    )


def show_history(entries: list[dict[str, Any]]) -> None:
    shown = ("entry", "time", "kind", "run", "about")
    rows = [{name: entry.get(name, "") for name in shown} for entry in entries]
    console().print(table_of(rows) if rows else Text("no entries", style="dim"))


def show_audit(result: Audit) -> None:
    out = console()
    width = max(18, *(len(finding.check) + 2 for finding in result.checks))
    show_findings(out, result.checks, names=width, unchecked="none")
    if result.ok:
        out.print()
        out.print(Text(f"intact; head {result.head}"))
        out.print(
            Text(
                "Write the head down: with it, anyone can tell later whether entries were cut off "
                "or replaced.",
                style="dim",
            )
        )
