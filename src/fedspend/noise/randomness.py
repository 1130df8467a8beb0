"""Where random numbers come from: a seed in simulations, the operating system in real runs.

Guarantee: with source `os`, noise and cohorts are drawn from the operating system's cryptographic
generator; nothing can be replayed, and no key is ever stored or logged. With source `seeded`, every
draw is a pure function of (seed, role, round, client), so every engine sees the same numbers in any
order; such a run protects nobody and is marked as a simulation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput
from fedspend.noise.discrete_gaussian import Words
from fedspend.noise.seeding import philox_keys

Source = Literal["seeded", "os"]
Role = Literal[
    "data",
    "model",
    "cohort",
    "batches",
    "noise",
    "client-noise",
    "bit-noise",
    "groups",
    "rounding",
    "budgets",
    "record-sample",
    "record-noise",
    "student",
    "client-bit-noise",
    "metric-noise",
    "client-metric-noise",
    "metric-rounding",
    "record-layers",
]

# Part of every key, so that no two uses ever share a stream. Never renumber.
_ROLES: dict[Role, int] = {
    "data": 0,
    "model": 1,
    "cohort": 2,
    "batches": 3,
    "noise": 4,
    "client-noise": 5,
    "bit-noise": 6,
    "groups": 7,
    "rounding": 8,
    "budgets": 9,
    "record-sample": 10,
    "record-noise": 11,
    "student": 12,
    "client-bit-noise": 13,
    "metric-noise": 14,
    "client-metric-noise": 15,
    "metric-rounding": 16,
    "record-layers": 17,
}


@dataclass(frozen=True)
class Randomness:
    """Random numbers for one run.

    `seed` is for draws that protect nobody (data split, initial model, batch order); `source`
    decides where all others come from.
    """

    seed: int
    source: Source = "seeded"

    def __post_init__(self) -> None:
        if self.source not in ("seeded", "os"):
            raise InvalidInput(f"randomness must be 'seeded' or 'os', got {self.source!r}")

    @property
    def simulation(self) -> bool:
        return self.source == "seeded"

    def generator(self, role: Role, round: int = 0, client: int = 0) -> np.random.Generator:
        """A reproducible generator, for draws that protect nobody and for simulations."""
        return np.random.Generator(np.random.Philox(self._key(role, round, client)))

    def coins(self, round: int, client: int) -> np.random.Generator:
        """A reproducible generator for the rounding of updates, which needs no secrecy and one
        number for each parameter: made for speed, three times as fast as the others.
        """
        return np.random.Generator(np.random.SFC64(self._key("rounding", round, client)))

    def _key(self, role: Role, round: int, client: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(_words(self.seed, _ROLES[role], round, client))

    def generators(
        self, role: Role, round: int, clients: Sequence[int]
    ) -> Iterator[np.random.Generator]:
        """The same for many clients, one after the other and faster: each is valid until the next
        one is asked for.
        """
        first = [self.seed, _ROLES[role], round]
        if min(*first, *clients) < 0 or max(*first, *clients) >= 2**32:
            yield from (self.generator(role, round, client) for client in clients)
            return
        philox = np.random.Philox(0)
        generator, fresh = np.random.Generator(philox), np.random.Philox(0).state
        for key in philox_keys(first, clients):
            fresh["state"]["key"] = key
            philox.state = fresh
            yield generator

    def uniform(self, size: int, role: Role, round: int, client: int = 0) -> FloatArray:
        """Uniform numbers in (0, 1), for draws that protect someone."""
        if self.simulation:
            return self.generator(role, round, client).random(size)
        return _system_uniform(size)

    def words(self, role: Role, round: int, client: int = 0) -> Words:
        """A source of uniform 64-bit words, for draws that protect someone."""
        if self.simulation:
            generator = self.generator(role, round, client)
            return lambda size: generator.integers(0, 2**64, size, dtype=np.uint64)
        return lambda size: np.frombuffer(os.urandom(8 * size), dtype=np.uint64)

    def normal(self, size: int, role: Role, round: int, client: int = 0) -> FloatArray:
        """Standard normal numbers, for draws that protect someone."""
        if self.simulation:
            return self.generator(role, round, client).standard_normal(size)
        from scipy.special import ndtri  # slow to import, and a node of Flower's may do without

        values: FloatArray = ndtri(_system_uniform(size))
        return values


def _words(*numbers: int) -> Any:
    """What numpy makes of these numbers as a seed, made faster: small ones are one word each."""
    if min(numbers) >= 0 and max(numbers) < 2**32:
        return np.array(numbers, dtype=np.uint32)
    return numbers


def _system_uniform(size: int) -> FloatArray:
    """Uniform in the open interval (0, 1), 52 bits each, from the operating system. With one bit
    more, the half would round the largest up to 1.
    """
    words = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
