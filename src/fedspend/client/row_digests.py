"""Digests of the rows behind an id, to notice that they are no longer the same.

Guarantee: equal rows give equal digests in any order; another value or label, or one row more or
less, gives another digest. An id without rows has no digest: nobody is behind it now. These digests
are not keyed: anyone could try rows against them, so they stay in memory and are never written or
sent. `ledger.row_seals` keys them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.data.dataset import Features
from fedspend.data.targets import Targets

ABSENT = -1  # a record that is listed and has no row


def digests(
    features: Features, labels: Targets, rows: Sequence[IntArray], names: Iterable[str]
) -> dict[str, bytes]:
    """The digest of the rows of each name that has any; `rows` are row numbers, one array each."""
    held = {name: mine[mine != ABSENT] for name, mine in zip(names, rows, strict=True)}
    return {name: digest(features, labels, mine) for name, mine in held.items() if mine.size}


def digest(features: Features, labels: Targets, rows: IntArray) -> bytes:
    """The digest of some rows, as a set in which a row may be more than once.

    >>> x, y = np.array([[1.0], [2.0]], np.float32), np.array([0, 1])
    >>> one, other = (digest(x, y, np.array(order)) for order in ([0, 1], [1, 0]))
    >>> one == other, one == digest(x, y, np.array([0])), one == digest(x, 1 - y, np.array([0, 1]))
    (True, False, False)
    """
    shape = repr(features.shape[1:]).encode()
    if labels.ndim > 1 or labels.dtype.kind == "f":  # classes are as they always were
        shape += f" {labels.dtype.kind}{labels.shape[1:]!r}".encode()
    each = sorted(
        hashlib.sha256(_target(labels[row]) + _bytes(features[row])).digest()
        for row in rows.tolist()
    )
    return hashlib.sha256(b"\n".join([shape, len(each).to_bytes(8, "big"), *each])).digest()


def _target(label: Any) -> bytes:
    """A class as a whole number; numbers and sequences by their own bytes."""
    if np.ndim(label) == 0 and np.asarray(label).dtype.kind in "iu":
        return int(label).to_bytes(8, "big", signed=True)
    if np.asarray(label).dtype.kind in "iu":
        return np.ascontiguousarray(label, dtype="<i8").tobytes()
    return _bytes(np.asarray(label))


def _bytes(row: Features) -> bytes:
    # adding 0 makes -0.0 the 0.0 that it equals
    return (np.ascontiguousarray(row, dtype="<f4") + np.float32(0)).tobytes()
