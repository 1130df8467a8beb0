"""Which rows each of very many clients has, in few bytes a client.

Guarantee: the same rows as one array for each client would say, in the same order; no row is in two
shards. Memory: 16 bytes a client, and 8 a row unless the rows of every client lie together. An id
is looked up in 16 bytes a client, whatever its length; two ids never stand for each other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray


class Shards(Sequence[IntArray]):
    """The rows of each client: a stretch of `order`, or of all rows as they lie."""

    def __init__(self, starts: IntArray, ends: IntArray, order: IntArray | None = None) -> None:
        self._starts, self._ends, self._order = starts, ends, order

    @property
    def end(self) -> int:
        """One more than the highest row."""
        if self._order is not None:
            return int(self._order.max(initial=-1)) + 1
        return int(self._ends.max(initial=0))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> IntArray: ...
    @overload
    def __getitem__(self, place: slice) -> Shards: ...
    def __getitem__(self, place: int | slice) -> IntArray | Shards:
        if isinstance(place, slice):
            return Shards(self._starts[place], self._ends[place], self._order)
        start, end = int(self._starts[place]), int(self._ends[place])
        return np.arange(start, end) if self._order is None else self._order[start:end]

    def __iter__(self) -> Iterator[IntArray]:
        for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            yield np.arange(start, end) if self._order is None else self._order[start:end]


def by_owner(owner: IntArray, clients: int) -> Shards:
    """Each client's rows in ascending order; `owner` is the number of each row's client."""
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return Shards(np.append(0, ends[:-1]), ends, np.argsort(owner, kind="stable"))


def by_id(client_of: npt.NDArray[Any], clients: Sequence[str]) -> Shards:
    """Which rows each of these clients has; none, if nobody's rows are here."""
    if not client_of.size:
        none = np.zeros(len(clients), dtype=np.int64)
        return Shards(none, none)
    starts = np.append(0, np.flatnonzero(client_of[1:] != client_of[:-1]) + 1)
    names = client_of[starts]
    if len(np.unique(names)) == len(names):  # the rows of every client lie together
        ends, order = np.append(starts[1:], client_of.size), None
    else:
        names, owner = np.unique(client_of, return_inverse=True)
        all_of_them = by_owner(owner.astype(np.int64), len(names))
        starts, ends, order = all_of_them._starts, all_of_them._ends, all_of_them._order
    known = Places(clients)
    first, last = np.zeros((2, len(clients)), dtype=np.int64)
    for n in range(len(names)):  # one name at a time: a list of all would be as large as the roster
        place = known.get(str(names[n]))
        if place >= 0:
            first[place], last[place] = starts[n], ends[n]
    return Shards(first, last, order)


class Places:
    """The place of each name in a list, found by its hash and then compared."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._places = array("q", hashes[order].tobytes()), order

    def get(self, name: str) -> int:
        """The place, or -1."""
        wanted = hash(name)
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            place = int(self._places[at])
            if self._names[place] == name:
                return place
            at += 1
        return -1


class ById(Mapping[str, IntArray]):
    """The rows of each client by its id."""

    def __init__(self, clients: Sequence[str], shards: Sequence[IntArray]) -> None:
        assert len(clients) == len(shards)
        self._clients, self._shards, self._places = clients, shards, Places(clients)

    def __getitem__(self, client: str) -> IntArray:
        place = self._places.get(client)
        if place < 0:
            raise KeyError(client)
        return self._shards[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
