"""Records in blocks of one size, so that nobody's company changes how a record is rounded.

Kernels are chosen by the shape of what they are given, and each rounds in its own way. Parameters
can be such that rounding decides everything (weights of 1e30 that cancel). So a record that is
there, or not, must not change the shape in which the others are computed.

Guarantee: every block has the same number of rows, whatever was drawn: the last one is filled up
with zeros, which count for nothing. The size follows from public numbers only. It is a multiple of
32, or 1: layers such as Sigmoid compute what is left over beyond a multiple of 32 numbers in
another way, and a record's place must not matter either, since it follows from who else was drawn.
Some processors have products that round by place in such a block; there, which made-up rows tell,
it is a multiple of 96, and records are computed one by one if that does not help. What is compared
is every number that a gradient is made of, not its norm: a last bit rarely reaches that.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.client.bounding import Factors
from fedspend.client.contribution import worded

Blocks = Iterator[tuple[torch.Tensor, torch.Tensor, int]]  # rows, labels, how many count

# Two kernels round many numbers alike, and where there are few numbers a trial shows little: so
# many trials at least and at most, and as many as it takes to see so many parameters.
_FEWEST_TRIALS, _MOST_TRIALS, _SEEN = 16, 64, 2**17
_SCALES = (1 / 8, 1 / 32)  # of made-up parameters: scores far apart, and close together
_LEAST_NORM = 1e-30  # of a gradient in which there is something to round
_STRANGERS = (0.0, float("nan"), 1e30, 1e-40)  # what others may hold, in the first trials
BY_PLACE, NOTHING = b"by place", b"nothing"  # no digests: too short
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


class Gradients(ABC):
    """Those of the records of a block, one for each, before they are summed."""

    norms: FloatArray

    @abstractmethod
    def numbers(self) -> list[npt.NDArray[Any]]:
        """All that they are made of, (records, ...) each."""

    @abstractmethod
    def add(self, total: FloatArray, scale: FloatArray) -> None:
        """Adds each gradient times its scale; those with scale zero count for nothing, whatever
        they hold.
        """


class InBlocks(ABC):
    """A sum over records, computed in blocks in which no place differs from another.

    What layers (dropout) or an own loss draw is the same for all rows of a call: a row's gradient
    must not depend on its place among the others, or on how many there are. Torch's generator
    decides it.
    """

    _factors: Factors
    _size: int  # parameters
    raised = ""  # what a record raised, if one did

    @abstractmethod
    def _planned(self, row: torch.Tensor) -> int:
        """How many records to compute at once, if they have the shape of `row`."""

    @abstractmethod
    def _structure(self) -> Hashable:
        """What kernels are chosen by, beside the shape of the rows."""

    @abstractmethod
    def _at(self, parameters: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], Gradients]:
        """A function of the rows and labels of one block."""

    def __call__(
        self, parameters: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor
    ) -> FloatArray:
        total = np.zeros(self._size)
        if not len(rows):
            return total
        size, gradients = self.block(rows[0], labels[0]), self._at(parameters)
        drawn = torch.get_rng_state()
        for some, wanted, count in in_blocks(rows, labels, size):
            torch.set_rng_state(drawn)
            try:
                found, counting = gradients(some, wanted), None
            except Exception as error:
                self.raised = worded(error)
                counting = self._sound(gradients, some, wanted, count, drawn)
                if not counting.any():
                    self._factors(np.full(count, np.nan))  # whoever pays by norms pays for these
                    continue
                torch.set_rng_state(drawn)
                found = gradients(*_emptied(some, wanted, counting))
            norms = found.norms
            if counting is not None:
                norms = np.where(counting, norms, np.nan)  # as one that is not finite
            scale = filled_factors(self._factors, norms, count)
            found.add(total, scale)
        return total

    @staticmethod
    def _sound(
        gradients: Callable[[torch.Tensor, torch.Tensor], Gradients],
        rows: torch.Tensor,
        labels: torch.Tensor,
        count: int,
        drawn: torch.Tensor,
    ) -> BoolArray:
        """Which rows of a block raise no error, each tried in a block without the others: what one
        raises must not change what another gives.
        """
        sound = np.zeros(len(rows), dtype=bool)
        for place in range(count):
            only = np.arange(len(rows)) == place
            torch.set_rng_state(drawn)
            with contextlib.suppress(Exception):
                gradients(*_emptied(rows, labels, only))
                sound[place] = True
        return sound

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
        """Whether a row is rounded in another way at another place of such a block, or beside
        strangers. So it is if no trial gives a gradient at all.
        """
        draw, told = torch.Generator().manual_seed(0), False
        labels = label.expand(size, *label.shape)
        trials = min(max(_SEEN // self._size, _FEWEST_TRIALS), _MOST_TRIALS)
        for trial in range(trials):
            parameters = torch.randn(self._size, generator=draw) * _SCALES[trial % len(_SCALES)]
            made_up = _made_up(row, draw)
            alike = made_up.expand(size, *row.shape)
            bits = {self.bits(parameters, alike, labels, size)}
            if trial < len(_STRANGERS):
                first = trial % 2
                beside = _beside(alike, _STRANGERS[trial], first)
                try:
                    bits.add(self.bits(parameters, beside, labels, size, slice(first, None, 2)))
                except Exception:  # a model that raises on such strangers is not tried with them
                    return True
            if bits != {NOTHING}:
                told = True
                if BY_PLACE in bits or len(bits) > 1:
                    return True
        return not told

    def bits(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        labels: torch.Tensor,
        size: int,
        places: slice = slice(None),
    ) -> bytes:
        """Of the gradients of a block, filled up to `size`: a digest of all that one is made of, to
        the last bit, if the rows at these `places`, which are equal, have it in common. Else
        `BY_PLACE`; and `NOTHING` if it is next to zero or not finite.
        """
        ((some, wanted, count),) = in_blocks(rows, labels, size)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # the same dropout every time
            found = self._at(parameters)(some, wanted)
        norms = found.norms[:count][places]
        digest = hashlib.sha256()
        for numbers in (norms, *(numbers[:count][places] for numbers in found.numbers())):
            whole = np.ascontiguousarray(numbers)
            bits = whole.view(f"u{whole.itemsize}")  # NaN is not equal to itself
            if (bits != bits[:1]).any():
                return BY_PLACE
            digest.update(bits[:1].tobytes())
        return digest.digest() if _LEAST_NORM < norms[0] < np.inf else NOTHING


def _emptied(
    rows: torch.Tensor, labels: torch.Tensor, kept: BoolArray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A block with zeros in place of all rows but those that are kept."""
    rows, labels, gone = rows.clone(), labels.clone(), torch.from_numpy(~kept)
    rows[gone], labels[gone] = 0, 0
    return rows, labels


def _made_up(row: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if row.is_floating_point():
        return torch.rand(row.shape, generator=draw).to(row.dtype)
    return torch.randint(0, 2, row.shape, generator=draw).to(row.dtype)


def _beside(rows: torch.Tensor, value: float, first: int) -> torch.Tensor:
    """The rows with others at every second place, so that `first` and every second after it stay.

    Whole numbers are 0 and 1 here, and the others have them the other way round.
    """
    rows = rows.clone()
    rows[1 - first :: 2] = value if rows.is_floating_point() else 1 - rows[1 - first :: 2]
    return rows
