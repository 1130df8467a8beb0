"""Data frames: the same declarations and the same refusals as for a table in a file.

Guarantee: nothing is learned from rows (`declared`), and rows keep their index: an error names a
row by it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.data.columns import TypedFrame
from fedspend.errors import InvalidInput


def is_frame(value: Any) -> bool:
    """Whether this is a data frame of pandas, or something that behaves like one."""
    return all(hasattr(value, name) for name in ("columns", "index", "to_numpy", "iloc"))


def frame_of(value: Any, name: str) -> TypedFrame:
    """The columns of a data frame; `name` is what it is called in errors."""
    header = [str(column) for column in value.columns]
    twice = next((one for n, one in enumerate(header) if one in header[:n]), None)
    if twice is not None:
        raise InvalidInput(f"{name}: column {twice!r} is listed twice; remove one")
    if not len(value):
        raise InvalidInput(f"{name}: there are columns but no row; add at least one")
    makers = {one: partial(as_array, value.iloc[:, n]) for n, one in enumerate(header)}
    return TypedFrame(name, makers, len(value), value.index.tolist())


def as_array(series: Any) -> npt.NDArray[Any]:
    """A column as numbers, or as objects, in which None is no value."""
    values = series.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    found = np.empty(len(values), dtype=object)
    found[:] = [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]
    return found
