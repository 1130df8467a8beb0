"""Which rows are held out or sampled where clients are real: decided for every row by itself.

Guarantee: whether a row is chosen depends only on its client's id, its own features and label, and
a public key; never on the labels or number of other rows, nor on their order. So no row affects the
choice of another, and no client that of another. Identical rows of one client are chosen together,
which is what a hold-out needs. How many rows are chosen is random, about `share` of them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, IntArray
from fedspend.errors import InvalidInput

_ROWS_AT_A_TIME = 4096


def chosen_rows(
    client_of: npt.NDArray[Any] | None,
    features: npt.NDArray[np.float32],
    labels: IntArray,
    share: float,
    purpose: str,
    seed: int,
) -> BoolArray:
    """Marks about `share` of the rows, independently for each purpose and seed."""
    key = hashlib.blake2b(f"fedspend {purpose} {seed}".encode(), digest_size=32).digest()
    begun: dict[Any, Any] = {}

    def beginning(client: Any) -> Any:
        if client not in begun:
            name = str(client).encode("utf-8", "surrogatepass")
            begun[client] = hashlib.blake2b(
                len(name).to_bytes(8, "little") + name, digest_size=8, key=key
            )
        return begun[client]

    owners = [""] * len(labels) if client_of is None else client_of.tolist()
    digests = []
    for start in range(0, len(labels), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        rows = np.ascontiguousarray(features[part], dtype="<f4").reshape(len(labels[part]), -1)
        names = labels[part].astype("<i8")
        for n, owner in enumerate(owners[part]):
            digest = beginning(owner).copy()
            digest.update(rows[n].data)
            digest.update(names[n].tobytes())
            digests.append(digest.digest())
    drawn = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.float64) * 2.0**-64
    chosen: BoolArray = drawn < share
    if not (chosen.any() and not chosen.all()):
        raise InvalidInput(
            f"a share of {share:g} takes {int(chosen.sum())} of {len(labels)} rows; at least one "
            "must be taken and one left: choose another share or seed"
        )
    return chosen
