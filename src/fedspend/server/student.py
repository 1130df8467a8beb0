"""The server's part in voting on public rows (AE-DPFL; Zhu et al. 2020): which rows are asked
about, and the student that learns from the released votes.

Guarantee: the student sees only public rows and released votes, so whatever it does with them costs
no privacy. Public rows are not protected, and their labels are never read. (Clients vote in
`client.voting`.)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedspend.basics.arrays import Float32Array, FloatArray, IntArray
from fedspend.basics.threads import single_threaded
from fedspend.client.batches import step_batches
from fedspend.client.task import LocalTraining
from fedspend.errors import InvalidInput
from fedspend.models.flat import FlatModule, as_batch
from fedspend.models.fresh import fresh
from fedspend.noise.randomness import Randomness
from fedspend.server.methods.planned import AE_DPFL

NAME = AE_DPFL.name


@dataclass(frozen=True, eq=False)
class Ballot:
    """Which public rows are asked about in each round: the next `queries` rows, starting over after
    the last.
    """

    rows: torch.Tensor  # (public rows, ...) in the order in which they are asked
    queries: int
    classes: int

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= len(self.rows):
            raise InvalidInput(
                f"queries must be from 1 to the number of public rows, {len(self.rows):,}, got "
                f"{self.queries!r}; by default every public row is asked about once"
            )

    @property
    def size(self) -> int:
        """The length of a client's vector of votes."""
        return self.queries * self.classes

    @property
    def fingerprint(self) -> str:
        """A hash of the public rows: votes belong to these rows and no others."""
        return hashlib.sha256(self.rows.numpy().tobytes()).hexdigest()[:16]

    def asked(self, round: int) -> IntArray:
        """Indices of the rows asked about in `round`, counted from 0."""
        return (round * self.queries + np.arange(self.queries)) % len(self.rows)


@dataclass(frozen=True, eq=False)
class Student:
    """Learns the released labels of all rows asked about so far, by plain SGD; each round starts
    where the last one ended.
    """

    module: nn.Module
    ballot: Ballot
    lr: float
    epochs: int
    batch_size: int
    randomness: Randomness

    def heard(self, votes: Float32Array, released: Float32Array, round: int) -> Float32Array:
        """All votes released so far, (public rows, classes), plus one more round; votes for the
        same row add up.
        """
        total = (
            votes.copy()
            if votes.size
            else np.zeros((len(self.ballot.rows), self.ballot.classes), dtype=np.float32)
        )
        total[self.ballot.asked(round)] += released.reshape(
            self.ballot.queries, self.ballot.classes
        )
        return total

    def taught(self, parameters: Float32Array, votes: Float32Array, round: int) -> Float32Array:
        """The student after `epochs` passes over the rows that have votes; a row's label is the
        class with the most noised votes.
        """
        known = np.flatnonzero(votes.any(axis=1))
        rows, labels = (
            self.ballot.rows[torch.from_numpy(known)],
            torch.from_numpy(votes[known].argmax(axis=1)),
        )
        generator = self.randomness.generator("student", round + 1)  # 0 is the order of the rows
        flat, start = FlatModule(fresh(self.module)), torch.from_numpy(parameters)
        with single_threaded():
            torch.default_generator.manual_seed(
                int(generator.integers(2**63))
            )  # for dropout and the like
            flat.load(start)
            for positions in step_batches(
                generator, len(known), LocalTraining(self.batch_size, epochs=self.epochs)
            ):
                chosen = torch.from_numpy(positions)
                flat.step(as_batch(rows[chosen]), labels[chosen], self.lr)
            moved = torch.empty(flat.size)
            flat.difference(start, out=moved)
        return (start + moved).numpy()

    def describe(self, cast: FloatArray, released: FloatArray) -> dict[str, Any]:
        """How far a round's voters agreed, and how many labels the noise changed. Not private: for
        simulations only.
        """
        before, after = (
            votes.reshape(self.ballot.queries, self.ballot.classes) for votes in (cast, released)
        )
        total = before.sum(axis=1)
        voted = total > 0
        if not voted.any():
            return {"agreement": None, "labels_changed": None}
        changed = before.argmax(axis=1) != after.argmax(axis=1)
        agreement = before[voted].max(axis=1) / total[voted]
        return {
            "agreement": float(agreement.mean()),
            "labels_changed": float(changed[voted].mean()),
        }
