"""Columns of a table, whatever kind of file it came from: text cells of a CSV file, or typed values
of a Parquet file or a data frame.

Guarantee: a cell is read by itself. A value that cannot be read is refused with one line that names
the file and the line (or row), the column and the value; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.choices import near
from fedspend.basics.csv_rows import Table
from fedspend.budgets.csv_file import Lines, read_numbers, refuse_empty
from fedspend.budgets.identity import read_column, read_ids
from fedspend.errors import InvalidInput

At = Callable[[int], str]  # where the n-th row is: "patients.csv:3"
Good = Callable[[FloatArray], BoolArray]


class Column(Protocol):
    """One column of a table."""

    @property
    def name(self) -> str: ...

    def at(self, row: int) -> str:
        """File and line of a row."""
        ...

    def text(self) -> Sequence[str]:
        """The cells as text; one without a value is empty."""
        ...

    def numbers(
        self, wanted: str, good: Good, skip: BoolArray | None = None, if_empty: str = ""
    ) -> FloatArray:
        """The cells as finite numbers for which `good` holds; those to `skip` are 0."""
        ...

    def absent(self, marks: Collection[str]) -> BoolArray:
        """Which cells have no value, or one of the `marks` in its place."""
        ...

    def ids(self) -> npt.NDArray[Any]:
        """The cells as ids, normalised; an id may appear many times."""
        ...


class Frame(Protocol):
    """A table whose columns can be read one at a time."""

    @property
    def name(self) -> str: ...

    @property
    def header(self) -> tuple[str, ...]: ...

    def column(self, name: str) -> Column: ...

    def __len__(self) -> int: ...


MOST_LISTED = 20


def check_column(frame: Frame, name: str, named_by: str = "") -> None:
    """Refuse a column that the table does not have; the message lists those that it has.

    `named_by` says what names it, if that is not plain.
    """
    if name in frame.header:
        return
    some = ", ".join(frame.header[:MOST_LISTED])
    more = f" and {len(frame.header) - MOST_LISTED} more" * (len(frame.header) > MOST_LISTED)
    asked = f", which {named_by} names" if named_by else ""
    raise InvalidInput(
        f"unknown column in {frame.name}: {name!r}{asked}{near(name, frame.header, '; ')} (its "
        f"columns are {some}{more}); correct the name, or add the column"
    )


# --- CSV ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of a CSV file."""

    table: Table
    name: str

    @cached_property
    def lines(self) -> Lines:
        return Lines(self.table.name, self.table.lines)

    def at(self, row: int) -> str:
        return self.lines(row)

    def text(self) -> Sequence[str]:
        return self.table.columns[self.name]

    def numbers(
        self, wanted: str, good: Good, skip: BoolArray | None = None, if_empty: str = ""
    ) -> FloatArray:
        cells: Sequence[str] = self.table.numerals(self.name)
        if skip is None or not skip.any():
            return read_numbers(self.name, cells, self.lines, wanted, good, if_empty)
        kept: list[int] = np.flatnonzero(~skip).tolist()
        found = np.zeros(len(cells))
        if kept:
            lines = Lines(self.table.name, [self.table.lines[row] for row in kept])
            there = [cells[row] for row in kept]
            found[kept] = read_numbers(self.name, there, lines, wanted, good, if_empty)
        return found

    def absent(self, marks: Collection[str]) -> BoolArray:
        return np.array([cell == "" or cell in marks for cell in self.text()], dtype=bool)

    def ids(self) -> npt.NDArray[Any]:
        refuse_empty(self.name, self.text(), self.lines)
        return np.array(
            read_column(
                self.table.raw(self.name), what=self.name, at=lambda row: f"{self.at(row)}: "
            )
        )


@dataclass(frozen=True, eq=False)
class CsvFrame:
    """A CSV file."""

    table: Table

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def header(self) -> tuple[str, ...]:
        return self.table.header

    def column(self, name: str) -> TextColumn:
        return TextColumn(self.table, name)

    def __len__(self) -> int:
        return len(self.table)


