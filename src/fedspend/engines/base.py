"""What an engine is: it trains the clients of one cohort from the same starting point and returns the reduced sum of their updates.

An engine never sees budgets, noise or rates. What leaves a client is decided by `reduce` (clipping, in `mechanism`), which
the engine calls on blocks of raw updates, in the process where they were made. Blocks do not depend on the number of
workers and are added in a fixed order in float64, so one engine with one seed gives the same bits from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fedspend.arrays import BoolArray, FloatArray, IntArray
from fedspend.engines.flat import parameter_count
from fedspend.engines.shaping import UNSHAPED, Shape
from fedspend.errors import InvalidInput
from fedspend.randomness import Randomness


@dataclass(frozen=True)
class LocalTraining:
    """What a sampled client does: plain SGD with momentum on the mean cross-entropy of each batch, and how its update is shaped.

    Exactly one of `steps` and `epochs` is set. A client with fewer examples than a batch uses all of them in every step;
    a client with none returns a zero update.
    """

    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    momentum: float = 0.0
    shape: Shape = UNSHAPED

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("give either local_steps or local_epochs, not both and not neither")


class Contribution(Protocol):
    """(start, updates (k, parameters), round, clips (k,)) -> (k, size): what clients send in place of their updates."""

    @property
    def size(self) -> int: ...

    def __call__(self, parameters: torch.Tensor, updates: torch.Tensor, round: int, lengths: FloatArray) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Workload:
    """What an engine works on: `shards[n]` are the rows of `features` and `labels` that belong to client n."""

    module: nn.Module
    features: torch.Tensor
    labels: torch.Tensor
    shards: Sequence[IntArray]
    training: LocalTraining
    randomness: Randomness
    contribution: Contribution | None = None  # None: the update itself

    @property
    def sum_size(self) -> int:
        """Numbers in what a client sends."""
        return parameter_count(self.module) if self.contribution is None else self.contribution.size

    def reduced(self, parameters: torch.Tensor, updates: torch.Tensor, clients: IntArray, round: int, reduce: Reduce) -> Reduced:
        """What these clients send, reduced."""
        if self.contribution is not None:
            updates = self.contribution(parameters, updates, round, reduce.clip_norms[clients])
        return reduce(updates, clients)


@dataclass(frozen=True)
class Reduced:
    """Some clients' contributions after clipping, summed; one entry per client in the statistics."""

    total: FloatArray  # (sum_size,) float64
    norms: FloatArray  # before clipping; 0 for a discarded update
    clipped: BoolArray
    discarded: BoolArray  # NaN or infinite: counts as zero
    active: IntArray | None = None  # records that took part in each local step, where that is not planned: for simulations only

    def plus(self, other: Reduced) -> Reduced:
        return Reduced(
            self.total + other.total,
            np.concatenate([self.norms, other.norms]),
            np.concatenate([self.clipped, other.clipped]),
            np.concatenate([self.discarded, other.discarded]),
        )

    @classmethod
    def nothing(cls, size: int) -> Reduced:
        none = np.zeros(0, dtype=bool)
        return cls(np.zeros(size), np.zeros(0), none, none)


class Reduce(Protocol):
    """(what clients send (k, sum_size) float32, client numbers (k,)) -> Reduced. Picklable, since workers call it."""

    @property
    def clip_norms(self) -> FloatArray:
        """The bound of every client of the federation, infinite for none; the radius of BLUR's ball."""
        ...

    def __call__(self, updates: torch.Tensor, clients: IntArray) -> Reduced: ...


class Engine(Protocol):
    """Runs clients. `parameters` and updates are flat vectors in the order of `module.parameters()`."""

    name: str

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced: ...

    def close(self) -> None: ...
