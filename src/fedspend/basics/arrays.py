"""Types of the arrays that modules exchange, and a search for equal rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


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
