"""What is declared of a table before anybody reads it: which columns are used, their bounds and
levels, and what stands for a cell without a value.

Guarantee: features are a function of one row's own cells and of what is declared here. Nothing is
learned from rows: no mean, no largest value, no list of levels. A level that is not declared and a
cell without a value are refused, unless something is declared to stand for them. The number of
features follows from the declarations alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.choices import choose
from fedspend.data.columns import Column, Frame, check_column, places_of
from fedspend.data.dataset import Bounds, Features, read_bounds
from fedspend.errors import InvalidInput, finite_number

MARKS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "?")
OTHER = "other"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its bounds, and the number that stands for a missing one."""

    name: str
    bounds: tuple[float, float] | None = None
    missing: float | None = None
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name, *((f"{self.name} is missing",) if self.indicator else ()))

    def read(self, column: Column, marks: Collection[str]) -> FloatArray:
        """(rows, features): the numbers, scaled by their bounds, and where they are missing."""
        absent = None if self.missing is None else column.absent(marks)
        values = column.numbers(
            _wanted(self.name),
            lambda x: np.abs(x) <= _LARGEST,
            absent,
            f", or declare a number for it: missing = {{{self.name} = NUMBER}}",
        )
        if self.missing is not None:
            values[absent] = self.missing
        if self.bounds is not None:
            low, high = self.bounds
            values = np.clip((values - low) / (high - low), 0, 1)
        if not self.indicator:
            return values[:, None]
        assert absent is not None
        return np.stack([values, absent], axis=1)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of levels: one 0/1 feature for each of them, in the order in which they were
    declared.
    """

    name: str
    levels: tuple[str, ...]
    other: bool = False  # one more feature, for everything that is not listed
    missing: str | None = None  # the level that stands for a missing one
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        more = (OTHER,) if self.other and OTHER not in self.levels else ()
        return (
            *(f"{self.name} = {level}" for level in (*self.levels, *more)),
            *((f"{self.name} is missing",) if self.indicator else ()),
        )

    def read(self, column: Column, marks: Collection[str]) -> FloatArray:
        """(rows, features): 1 for the cell's level, 0 elsewhere."""
        place = places_of(self.levels)
        other = place.get(OTHER, len(self.levels)) if self.other else None
        cells = column.text()
        absent = self._absent(column, cells, marks)
        found = np.zeros((len(cells), len(self.features)))
        for row, cell in enumerate(cells):
            if absent[row]:
                if self.indicator:
                    found[row, -1] = 1
                if self.missing is not None:
                    found[row, place[self.missing]] = 1
            elif (at := place.get(cell, other if cell else None)) is not None:
                found[row, at] = 1
            else:
                self._refuse(column, row, cell)
        return found

    def _absent(self, column: Column, cells: Sequence[str], marks: Collection[str]) -> BoolArray:
        """Which cells have no value; a mark that is declared as a level is that level."""
        if self.missing is None and not self.indicator:
            return np.zeros(len(cells), dtype=bool)
        listed = np.array([cell in self.levels for cell in cells], dtype=bool)
        absent: BoolArray = column.absent(marks) & ~listed
        return absent

    def _refuse(self, column: Column, row: int, cell: str) -> None:
        if not cell:
            raise InvalidInput(
                f"{column.at(row)}: {self.name} is empty; every line needs one, or declare a level "
                f'for it: missing = {{{self.name} = "{self.levels[0]}"}}'
            )
        raise InvalidInput(
            f"{column.at(row)}: {self.name} {cell!r} is not among its levels "
            f"{', '.join(self.levels)}; add it to categories, or count what is not listed as one "
            f'level: other = ["{self.name}"]'
        )


