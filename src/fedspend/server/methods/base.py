"""What a method is: it sets the terms of each round, and learns from each release.

A method sees the plan and earlier releases, never data, so its choices cost no privacy. State is a
small dict of numbers that goes into every checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from fedspend.basics.arrays import Float32Array, FloatArray
from fedspend.basics.registry import Entry

if TYPE_CHECKING:
    from fedspend.client.task import RecordTerms
    from fedspend.planning.protocol import AnyPlan

State = dict[str, float]


@dataclass(frozen=True)
class RoundTerms:
    """Everything that determines a round's privacy."""

    sampling_rate: FloatArray  # (clients,)
    clip_norm: FloatArray  # (clients,)
    deviation: float  # standard deviation of the noise on the sum of updates
    denominator: float  # the noised sum is divided by this: planned, never counted
    # standard deviation of the noise on the sum of shifted bits, if the method uses them
    bit_deviation: float | None = None
    # the same for private metrics; set by the plan (`measured`), not by methods
    metric_deviation: float | None = None
    # for record-level methods: client index -> its own records' terms
    records: Callable[[int], RecordTerms] | None = None


@dataclass(frozen=True)
class Release:
    """What a round publishes."""

    update: Float32Array  # (parameters,) noised mean update
    bit: float | None = None  # noised share of clients within their clip
    # noised accuracy of the model that the round began with, on held-out rows of sampled clients
    metric: float | None = None


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
    """What a method is made from: plan (None if nothing is private), clients, and their rate."""

    plan: AnyPlan | None
    clients: int
    rate: float


@dataclass(frozen=True)
class MethodEntry(Entry):
    """`make(given, **keys)` gives the method; `keys` are the [method] keys that it takes.

    `unit` is what has a budget: clients, records, or None if nothing is private. A method for
    clients names its `policies`, the default first, and says whether it accepts a user's own
    policies. Its clip `follows` a learning rate that falls, does so only `if asked`, or is
    `constant` always.
    """

    make: Callable[..., Method] = field(kw_only=True)
    unit: Literal["client", "record"] | None = field(default="client", kw_only=True)
    policies: tuple[str, ...] = field(default=(), kw_only=True)
    own_policies: bool = field(default=False, kw_only=True)
    clip_schedule: Literal["follows", "if asked", "constant"] = field(
        default="if asked", kw_only=True
    )
