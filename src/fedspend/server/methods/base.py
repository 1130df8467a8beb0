"""What a method is: it says on which terms a round runs, and what it learns from a release.

A method sees the plan and earlier releases, never data, so its choices cost no privacy. State is a
small dict of numbers that goes into every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedspend.basics.arrays import Float32Array, FloatArray

if TYPE_CHECKING:
    from fedspend.client.task import RecordTerms

State = dict[str, float]


@dataclass(frozen=True)
class RoundTerms:
    """Everything that decides a round's privacy."""

    sampling_rate: FloatArray  # (clients,)
    clip_norm: FloatArray  # (clients,)
    deviation: float  # of the noise on the sum of updates
    denominator: float  # what the noised sum is divided by: planned, never counted
    # of the noise on the sum of shifted bits, where the method asks for them
    bit_deviation: float | None = None
    # record-level methods: client number -> its own records' terms
    records: Callable[[int], RecordTerms] | None = None


@dataclass(frozen=True)
class Release:
    """What a round publishes."""

    update: Float32Array  # (parameters,) noised mean update
    bit: float | None = None  # noised share of clients within their clip


class Method(Protocol):
    """One way to run rounds."""

    @property
    def name(self) -> str: ...

    def start(self) -> State: ...

    def terms(self, round: int, state: State) -> RoundTerms:
        """Terms of `round`, counted from 0."""
        ...

    def learn(self, state: State, release: Release) -> State: ...