@dataclass(frozen=True)
class Declared:
    """The columns that are used, and how each becomes features."""

    columns: tuple[NumberColumn | CategoryColumn, ...]
    marks: tuple[str, ...] = MARKS

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def meaning(self) -> dict[str, Any]:
        """For `meaning.summary`. By name, so that another order is another order and nothing else.
        Marks say how a file is written, and are not in it.
        """
        numbers = [column for column in self.columns if isinstance(column, NumberColumn)]
        others = [column for column in self.columns if isinstance(column, CategoryColumn)]
        stated = [one for one in self.columns if one.missing is not None or one.indicator]
        return {
            "columns": [column.name for column in self.columns],
            "bounds": {one.name: one.bounds for one in numbers if one.bounds is not None},
            "levels": {one.name: [one.levels, one.other] for one in others},
            "missing": {one.name: [one.missing, one.indicator] for one in stated},
        }

    def read(self, frame: Frame) -> Features:
        """The features of every row."""
        result = np.empty((len(frame), len(self.features)), dtype=np.float32)
        at = 0
        for column in self.columns:
            check_column(frame, column.name)
            width = len(column.features)
            result[:, at : at + width] = column.read(frame.column(column.name), self.marks)
            at += width
        return result


def declared(
    used: Sequence[str],
    *,
    bounds: Bounds | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    other: Sequence[str] | None = None,
    missing: Mapping[str, Any] | None = None,
    indicators: Sequence[str] | None = None,
    missing_marks: Sequence[str] | None = None,
) -> Declared:
    """What is declared of the columns `used`; refuses what contradicts itself or names others.

    >>> read = declared(["age", "sex"], categories={"sex": ["f", "m"]}, missing={"age": 40})
    >>> read.features
    ('age', 'sex = f', 'sex = m')
    """
    levels = {
        _used("categories", name, used): _levels(name, given)
        for name, given in (categories or {}).items()
    }
    numeric = [name for name in used if name not in levels]
    limits = _limits(bounds, numeric, levels)
    rules = {_used("missing", name, used): rule for name, rule in (missing or {}).items()}
    marked = {_used("indicators", name, used) for name in indicators or ()}
    others = {_used("other", name, used) for name in other or ()}
    for name in others.difference(levels):
        raise InvalidInput(
            f"other names column {name!r}, which has no levels; declare them: "
            f'categories = {{{name} = ["...", "..."]}}'
        )
    columns = tuple(
        _category(name, levels[name], name in others, rules.get(name), name in marked)
        if name in levels
        else _number(name, limits.get(name), rules.get(name), name in marked)
        for name in used
    )
    return Declared(columns, MARKS if missing_marks is None else tuple(map(str, missing_marks)))


def _wanted(name: str) -> str:
    return f'a number (or declare its levels: categories = {{{name} = ["...", "..."]}})'


def _used(what: str, name: Any, used: Sequence[str]) -> str:
    return choose(f"feature column in {what}:", name, used)


def _levels(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise InvalidInput(f"levels of {name} must be a list, got {given!r}")
    levels = tuple(str(level).strip() for level in given)
    if not levels or not all(levels) or len(set(levels)) < len(levels):
        raise InvalidInput(
            f"levels of {name} must be a list of different words, at least one, got {list(given)}"
        )
    return levels


def _limits(
    bounds: Bounds | None, numeric: Sequence[str], levels: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        return dict.fromkeys(numeric, read_bounds("bounds", bounds))
    for name in bounds:
        if name in levels:
            raise InvalidInput(f"column {name!r} has bounds and levels; declare one of the two")
    return {
        _used("bounds", name, numeric): read_bounds(f"bounds of {name}", pair)
        for name, pair in bounds.items()
    }


def _number(
    name: str, bounds: tuple[float, float] | None, missing: Any, indicator: bool
) -> NumberColumn:
    if missing is None:
        if indicator:
            raise InvalidInput(
                f"indicators name column {name!r}, which also needs a number in place of a missing "
                f"one: missing = {{{name} = 0}}"
            )
        return NumberColumn(name, bounds)
    number = finite_number(f"missing value of {name}", missing)
    if not abs(number) <= _LARGEST:
        raise InvalidInput(f"missing value of {name} is too large; give a smaller number")
    return NumberColumn(name, bounds, number, indicator)


def _category(
    name: str, levels: tuple[str, ...], other: bool, missing: Any, indicator: bool
) -> CategoryColumn:
    level = (
        None if missing is None else choose(f"level of {name} in missing:", str(missing), levels)
    )
    return CategoryColumn(name, levels, other, level, indicator)
