"""How `fedspend ledger` prints what a ledger says (`fedspend.ledger.documents`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from fedspend.basics.words import counted
from fedspend.cli.checked import show_findings
from fedspend.cli.tables import figures, frame
from fedspend.cli.terminal import console
from fedspend.ledger.audit import LedgerAudit
from fedspend.ledger.spending import Balances

SHOWN = 40  # most accounts in a table; --json and export have all
NOTES = (
    "Epsilons are at each account's delta, composed over all mechanisms. Epsilons do not simply",
    "add up, so remaining (the largest epsilon that a new plan like the last could claim) is",
    "usually more than budget minus spent.",
)
SIMULATED = "Simulated accounts: they protect nobody."


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


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


def show_audit(result: LedgerAudit) -> None:
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
