"""The server's half of votes on public rows (AE-DPFL; Zhu et al. 2020): what is asked, and who
learns from the released votes.

Guarantee: the student sees public rows and released votes only: whatever it does with them costs no
privacy. Public rows are not protected, and no label of theirs is read. (What a client casts is in
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

NAME = "ae-dpfl"


@dataclass(frozen=True, eq=False)
class Ballot:
    """Which public rows are asked about in which round: the next `queries` of them, and from the
    first again after the last.
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
        """Numbers in a client's vector of votes."""
        return self.queries * self.classes

    @property
    def fingerprint(self) -> str:
        """Of the public rows: votes that were cast belong to these and no others."""
        return hashlib.sha256(self.rows.numpy().tobytes()).hexdigest()[:16]

    def asked(self, round: int) -> IntArray:
        """Numbers of the rows of `round`, counted from 0."""
        return (round * self.queries + np.arange(self.queries)) % len(self.rows)


@dataclass(frozen=True, eq=False)
class Student:
    """Learns the released labels of all rows asked so far by plain SGD, each round from where the
    last one left it.
    """

    module: nn.Module
    ballot: Ballot
    lr: float
    epochs: int
    batch_size: int
    randomness: Randomness

    def heard(self, votes: Float32Array, released: Float32Array, round: int) -> Float32Array:
        """All votes released so far, (public rows, classes), with one more round; a row that is
        asked again adds them up.
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
        """The student after `epochs` passes over the rows that have a label: the class with the
        most noised votes.
        """
        known = np.flatnonzero(votes.any(axis=1))
        rows, labels = (
            self.ballot.rows[torch.from_numpy(known)],
            torch.from_numpy(votes[known].argmax(axis=1)),
        )
        generator = self.randomness.generator("student", round + 1)  # 0 is the order of the rows
        flat, start = FlatModule(fresh(self.module)), torch.from_numpy(parameters)
        with single_threaded():
            torch.manual_seed(int(generator.integers(2**63)))  # for dropout and the like
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
        """How far a round's voters agreed and what noise did to the labels. Not private: for
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
