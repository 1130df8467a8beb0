"""What a method is: it says on which terms a round runs, and what it learns from a release.

A method sees the plan and earlier releases, never data, so its choices cost no privacy. State is a
small dict of numbers that goes into every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedspend.basics.arrays import Float32Array, FloatArray
from fedspend.basics.registry import Entry

if TYPE_CHECKING:
    from fedspend.client.task import RecordTerms
    from fedspend.planning.protocol import AnyPlan

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


@dataclass(frozen=True, eq=False)
class Given:
    """What a method is made from: the plan (None where nothing is private), how many clients there
    are, and the rate that the config has for them.
    """

    plan: AnyPlan | None
    clients: int
    rate: float


@dataclass(frozen=True)
class MethodEntry(Entry):
    """`make(given, **keys)` gives the method; `keys` are those of [method] that it takes.

    `unit` is what has a budget: clients, records, or None where nothing is private. A method for
    clients names its `policies`, the usual one first, and says whether users' own will do.
    """

    make: Callable[..., Method] = field(kw_only=True)
    unit: Literal["client", "record"] | None = field(default="client", kw_only=True)
    policies: tuple[str, ...] = field(default=(), kw_only=True)
    own_policies: bool = field(default=False, kw_only=True)

    def made(self, given: Given, options: dict[str, Any]) -> Method:
        return self.make(given, **options)
