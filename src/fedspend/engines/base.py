"""What an engine is: it runs clients. It takes tasks and yields replies.

An engine never sees budgets, rates or other rounds. Whatever it does to be fast, each client's
reply equals that of `client.work.contribute` up to float rounding, and not a single bit of it
depends on any other client's rows (`tests/contracts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from fedspend.basics.arrays import IntArray
from fedspend.client.contribution import Lost, Reply
from fedspend.client.rows import Rows
from fedspend.client.state import MemoryStates, States
from fedspend.client.task import ClientTask
from fedspend.client.work import Tools
from fedspend.noise.randomness import Randomness


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows that clients hold out, for private metrics; `shards[id]` are a client's own."""

    features: torch.Tensor
    labels: torch.Tensor
    shards: Mapping[str, IntArray]

    def rows(self, client: str) -> Rows:
        return Rows(self.features, self.labels, self.shards[client])


@dataclass(frozen=True, eq=False)
class Workload:
    """All clients' rows on one machine; `shards[id]` are the indices of a client's rows."""

    module: nn.Module  # never run: clients get copies
    features: torch.Tensor
    labels: torch.Tensor
    shards: Mapping[str, IntArray]
    randomness: Randomness
    public_rows: torch.Tensor | None = None
    states: States = field(default_factory=MemoryStates)
    held_out: HeldOut | None = None

    def rows(self, client: str) -> Rows:
        return Rows(self.features, self.labels, self.shards[client])

    @property
    def tools(self) -> Tools:
        held_out = None if self.held_out is None else self.held_out.rows
        return Tools(self.module, self.randomness, self.public_rows, self.states, held_out)


class Engine(Protocol):
    """Runs clients. All tasks of a call belong to one round."""

    name: str
    outside: bool  # whether replies come from other machines and must be checked

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        """A reply for each task, in any order; a client that is missing at the end did not answer.

        A reply's vector is valid until the next reply is requested.
        """
        ...

    def close(self) -> None: ...
