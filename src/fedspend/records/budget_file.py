"""Budgets of records as a CSV file: `epsilon[,record][,client]`, one line per record, UTF-8; and
rates written back.

Guarantee: a record without a budget, a budget that is not a positive number, and an id that is
empty, listed twice or looks like another one are refused; the error names the file and the line.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import choose
from fedspend.basics.csv_rows import read_table
from fedspend.basics.files import write_whole
from fedspend.budgets.csv_file import Lines, read_ids, read_labels, read_numbers
from fedspend.budgets.identity import read_column
from fedspend.budgets.population import numbered
from fedspend.errors import InvalidInput

COLUMNS = ("record", "client", "epsilon")


@dataclass(frozen=True, eq=False)
class RecordBudgets:
    """One budget per record; without a client column, all records belong to one client. `named`:
    the file has their ids.
    """

    records: tuple[str, ...]
    budget: FloatArray
    clients: tuple[str, ...] | None = None
    named: bool = False


def read_record_budgets(path: str | Path) -> RecordBudgets:
    table = read_table(path)
    for column in table.header:
        choose(f"column in {table.name}:{table.header_line}:", column, COLUMNS)
    if "epsilon" not in table.header:
        raise InvalidInput(
            f"{table.name}:{table.header_line}: column 'epsilon' is missing; every record needs a "
            "budget"
        )
    at = Lines(table.name, table.lines)
    budget = read_numbers(
        "epsilon", table.numerals("epsilon"), at, "a positive number", lambda x: x > 0
    )
    clients = None
    if "client" in table.header:
        read_labels("client", table.columns["client"], at)  # none is empty
        clients = tuple(read_column(table.raw("client"), at=lambda row: f"{at(row)}: "))
    named = "record" in table.header
    names = read_ids(table.raw("record"), at, "record") if named else numbered(len(table))
    return RecordBudgets(names, budget, clients, named)


def write_rates(path: Path, budgets: RecordBudgets, rate: FloatArray, spent: FloatArray) -> None:
    """Writes `record[,client],epsilon,rate,spent`; as private as the budgets, readable by its owner
    only.
    """
    named = budgets.clients is not None
    columns = [budgets.records, *([budgets.clients] if budgets.clients is not None else [])]
    numbers = [
        [repr(value) for value in column.tolist()] for column in (budgets.budget, rate, spent)
    ]
    write_csv(
        path,
        ["record", *(["client"] if named else []), "epsilon", "rate", "spent"],
        [*columns, *numbers],
    )


def write_csv(path: Path, header: list[str], columns: list[tuple[str, ...] | list[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    write_whole(path, text.getvalue().encode())