# --- typed values ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TypedColumn:
    """A column of values with a type: numbers, or text, where None is no value."""

    name: str
    file: str
    values: npt.NDArray[Any]  # of one dimension
    row: str = "row"  # what a place in it is called
    places: Sequence[Any] | None = None  # names of the rows, where they are not numbered

    def at(self, row: int) -> str:
        return f"{self.file}, {self.row} {row if self.places is None else self.places[row]!r}"

    @property
    def _numeric(self) -> bool:
        return self.values.dtype.kind in "biuf"

    def text(self) -> Sequence[str]:
        return list(map(as_text, self.values.tolist()))

    def numbers(
        self, wanted: str, good: Good, skip: BoolArray | None = None, if_empty: str = ""
    ) -> FloatArray:
        skipped = np.zeros(len(self.values), dtype=bool) if skip is None else skip
        found = self._as_numbers(wanted, skipped)
        found[skipped] = 0.0
        fine = skipped | (np.isfinite(found) & good(found))
        if not fine.all():
            row = int(np.flatnonzero(~fine)[0])
            if is_none(self.values[row]):
                raise InvalidInput(
                    f"{self.at(row)}: {self.name} is empty; every row needs one{if_empty}"
                )
            raise InvalidInput(
                f"{self.at(row)}: {self.name} must be {wanted}, got {self.values[row].item()!r}"
                if isinstance(self.values[row], np.generic)
                else f"{self.at(row)}: {self.name} must be {wanted}, got {self.values[row]!r}"
            )
        return found

    def _as_numbers(self, wanted: str, skip: BoolArray) -> FloatArray:
        if self._numeric:
            return self.values.astype(np.float64)
        found = np.full(len(self.values), np.nan)
        for row, value in enumerate(self.values.tolist()):
            if skip[row] or is_none(value):
                continue
            if isinstance(value, bool | int | float):
                found[row] = float(value)
                continue
            raise InvalidInput(
                f"{self.at(row)}: {self.name} must be {wanted}, got {value!r}, which is "
                f"{type(value).__name__}"
            )
        return found

    def absent(self, marks: Collection[str]) -> BoolArray:
        if self.values.dtype.kind in "biu":
            return np.zeros(len(self.values), dtype=bool)
        if self.values.dtype.kind == "f":
            none: BoolArray = np.isnan(self.values)
            return none
        return np.array(
            [
                is_none(value) or (isinstance(value, str) and value.strip() in {"", *marks})
                for value in self.values.tolist()
            ],
            dtype=bool,
        )

    def ids(self) -> npt.NDArray[Any]:
        if self.values.dtype.kind in "iu":
            return self.values
        for row, value in enumerate(self.values.tolist()):
            if is_none(value) or value == "":
                raise InvalidInput(f"{self.at(row)}: {self.name} is empty; every row needs one")
            if not (isinstance(value, str) or type(value) is int):
                raise InvalidInput(
                    f"{self.at(row)}: {self.name} ids must be text or whole numbers, got {value!r}"
                )
        return np.array(
            read_column(
                list(map(str, self.values.tolist())),
                what=self.name,
                at=lambda row: f"{self.at(row)}: ",
            )
        )


@dataclass(frozen=True, eq=False)
class TypedFrame:
    """A table of typed columns, each made when it is asked for."""

    name: str
    makers: Mapping[str, Callable[[], npt.NDArray[Any]]]
    length: int
    places: Sequence[Any] | None = None

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self.makers)

    def column(self, name: str) -> TypedColumn:
        return TypedColumn(name, self.name, self.makers[name](), places=self.places)

    def __len__(self) -> int:
        return self.length


_BOOLEANS = ("false", "true")


def is_none(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def as_text(value: Any) -> str:
    """A value as the text that a list of levels or labels would have for it.

    >>> as_text(1.0), as_text(True), as_text(None), as_text(" a ")
    ('1', 'true', '', 'a')
    """
    if is_none(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def places_of(names: Sequence[str]) -> dict[str, int]:
    """The place of each declared level or label, by what a cell may hold. Programs spell yes and no
    in several ways (pandas writes True into CSV); these are one, unless several are declared.

    >>> places_of(["no", "true"])["True"], places_of(["True", "true"])["true"]
    (1, 1)
    """
    declared = {name: place for place, name in enumerate(names)}
    spelled = {
        spelling: place
        for name, place in declared.items()
        if name.lower() in _BOOLEANS
        for spelling in (name.lower(), name.title(), name.upper())
    }
    return spelled | declared


def distinct_ids(column: Column) -> npt.NDArray[Any]:
    """A column of ids that are all different, as text."""
    given = [str(name) for name in column.ids().tolist()]
    first: dict[str, int] = {}
    for row, name in enumerate(given):
        if first.setdefault(name, row) != row:
            raise InvalidInput(
                f"{column.at(row)}: {column.name} {name!r} is listed twice, first at "
                f"{column.at(first[name])}; remove one"
            )
    return np.array(read_ids(given, what=column.name, at=lambda row: f"{column.at(row)}: "))
