"""Records in blocks of one size, so that nobody's company changes how a record is rounded.

Kernels are chosen by the shape of what they are given, and each rounds in its own way. Parameters
can be such that rounding decides everything (weights of 1e30 that cancel). So a record that is
there, or not, must not change the shape in which the others are computed.

Guarantee: every block has the same number of rows, whatever was drawn: the last one is filled up
with zeros, which count for nothing. The size follows from public numbers only. It is a multiple of
32, or 1: layers such as Sigmoid compute what is left over beyond a multiple of 32 numbers in
another way, and a record's place must not matter either, since it follows from who else was drawn.
Some processors have products that round by place in such a block; there, which made-up rows tell,
it is a multiple of 96, and records are computed one by one if that does not help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator

import numpy as np
import torch

from fedspend.basics.arrays import FloatArray
from fedspend.client.bounding import Factors

Blocks = Iterator[tuple[torch.Tensor, torch.Tensor, int]]  # rows, labels, how many count

_TRIED_ROWS = 16  # two kernels round many numbers alike
_found: dict[Hashable, int] = {}  # sizes of blocks on this machine
SMALLEST = 32  # of blocks with more than one record; all others are multiples of it
_TILED = 96  # some products take 12 rows at a time, and round what is left over in another way
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


def in_blocks(rows: torch.Tensor, labels: torch.Tensor, size: int) -> Blocks:
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


class InBlocks(ABC):
    """A sum over records, computed in blocks in which no place differs from another."""

    _factors: Factors
    _size: int  # parameters

    @abstractmethod
    def _planned(self, row: torch.Tensor) -> int:
        """How many records to compute at once, if they have the shape of `row`."""

    @abstractmethod
    def _structure(self) -> Hashable:
        """What kernels are chosen by, beside the shape of the rows."""

    @abstractmethod
    def _total(self, parameters: torch.Tensor, blocks: Blocks, factors: Factors) -> FloatArray:
        """The sum over the rows that count, each gradient times its factor."""

    def __call__(
        self, parameters: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor
    ) -> FloatArray:
        if not len(rows):
            return np.zeros(self._size)
        blocks = in_blocks(rows, labels, self.block(rows[0], labels[0]))
        return self._total(parameters, blocks, self._factors)

    def block(self, row: torch.Tensor, label: torch.Tensor | None = None) -> int:
        """How many records are computed at once. Only the shapes of row and label matter."""
        planned = self._planned(row)
        if planned == 1:
            return 1
        label = torch.zeros((), dtype=torch.int64) if label is None else torch.zeros_like(label)
        key = (
            *(type(self), self._structure(), planned, tuple(row.shape), row.dtype),
            *(tuple(label.shape), label.dtype, torch.get_num_threads()),
        )
        if key not in _found:
            tiled = -(-planned // _TILED) * _TILED
            sizes = (size for size in (planned, tiled) if not self._by_place(row, label, size))
            _found[key] = next(sizes, 1)
        return _found[key]

    def _by_place(self, row: torch.Tensor, label: torch.Tensor, size: int) -> bool:
        """Whether a row is rounded in another way at another place of such a block."""
        draw = torch.Generator().manual_seed(0)
        parameters = torch.randn(self._size, generator=draw) / 8
        shape = (_TRIED_ROWS, *row.shape)
        made_up = (
            torch.rand(shape, generator=draw).to(row.dtype)
            if row.is_floating_point()
            else torch.randint(0, 2, shape, generator=draw).to(row.dtype)
        )
        return any(
            len(self.norms_by_place(parameters, one, label, size, size)) > 1 for one in made_up
        )

    def norms_by_place(
        self,
        parameters: torch.Tensor,
        row: torch.Tensor,
        label: torch.Tensor,
        count: int,
        size: int,
    ) -> set[bytes]:
        """Of the gradient of a row that is there `count` times, in blocks of `size`: its norms to
        the last bit. They are doubles, and other gradients have others.
        """
        found: set[bytes] = set()

        def noted(norms: FloatArray) -> FloatArray:
            found.update(norm.tobytes() for norm in norms)
            return np.zeros(len(norms))

        rows, labels = row.expand(count, *row.shape), label.expand(count, *label.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same dropout every time
            self._total(parameters, in_blocks(rows, labels, size), noted)
        return found
