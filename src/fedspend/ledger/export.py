"""Exports a ledger to files that can be read without fedspend.

Guarantee: the rows of an account in the CSV export are all that it has been charged, so whoever
recomputes its epsilon from them finds at least what `balances` says it has spent (for an account
with several runs: at the account's order). Rounds that a run gave back are listed, and marked.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.ledger.book import Ledger
from fedspend.ledger.spending import balances
from fedspend.ledger.state import UNITS, State

COLUMNS = (
    "unit",
    "name",
    "run",
    "round",
    "state",
    "client_rate",
    "rate",
    "noise_multiplier",
    "steps",
    "noise",
)
# of a round that never began, and is spent: the run ended before it
LEFT_OUT = "left out"
# or one that does not count against the account, but is part of the plan that the run had
GIVEN_BACK = "given back"


def charges(ledger: Ledger, unit: str) -> Iterator[tuple[Any, ...]]:
    """Who spent what: one row per account and round charged, or per account and private tune, of
    which the JSON export has the curves.
    """
    names = ledger.accounts(unit).names
    for run in ledger.state.runs_of(unit):
        if run.is_tune:
            for account in run.accounts.tolist():
                yield (unit, names[account], run.id, "", "tuned", "", "", "", "", "Rényi curve")
        for round in range(run.charged(held=False, whole=True)):
            left_out = GIVEN_BACK if run.gave_back else LEFT_OUT
            state = run.rounds.get(round, left_out)
            for account, own in zip(run.accounts.tolist(), run.of_class.tolist(), strict=True):
                rate, noise, steps = (
                    float(table[round, own]) for table in (run.rate, run.noise, run.steps)
                )
                mechanism = (
                    run.client_rate,
                    rate,
                    noise,
                    int(steps) if steps.is_integer() else steps,
                )
                yield (
                    unit,
                    names[account],
                    run.id,
                    round + 1,
                    state,
                    *mechanism,
                    "discrete" if run.discrete or run.grid_steps is not None else "continuous",
                )


def export_csv(ledger: Ledger, path: Path, unit: str) -> int:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for row in charges(ledger, unit):
        writer.writerow(row)
        count += 1
    write_whole(path, text.getvalue().encode())
    return count


def export_json(ledger: Ledger, path: Path, _unit: str) -> int:
    """Write every entry, as the text that was hashed, and the balances that follow from them.

    Anyone can check the chain from such a file.
    """
    entries = [
        {"number": number, "hash": hash.hex(), "text": text.decode()}
        for number, text, hash in ledger.entries()
    ]
    projects = {name: _balances(ledger.state.of(name)) for name in ledger.state.projects}
    document = {
        "ledger": ledger.state.id,
        "simulation": ledger.simulation,
        "head": str(ledger.state.head),
        "balances": _balances(ledger.state.of("")),
        **({"projects": projects} if projects else {}),
        "entries": entries,
    }
    write_whole(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    return len(entries)


def _balances(state: State) -> dict[str, list[dict[str, Any]]]:
    """The balances of one project, by unit."""
    return {
        unit: list(balances(state, unit).rows(unit=unit))
        for unit in UNITS
        if len(state.accounts[unit])
    }
