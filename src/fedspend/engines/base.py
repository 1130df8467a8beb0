"""What an engine is: it runs clients. It takes tasks and yields replies.

An engine never sees budgets, rates or other rounds. Whatever it does to be fast, each client's
reply equals that of `client.work.contribute` up to float rounding, and not a single bit of it
depends on any other client's rows (`tests/contracts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from fedspend.basics.arrays import IntArray
from fedspend.client.contribution import Lost, Reply
from fedspend.client.rows import Rows
from fedspend.client.state import MemoryStates, States
from fedspend.client.task import ClientTask
from fedspend.client.work import Tools
from fedspend.models.inputs import as_input
from fedspend.noise.randomness import Randomness
from fedspend.tasks.task import CLASSIFY, Task


@dataclass(frozen=True)
class Patience:
    """How long to wait for clients on other machines, and what to do without them."""

    deadline: float = 600.0  # seconds for a round
    retries: int = 2  # how often a client that does not answer is asked again within them
    quorum: float = 0.5  # share of the roster that must be connected before a round is charged
    without_quorum: Literal["stop", "release"] = "stop"  # release: with the planned noise


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """How clients on other machines are reached."""

    grid: Any  # flwr.serverapp.Grid, which cannot be named here: not every install has Flower
    patience: Patience = Patience()
    keys: Mapping[str, str] | None = None  # client -> public key; None: nodes are believed
    begun: bool = False  # a resumed run needs a quorum to go on; a new one needs everyone
    plan: str = ""  # root of the slices that the clients have approved; simulations may have none
    silo_plan: str = ""  # the public plan of a run whose records stay at their silos, and
    certificates: Mapping[str, str] | None = None  # what each of them handed in for it
    meaning: str = ""  # what rows mean to the server (`data.meaning`)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows that clients hold out, for private metrics; `shards[id]` are a client's own."""

    features: torch.Tensor
    labels: torch.Tensor
    shards: Mapping[str, IntArray]

    def rows(self, client: str, *, integers: bool = False) -> Rows:
        return Rows(self.features, self.labels, self.shards[client], integers)


@dataclass(frozen=True, eq=False)
class Workload:
    """All clients' rows on one machine; `shards[id]` are the indices of a client's rows. With
    `elsewhere`, rows are on other machines, and the shards say only who takes part.
    """

    module: nn.Module  # never run: clients get copies
    features: torch.Tensor
    labels: torch.Tensor
    shards: Mapping[str, IntArray]
    randomness: Randomness
    public_rows: torch.Tensor | None = None
    states: States = field(default_factory=MemoryStates)
    elsewhere: Elsewhere | None = None
    size: int = 0  # how many numbers a client sends, if not one for each parameter
    held_out: HeldOut | None = None
    task: Task = CLASSIFY
    integers: bool = False  # whether the model takes whole numbers, such as tokens

    def rows(self, client: str) -> Rows:
        return Rows(self.features, self.labels, self.shards[client], self.integers)

    @property
    def tools(self) -> Tools:
        held_out = None
        if self.held_out is not None:
            held_out = partial(self.held_out.rows, integers=self.integers)
        public = self.public_rows
        if public is not None:
            public = as_input(public, integers=self.integers)
        return Tools(self.module, self.randomness, public, self.states, held_out, self.task)


class Engine(Protocol):
    """Runs clients. All tasks of a call belong to one round."""

    name: str
    outside: bool  # whether replies come from other machines

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        """A reply for each task, in any order; a client that is missing at the end did not answer.

        A reply's vector is valid until the next reply is requested.
        """
        ...

    def close(self) -> None: ...


def is_trusted(engine: Engine) -> bool:
    """Whether replies need no check: only those of our own engines on this machine. A slip in
    another engine must not give anyone more weight than the clip.
    """
    return not engine.outside and type(engine).__module__.partition(".")[0] == "fedspend"


@runtime_checkable
class Carrying(Protocol):
    """An engine that sends tasks and answers over a line."""

    def carried(self) -> dict[str, float]:
        """What the last round took: seconds, and bytes of a task and of an answer, on average."""
        ...


@runtime_checkable
class Reaching(Protocol):
    """An engine that must reach someone before a round can begin."""

    def reach(self) -> None:
        """Called before a round is charged. Raises `Refused` if the round should not begin."""
        ...
