"""What a model is to learn from a table: one of several classes, numbers, or several answers of yes
and no. Which of them it is, is declared.

Guarantee: the list of classes, their number and the bounds of numbers are declared; none is read
from rows. A target outside of what is declared is refused (a number is cut off at its bounds), and
the error names the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray
from fedspend.basics.choices import choose
from fedspend.data.columns import Column, Frame, places_of
from fedspend.data.dataset import read_bounds
from fedspend.errors import InvalidInput, whole_number
from fedspend.tasks.kinds import CLASSES, NUMBERS, SEVERAL

YES_OR_NO = ("0", "1")


@dataclass(frozen=True)
class OneOf:
    """One class of several: int64, (rows,)."""

    column: str
    names: tuple[str, ...] | None  # None: numbers from 0
    classes: int
    kind: ClassVar[str] = CLASSES

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def meaning(self) -> list[Any]:
        """For `meaning.summary`, like those of the other kinds."""
        return [self.kind, *(self.names or map(str, range(self.classes)))]

    def read(self, frame: Frame) -> IntArray:
        column = frame.column(self.column)
        if self.names is None:
            wanted = f"a whole number between 0 and {self.classes - 1}"
            return column.numbers(
                wanted, lambda x: (x >= 0) & (x < self.classes) & (x == np.floor(x))
            ).astype(np.int64)
        return _places(column, self.names)


@dataclass(frozen=True)
class Numbers:
    """One number or several, scaled from their bounds to [0, 1]: float32, (rows,) or
    (rows, columns).
    """

    columns: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    several: bool = False
    kind: ClassVar[str] = NUMBERS

    @property
    def classes(self) -> int:
        return len(self.columns)

    @property
    def meaning(self) -> list[Any]:
        return [self.kind, *self.bounds]

    def read(self, frame: Frame) -> npt.NDArray[np.float32]:
        found = np.empty((len(frame), len(self.columns)), dtype=np.float32)
        for n, (name, (low, high)) in enumerate(zip(self.columns, self.bounds, strict=True)):
            values = frame.column(name).numbers("a number", np.isfinite)
            found[:, n] = np.clip((values - low) / (high - low), 0, 1)
        return found if self.several else found[:, 0]


@dataclass(frozen=True)
class AnyOf:
    """Several answers of yes (1) and no (0), a column each: float32, (rows, columns)."""

    columns: tuple[str, ...]
    names: tuple[str, ...] = YES_OR_NO  # no, yes
    kind: ClassVar[str] = SEVERAL

    @property
    def classes(self) -> int:
        return len(self.columns)

    @property
    def meaning(self) -> list[Any]:
        return [self.kind, *self.names]

    def read(self, frame: Frame) -> npt.NDArray[np.float32]:
        return np.stack(
            [_places(frame.column(name), self.names) for name in self.columns], axis=1
        ).astype(np.float32)


Target = OneOf | Numbers | AnyOf


def target_of(
    label: str | Sequence[str],
    *,
    classes: int | Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    label_bounds: Any = None,
) -> Target:
    """What is declared of the label: its classes, its bounds, or, for several columns, nothing.

    >>> target_of("sick", labels=["no", "yes"]).classes
    2
    """
    if classes is not None and not isinstance(classes, str) and isinstance(classes, Sequence):
        classes, labels = None, labels or classes
    names = None if labels is None else read_names(labels)
    columns = (label,) if isinstance(label, str) else tuple(label)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidInput(f"label must name different columns, at least one, got {list(columns)}")
    if label_bounds is not None:
        if names is not None or classes is not None:
            raise InvalidInput(
                "label_bounds are for numbers and classes or labels for classes; declare one of "
                "the two"
            )
        return Numbers(columns, _bounds(label_bounds, columns), not isinstance(label, str))
    if not isinstance(label, str):
        return _any_of(columns, classes, names)
    if classes is None and names is None:
        raise InvalidInput(
            "classes is missing: declare how many classes there are (classes = 3), list the labels "
            '(labels = ["no", "yes"]), or, if the label is a number, give its bounds '
            "(label_bounds = [0, 100]); reading it from private rows would leak"
        )
    count = len(names) if names is not None else 0
    if classes is not None:
        count = whole_number("classes", classes, at_least=2)
    if names is not None and count != len(names):
        raise InvalidInput(
            f"classes is {count}, but labels lists {len(names)}; drop classes, or make them agree"
        )
    return OneOf(label, names, count)


def read_names(labels: Sequence[Any]) -> tuple[str, ...]:
    names = () if isinstance(labels, str) else tuple(str(name).strip() for name in labels)
    if len(set(names)) < max(2, len(names)) or not all(names):
        raise InvalidInput(
            f"labels must be a list of at least two different labels, got {labels!r}"
        )
    return names


def _any_of(columns: tuple[str, ...], classes: Any, names: tuple[str, ...] | None) -> AnyOf:
    if names is not None and len(names) != 2:
        raise InvalidInput(
            f"several label columns are answers of no and yes, so labels lists two words, got "
            f"{', '.join(names)}"
        )
    if classes not in (None, len(columns)):
        raise InvalidInput(
            f"classes is {classes}, but label names {len(columns)} columns; drop classes"
        )
    return AnyOf(columns, YES_OR_NO if names is None else names)


def _bounds(given: Any, columns: tuple[str, ...]) -> tuple[tuple[float, float], ...]:
    if not isinstance(given, Mapping):
        return (read_bounds("label_bounds", given),) * len(columns)
    for name in given:
        choose("label column in label_bounds:", name, columns)
    lacking = next((name for name in columns if name not in given), None)
    if lacking is not None:
        raise InvalidInput(
            f"label column {lacking!r} has no bounds; add them: label_bounds = "
            f"{{{lacking} = [0, 100]}}"
        )
    return tuple(read_bounds(f"label_bounds of {name}", given[name]) for name in columns)


def _places(column: Column, names: Sequence[str]) -> IntArray:
    """The place of each cell in the list of names."""
    place = places_of(names)
    cells = column.text()
    for row, cell in enumerate(cells):
        if cell not in place:
            said = f"{column.name} {cell!r} is" if cell else f"{column.name} is empty, which is"
            raise InvalidInput(
                f"{column.at(row)}: {said} not among the classes {', '.join(names)}; correct the "
                "cell, or declare it in labels"
            )
    return np.array([place[cell] for cell in cells], dtype=np.int64)
