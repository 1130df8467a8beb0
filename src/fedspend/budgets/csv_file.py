"""Budgets from a CSV file, one line per client.

Guarantee: any cell that is missing, not a number or out of range, and any id that is empty, listed
twice or looks like another one, is refused with one line that names the file and the line. A
hundred thousand lines take a fraction of a second.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.csv_rows import Table, read_table
from fedspend.budgets.identity import plain
from fedspend.budgets.identity import read_ids as read_any_ids
from fedspend.budgets.population import Population, can_be_number, check_count
from fedspend.errors import InvalidInput

# what marks thousands in some countries
_SEPARATOR = re.compile(r"[,'’_ \u00a0\u202f]")
_THOUSANDS = re.compile(rf"[+-]?\d{{1,3}}({_SEPARATOR.pattern}\d{{3}})+(\.\d+)?")
COLUMNS = ("client", "epsilon", "saving_rate", "transition", "group")


def read_budgets_csv(path: str | Path) -> Population:
    """Read `client,epsilon[,saving_rate][,transition][,group]`, one line per client, UTF-8."""
    rows = read_table(path)
    check_header(rows.header, f"{rows.name}:{rows.header_line}")
    check_count(len(rows))
    at = Lines(rows.name, rows.lines)
    return Population(
        clients=read_ids(rows.raw("client"), at),
        epsilons=read_numbers(
            "epsilon", rows.numerals("epsilon"), at, "a positive number", lambda x: x > 0
        ),
        saving_rates=optional(
            rows, "saving_rate", at, "a number above 0 and at most 1", lambda x: (x > 0) & (x <= 1)
        ),
        transitions=optional(
            rows,
            "transition",
            at,
            "a round, counted from 1",
            lambda x: (x >= 1) & (x == np.floor(x)),
        ),
        groups=read_labels("group", rows.columns["group"], at) if "group" in rows.columns else None,
    )


@dataclass(frozen=True)
class Lines:
    """Names the file and line of the n-th row of data."""

    name: str
    numbers: list[int]

    def __call__(self, row: int) -> str:
        return f"{self.name}:{self.numbers[row]}"


def check_header(header: Sequence[str], where: str) -> None:
    for column in header:
        if column not in COLUMNS:
            near = difflib.get_close_matches(column.lower(), COLUMNS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(COLUMNS)}"
            raise InvalidInput(f"{where}: unknown column {column!r}; {hint}")
    for column in ("client", "epsilon"):
        if column not in header:
            raise InvalidInput(
                f"{where}: column {column!r} is missing; the first line must name at least client "
                "and epsilon"
            )


def read_ids(cells: Sequence[str], at: Lines, column: str = "client") -> tuple[str, ...]:
    """A column of ids, each listed once."""
    if plain(cells):
        return tuple(cells)
    refuse_empty(column, [cell.strip() for cell in cells], at)
    first: dict[str, int] = {}
    for row, name in enumerate(cells):
        if first.setdefault(name, row) != row:
            raise InvalidInput(
                f"{at(row)}: {column} {name!r} is listed twice, first on line "
                f"{at.numbers[first[name]]}; remove one"
            )
    return read_any_ids(cells, what=column, at=lambda row: f"{at(row)}: ")


def read_labels(column: str, cells: Iterable[str], at: Lines) -> tuple[str, ...]:
    labels = tuple(cell.strip() for cell in cells)
    refuse_empty(column, labels, at)
    for row, label in enumerate(labels):
        if not label.isprintable():
            raise InvalidInput(
                f"{at(row)}: {column} {label!r} has a line break or control character; use "
                "printable text"
            )
    return labels


def refuse_empty(column: str, labels: Sequence[str], at: Lines) -> None:
    if not all(labels):
        row = next(n for n, label in enumerate(labels) if not label)
        raise InvalidInput(f"{at(row)}: {column} is empty; every line needs one")


def optional(
    table: Table,
    column: str,
    at: Lines,
    wanted: str,
    good: Callable[[FloatArray], BoolArray],
) -> FloatArray | None:
    if column not in table.header:
        return None
    return read_numbers(column, table.numerals(column), at, wanted, good)


def read_numbers(
    column: str,
    cells: Sequence[str],
    at: Lines,
    wanted: str,
    good: Callable[[FloatArray], BoolArray],
    if_empty: str = "",
) -> FloatArray:
    """Read the whole column at once; if something is wrong, look cell by cell to find it. What can
    be done about an empty cell, besides filling it in, is said by `if_empty`.
    """
    try:
        values = np.array(list(map(float, cells)))
        fine = np.isfinite(values) & good(values)
    except ValueError:
        fine = np.array([can_be_number(cell) for cell in cells])
    if not fine.all() or any("_" in cell for cell in cells):
        row = next(n for n, cell in enumerate(cells) if not fine[n] or "_" in cell)
        if not cells[row].strip():
            raise InvalidInput(f"{at(row)}: {column} is empty; every line needs one{if_empty}")
        cell = cells[row].strip()
        raise InvalidInput(f"{at(row)}: {column} must be {wanted}, got {cell!r}{_plainly(cell)}")
    return values


def _plainly(cell: str) -> str:
    """How to write a number in which thousands are marked; a comma may mark decimals, too."""
    if not _THOUSANDS.fullmatch(cell):
        return ""
    whole, decimal = _SEPARATOR.sub("", cell), cell.replace(",", ".")
    either = cell.count(",") == 1 and "." not in cell
    return f"; write {whole}" + (f" or {decimal}, whichever is meant" if either else "")
