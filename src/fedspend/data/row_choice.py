"""Which rows are held out or sampled where clients are real: decided for every row by itself.

Guarantee: whether a row is chosen is a function of its client's id, its own features and label, and
a key: a secret of the run for the hold-out of real clients, otherwise the seed; never of labels or
numbers of other rows, nor of the order they stand in. So one row never moves another, and one
client never another. Rows that are the same at one client share their fate, which is what a
hold-out needs. How many rows are chosen is chance, about `share`.

Records with ids are chosen by id alone, because a plan of records lists who is in it: if what a
record holds decided that, then everybody's rates and noise would tell it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray
from fedspend.errors import InvalidInput

_ROWS_AT_A_TIME = 4096


def chosen_rows(
    client_of: npt.NDArray[Any] | None,
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    share: float,
    purpose: str,
    seed: int,
    record_of: npt.NDArray[Any] | None = None,
    secret: bytes | None = None,
) -> BoolArray:
    """Marks about `share` of the rows. Another purpose, another seed or another secret is an
    independent choice.
    """
    owners = [""] * len(labels) if client_of is None else client_of.tolist()
    if record_of is None:
        beginning = _Beginnings(f"fedspend {purpose} {seed}", secret)
        chosen = _by_content(owners, features, labels, share, beginning)
    else:
        chosen = chosen_ids(owners, record_of.tolist(), share, purpose, seed, secret)
    if not (chosen.any() and not chosen.all()):
        # under the secret key of a real run, the seed chooses nothing
        remedy = "another share or seed" if secret is None else "another share, or have more rows"
        raise InvalidInput(
            f"a share of {share:g} takes {int(chosen.sum())} of {len(labels)} rows; at least one "
            f"must be taken and one left: choose {remedy}"
        )
    return chosen


def chosen_ids(
    owners: Iterable[Any],
    records: Iterable[Any],
    share: float,
    purpose: str,
    seed: int,
    secret: bytes | None = None,
) -> BoolArray:
    """The same for records by their ids: whether or not they have rows."""
    beginning = _Beginnings(f"fedspend {purpose} {seed} by id", secret)
    digests = []
    for owner, record in zip(owners, records, strict=True):
        digest = beginning(owner)
        digest.update(str(record).encode("utf-8", "surrogatepass"))
        digests.append(digest.digest())
    return _below(share, digests)


def _by_content(
    owners: Sequence[Any],
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    share: float,
    beginning: _Beginnings,
) -> BoolArray:
    digests = []
    for start in range(0, len(labels), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        rows = np.ascontiguousarray(features[part], dtype="<f4").reshape(len(labels[part]), -1)
        names = _little_endian(labels[part])
        for n, owner in enumerate(owners[part]):
            digest = beginning(owner)
            digest.update(rows[n].data)
            digest.update(names[n].tobytes())
            digests.append(digest.digest())
    return _below(share, digests)


def _little_endian(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same bytes on every machine: whole numbers as int64, others as float32."""
    return np.ascontiguousarray(labels, dtype="<i8" if labels.dtype.kind in "iu" else "<f4")


class _Beginnings:
    """The keyed hash of a client's id, for what is the client's to be added to: made once for each
    client. The key is public, or made with a secret.
    """

    def __init__(self, key: str, secret: bytes | None) -> None:
        self._key = hashlib.blake2b(key.encode(), digest_size=32, key=secret or b"").digest()
        self._begun: dict[Any, Any] = {}

    def __call__(self, client: Any) -> Any:
        if client not in self._begun:
            name = str(client).encode("utf-8", "surrogatepass")
            self._begun[client] = hashlib.blake2b(
                len(name).to_bytes(8, "little") + name, digest_size=8, key=self._key
            )
        return self._begun[client].copy()


def _below(share: float, digests: list[bytes]) -> BoolArray:
    drawn = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.float64) * 2.0**-64
    below: BoolArray = drawn < share
    return below
