"""Sequences of different length, such as texts, as arrays of one length.

Guarantee: the length is stated, and a sequence is padded or cut by it alone: what one sequence
becomes depends on no other, of its own client or of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.errors import InvalidInput, whole_number
from fedspend.tasks.kinds import IGNORED

PADDING = 0  # the token that means "nothing here"


def padded(what: str, sequences: Sequence[Any], length: int, filler: int = PADDING) -> IntArray:
    """The sequences, one a row: longer ones are cut at the end, shorter ones filled up.

    >>> padded("texts", [[5, 6, 7], [8]], 2).tolist()
    [[5, 6], [8, 0]]
    """
    width = whole_number("max_length", length, at_least=1)
    table = np.full((len(sequences), width), filler, dtype=np.int64)
    for n, sequence in enumerate(sequences):
        tokens = np.asarray(sequence)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise InvalidInput(
                f"{what}[{n}] must be a list of whole numbers, got {tokens.dtype} of shape "
                f"{tokens.shape}; number the tokens first"
            )
        kept = tokens[:width]
        table[n, : len(kept)] = kept
    return table


def next_tokens(sequences: Sequence[Any], length: int) -> tuple[IntArray, IntArray]:
    """Rows and targets for the loss "next-token": at every place of a sequence, the token that
    comes next; places after the last do not count.

    >>> [part.tolist() for part in next_tokens([[5, 6, 7], [8]], 3)]
    [[[5, 6, 0], [0, 0, 0]], [[6, 7, -100], [-100, -100, -100]]]
    """
    cut = [np.asarray(sequence)[: length + 1] for sequence in sequences]
    rows = padded("sequences", [one[:-1] for one in cut], length)
    return rows, padded("sequences", [one[1:] for one in cut], length, IGNORED)
