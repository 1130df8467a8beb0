"""Rounds x clients tables in which clients with the same schedule share one column.

Three budget groups among a million clients are three columns and a million small integers.
`Schedules` is what a plan stores, saves and verifies; the wide arrays (rounds, clients) are made on
request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray

TABLES = ("noise_multiplier", "sampling_rate", "clip_norm")
VALUES = ("epsilon", "order")


@dataclass(frozen=True, eq=False)
class Schedules:
    """Distinct schedules, and which of them each client follows. All arrays are read-only."""

    noise_multiplier: FloatArray  # (rounds, schedules)
    sampling_rate: FloatArray  # (rounds, schedules)
    clip_norm: FloatArray  # (rounds, schedules)
    epsilon: FloatArray  # (schedules,) claimed
    # (schedules,) the order at which the claim is reached; 0 where the accountant has none
    order: FloatArray
    of_client: IntArray  # (clients,) index into the above

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = np.int64 if field.name == "of_client" else np.float64
            array = np.asarray(getattr(self, field.name), dtype=kind)
            if array.flags.writeable or array.base is not None:  # somebody could change it
                array = array.copy(order="K")
                array.flags.writeable = False
            object.__setattr__(self, field.name, array)

    @property
    def rounds(self) -> int:
        return int(self.noise_multiplier.shape[0])

    @property
    def count(self) -> int:
        """How many distinct schedules there are."""
        return int(self.noise_multiplier.shape[1])

    @property
    def clients_of(self) -> IntArray:
        """How many clients follow each schedule."""
        return np.bincount(self.of_client, minlength=self.count)

    def wide(self, name: str) -> FloatArray:
        """One table as (rounds, clients), or one value per client."""
        shared: FloatArray = getattr(self, name)
        array = shared[..., self.of_client]
        array.flags.writeable = False
        return array

    def with_wide(self, **changes: Any) -> Schedules:
        """The schedules with some tables replaced by per-client ones; equal columns are shared."""
        return share(**{name: changes.get(name, self.wide(name)) for name in TABLES + VALUES})


def share(**wide: Any) -> Schedules:
    """Store each distinct column once; clients whose columns agree to the last bit share it."""
    columns = {name: np.asarray(array, dtype=np.float64) for name, array in wide.items()}
    stacked = np.concatenate([np.atleast_2d(columns[name]) for name in TABLES + VALUES])
    keys: dict[bytes, int] = {}
    of_client = np.array(
        [keys.setdefault(column.tobytes(), len(keys)) for column in np.ascontiguousarray(stacked.T)]
    )
    first = np.full(len(keys), -1)
    first[of_client[::-1]] = np.arange(of_client.size)[::-1]
    return Schedules(
        of_client=of_client, **{name: array[..., first] for name, array in columns.items()}
    )
