"""What a client sends back, and what stays with it.

Guarantee: a `Contribution` is a vector that was bounded at the client (and noised there, under
distributed noise) and the numbers in [-1/2, 1/2] that the method requests; nothing else leaves a
client in a real run. `Remarks` are what a client knows about its own contribution: they are not
differentially private, and leave the client in simulations only.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray, IntArray, pieces
from fedspend.basics.tensors import pack, unpack
from fedspend.errors import InvalidInput
from fedspend.noise.grid import FINE_BITS

FORMAT = "fedspend contribution 1"
_ABOUT = {"format", "client", "round", "bit", "run", "metric"}


@dataclass(frozen=True, eq=False)
class Contribution:
    """`vector` is float64; whole numbers if the task has a grid."""

    client: str
    round: int
    vector: FloatArray
    # 1/2 if the update was within the clip, -1/2 if not, 0 if this client has no rows; with its own
    # share of noise, under distributed noise
    bit: float | None = None
    run: str = ""  # id of the run it was made for: its noise protects only one release
    # share of its held-out rows that the round's first model gets right, minus 1/2, likewise
    metric: float | None = None
    whole: bool = False  # it came as whole numbers, so this need not be checked

    def parts(
        self, grid_bits: int | None = None
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """The vector, and everything else as plain JSON values. With `grid_bits`, the vector is
        whole numbers modulo 2^bits, like sums on the grid, which halves its length. (On the fine
        grid of continuous noise it does not.)
        """
        sent: npt.NDArray[Any] = self.vector
        if grid_bits is not None and grid_bits != FINE_BITS:
            sent = _modulo(sent, grid_bits)
        about = {
            "format": FORMAT,
            "client": self.client,
            "round": self.round,
            "bit": self.bit,
            "run": self.run,
            "metric": self.metric,
        }
        return {"vector": sent}, about

    def to_bytes(self, grid_bits: int | None = None) -> bytes:
        return pack(*self.parts(grid_bits))

    @classmethod
    def from_bytes(cls, body: bytes) -> Contribution:
        return cls.from_parts(*unpack(body, "a contribution"))

    @classmethod
    def from_parts(
        cls, arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]
    ) -> Contribution:
        """The inverse of `parts`; refuses anything else, also parts that it does not know."""
        if about.get("format") != FORMAT or set(arrays) != {"vector"}:
            raise InvalidInput(
                "this is not a contribution of this version: its format is "
                f"{about.get('format')!r}, not {FORMAT!r}"
            )
        unknown = sorted({*map(str, about)} - _ABOUT)
        if unknown:
            raise InvalidInput(
                f"a contribution has a part {unknown[0]!r} that this version does not know; use "
                "the same version of fedspend everywhere"
            )
        vector, numbers = arrays["vector"], (about.get("bit"), about.get("metric"))
        if vector.dtype not in (np.float64, np.int32) or vector.ndim != 1:
            raise InvalidInput(
                f"a contribution must be one vector of float64 or int32, got {vector.dtype} of "
                f"shape {vector.shape}; send it again"
            )
        named = isinstance(about.get("client"), str) and isinstance(about.get("run"), str)
        plain = all(
            number is None or (type(number) is float and np.isfinite(number)) for number in numbers
        )
        if not (named and type(about.get("round")) is int and plain):
            raise InvalidInput(
                "a contribution does not name its client, round or run; send it again"
            )
        bit, metric = numbers
        exact, whole = vector.astype(np.float64), vector.dtype == np.int32
        return cls(about["client"], about["round"], exact, bit, about["run"], metric, whole)


def _modulo(whole: FloatArray, bits: int) -> npt.NDArray[np.int32]:
    """Whole numbers modulo 2^bits, centred on zero: their lowest bits, with their sign."""
    found = np.empty(whole.size, dtype=np.int32)
    for piece in pieces(whole.size):
        found[piece] = whole[piece].astype(np.int64)  # keeps the lowest 32
    if bits < 32:
        found <<= 32 - bits
        found >>= 32 - bits
    return found


@dataclass(frozen=True, eq=False)
class Remarks:
    """What only the client itself sees, except in simulations."""

    norm: float  # before clipping; 0 for an update that was not finite
    clipped: bool
    problem: str = ""  # why the contribution counts as zero
    # records that took part in each local step, if that is not planned
    active: IntArray | None = None
    raised: bool = False  # whether it counts as zero because its work raised an error


def worded(error: Exception) -> str:
    """What the work of a client raised, and where, in one line; for its operator only."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    return f"its work raised {said}{place}, so it counts as zero"


@dataclass(frozen=True, eq=False)
class Reply:
    """An engine's result for one client; no remarks if the client is another organisation."""

    contribution: Contribution
    remarks: Remarks | None = None


@dataclass(frozen=True)
class Lost:
    """Takes the place of a reply that will not come or could not be read."""

    client: str
    why: str
