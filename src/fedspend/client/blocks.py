"""Records in blocks of one size, so that nobody's company changes how a record is rounded.

Kernels are chosen by the shape of what they are given, and each rounds in its own way. Parameters
can be such that rounding decides everything (weights of 1e30 that cancel). So a record that is
there, or not, must not change the shape in which the others are computed.

Guarantee: every block has the same number of rows, whatever was drawn: the last one is filled up
with zeros, which count for nothing. The size follows from public numbers only. It is a multiple of
32, or 1: layers such as Sigmoid compute what is left over beyond a multiple of 32 numbers in
another way, and a record's place must not matter either, since it follows from who else was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedspend.basics.arrays import FloatArray
from fedspend.client.bounding import Factors

SMALLEST = 32  # of blocks with more than one record; all others are multiples of it
_FEW = 4  # fewer records than this are computed faster one by one than as 32


def block_size(records: int, most: int) -> int:
    """For about so many `records` a step, a public number: as few blocks as possible, of at most
    `most` records each.

    >>> block_size(288, 1000), block_size(288, 100), block_size(5, 1000), block_size(288, 31)
    (288, 96, 32, 1)
    """
    most -= most % SMALLEST
    if most == 0 or records < _FEW:
        return 1
    blocks = -(-records // most)
    return -(-records // (blocks * SMALLEST)) * SMALLEST


def in_blocks(
    rows: torch.Tensor, labels: torch.Tensor, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Rows and labels of each block, and how many of them count."""
    for start in range(0, len(rows), size):
        some = slice(start, start + size)
        yield _filled(rows[some], size), _filled(labels[some], size), len(rows[some])


def _filled(values: torch.Tensor, size: int) -> torch.Tensor:
    whole = values.new_zeros((size, *values.shape[1:]))
    whole[: len(values)] = values
    return whole


def filled_factors(factors: Factors, norms: FloatArray, count: int) -> FloatArray:
    """What to multiply each row of a block by: zero for those that do not count."""
    scale = np.zeros(len(norms))
    scale[:count] = factors(norms[:count])
    return scale
