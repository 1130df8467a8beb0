"""What travels back from a client, and what stays with it.

Guarantee: a `Contribution` is a vector that was bounded at the client (and noised there, under
distributed noise) and the numbers in [-1/2, 1/2] that the method asked for; nothing else leaves a
client in a real run. `Remarks` are what a client knows about its own contribution: they are not
private, and cross the boundary in simulations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.tensors import pack, unpack
from fedspend.errors import InvalidInput

FORMAT = "fedspend contribution 1"


@dataclass(frozen=True, eq=False)
class Contribution:
    """`vector` is float64; whole numbers if the task has a grid."""

    client: str
    round: int
    vector: FloatArray
    # 1/2: the update was within the clip; -1/2: it was not; 0: this client has no rows
    bit: float | None = None
    run: str = ""  # id of the run that it was made for: its noise protects it once

    def to_bytes(self, grid_bits: int | None = None) -> bytes:
        """With `grid_bits`, whole numbers modulo 2^bits, as sums on the grid are taken: half the
        length.
        """
        sent: npt.NDArray[Any] = self.vector
        if grid_bits is not None:
            half = 2 ** (grid_bits - 1)
            sent = ((sent.astype(np.int64) + half) % (2 * half) - half).astype(np.int32)
        about = {
            "format": FORMAT,
            "client": self.client,
            "round": self.round,
            "bit": self.bit,
            "run": self.run,
        }
        return pack({"vector": sent}, about)

    @classmethod
    def from_bytes(cls, body: bytes) -> Contribution:
        arrays, about = unpack(body, "a contribution")
        if about.get("format") != FORMAT or set(arrays) != {"vector"}:
            raise InvalidInput(
                f"this is no contribution of this version: its format is {about.get('format')!r}, "
                f"not {FORMAT!r}"
            )
        vector, bit = arrays["vector"], about.get("bit")
        if vector.dtype not in (np.float64, np.int32) or vector.ndim != 1:
            raise InvalidInput(
                f"a contribution holds {vector.dtype} of shape {vector.shape}; it must be one "
                "vector; send it again"
            )
        named = isinstance(about.get("client"), str) and isinstance(about.get("run"), str)
        if not (named and type(about.get("round")) is int and (bit is None or type(bit) is float)):
            raise InvalidInput(
                "a contribution does not say whose it is, or for which round of which run; send it "
                "again"
            )
        return cls(about["client"], about["round"], vector.astype(np.float64), bit, about["run"])


@dataclass(frozen=True, eq=False)
class Remarks:
    """For the client's own eyes, and for simulations."""

    norm: float  # before clipping; 0 for an update that was not finite
    clipped: bool
    problem: str = ""  # why the contribution counts as zero
    # records that took part in each local step, where that is not planned
    active: IntArray | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """What an engine hands over for one client; without remarks where the client is another
    organisation.
    """

    contribution: Contribution
    remarks: Remarks | None = None


@dataclass(frozen=True)
class Lost:
    """In place of a reply: this client's answer will not come, or could not be read."""

    client: str
    why: str
