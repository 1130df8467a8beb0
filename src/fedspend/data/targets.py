"""What is to be predicted, as arrays: classes, numbers, several labels, or tokens of a sequence.

Guarantee: targets keep their kind: numbers are float32, classes and tokens int64. Nothing is
learned from them: how many classes there are is stated. An error names the row and the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray
from fedspend.errors import InvalidInput, whole_number
from fedspend.tasks.kinds import (
    BINARY,
    BY_CLASS,
    IGNORED,
    IN_WORDS,
    KEPT,
    NUMBERS,
    SEVERAL,
    TOKENS,
    WHOLE,
)

Targets = npt.NDArray[Any]  # int64 or float32, one row each


def as_labels(what: str, values: npt.ArrayLike) -> IntArray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{what} must be whole numbers, got {array.dtype}; number the classes from 0"
        )
    whole = (
        array.astype(np.int64) if array.dtype.kind != "f" else np.nan_to_num(array).astype(np.int64)
    )
    if not (whole == array).all():
        row = int(np.flatnonzero(whole.ravel() != array.ravel())[0])
        raise InvalidInput(f"{what}[{row}] must be a whole number, got {array.ravel()[row]!s}")
    return whole


def as_targets(what: str, values: npt.ArrayLike, kind: str) -> Targets:
    """The targets as an array of their kind.

    >>> as_targets("y", [1, 2], NUMBERS).dtype, as_targets("y", [1.0, 2.0], "classes").dtype
    (dtype('float32'), dtype('int64'))
    """
    array = np.asarray(values)
    if kind in WHOLE or (kind == KEPT and array.dtype.kind in "biu"):
        return as_labels(what, values)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{what} must be numbers, got {array.dtype}; turn text into numbers")
    with np.errstate(over="ignore"):  # what becomes infinite is refused later
        return np.ascontiguousarray(array, dtype=np.float32)


def read_classes(classes: object, kind: str) -> int:
    """How many classes are stated; of numbers and labels, how many a row has."""
    return whole_number("classes", classes, at_least=2 if kind in WHOLE else 1)


def check_targets(name: str, targets: Targets, classes: int, kind: str) -> None:
    """Refuses targets that are not of their kind."""
    wanted = np.int64 if kind in WHOLE else np.float32
    if kind != KEPT and targets.dtype != wanted:
        raise InvalidInput(
            f"{name} must be {np.dtype(wanted)}, {IN_WORDS[kind]}, got {targets.dtype}; use "
            "from_arrays to convert"
        )
    dimensions = {NUMBERS: (1, 2), SEVERAL: (2,), TOKENS: (2,)}.get(kind, (1,))
    if kind != KEPT and targets.ndim not in dimensions:
        raise InvalidInput(f"{name} needs {IN_WORDS[kind]}, got shape {targets.shape}")
    if kind in (NUMBERS, SEVERAL) and targets.ndim == 2 and targets.shape[1] != classes:
        raise InvalidInput(
            f"{name} has {targets.shape[1]} numbers a row, and {classes} are stated; make them "
            "the same"
        )
    if kind in BY_CLASS or kind == TOKENS:
        _check_classes(name, targets, classes, kind)
    else:
        _refuse(name, targets, ~np.isfinite(targets), "must be a finite number")
        if kind == SEVERAL:
            _refuse(name, targets, (targets != 0) & (targets != 1), "must be 0 or 1")


def _check_classes(name: str, targets: Targets, classes: int, kind: str) -> None:
    bad = (targets < 0) | (targets >= classes)
    if kind == TOKENS:
        bad &= targets != IGNORED
    also = f", or {IGNORED} for a place without a target" if kind == TOKENS else ""
    said = "with one logit" if kind == BINARY else f"with {classes} classes"
    _refuse(name, targets, bad, f"{said} it must be between 0 and {classes - 1}{also}", "; ")


def _refuse(name: str, targets: Targets, bad: npt.NDArray[Any], why: str, also: str = "") -> None:
    if bad.any():
        at = np.argwhere(bad)[0]
        place = ", ".join(map(str, at))
        value = targets[tuple(at)]
        said = f"is {value}; {why}" if also else f"{why}, got {value}"
        raise InvalidInput(f"{name}[{place}] {said}")
