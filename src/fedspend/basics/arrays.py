"""Types of the arrays that modules exchange, pieces of long ones, and a search for equal rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PIECE = 1 << 14  # numbers that stay in the cache through several steps of arithmetic


def pieces(size: int) -> Iterator[slice]:
    """A long array in pieces of at most `PIECE` numbers, in order: for a model, fresh memory for
    every step costs more time than the arithmetic.

    >>> [(piece.start, piece.stop) for piece in pieces(20000)]
    [(0, 16384), (16384, 20000)]
    """
    return (slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE))


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
    """The distinct rows of several columns: where each first appears, and which one each row is.

    >>> first, of_row = distinct_rows(np.array([3, 1, 3]), np.array([0.5, 0.5, 0.5]))
    >>> first.tolist(), of_row.tolist()
    ([1, 0], [1, 0, 1])
    """
    code = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        # numbered from 0 again, so that no product can overflow
        _, code = np.unique(code * values.size + inverse, return_inverse=True)
    _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    return first, of_row
