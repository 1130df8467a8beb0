"""Which examples a client sees in which step. One function, so that all engines see the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.client.task import LocalTraining


@dataclass(frozen=True, eq=False)
class Cut:
    """How the data of a client with this many examples is cut into batches.

    Each pass over it is a fresh shuffle cut into batches, the last of which may be smaller. With
    `steps`, passes go on until there are enough batches. No example, no step.

    >>> cut = Cut.of(5, LocalTraining(batch_size=3, epochs=1))
    >>> cut.padded(np.random.default_rng(0)).shape, cut.counts.tolist()
    ((2, 3), [3, 2])
    """

    examples: int
    width: int  # of a full batch
    per_pass: int
    counts: IntArray  # how many examples each step's batch has

    @classmethod
    def of(cls, examples: int, training: LocalTraining) -> Cut:
        steps = step_count(examples, training)
        width = max(1, min(training.batch_size, examples))
        per_pass = max(1, -(-examples // width))
        counts = np.full(steps, width, dtype=np.int64)
        counts[per_pass - 1 :: per_pass] = examples - (per_pass - 1) * width
        return cls(examples, width, per_pass, counts)

    def padded(self, generator: np.random.Generator) -> IntArray:
        """Positions (0..examples-1) of each step's batch as a (steps, width) table. The row of a
        smaller batch is filled up with its first position.
        """
        steps, passed = len(self.counts), self.per_pass * self.width
        if steps == self.per_pass and passed == self.examples:
            return generator.permutation(self.examples).reshape(steps, self.width)
        passes = -(-steps // self.per_pass)
        table = np.empty((passes, passed), dtype=np.int64)
        for row in table:
            row[: self.examples] = generator.permutation(self.examples)
            row[self.examples :] = row[passed - self.width]
        return table.reshape(passes * self.per_pass, self.width)[:steps]


def step_batches(
    generator: np.random.Generator, examples: int, training: LocalTraining
) -> list[IntArray]:
    """The positions of each step's batch, one array per step."""
    cut = Cut.of(examples, training)
    return [row[:count] for row, count in zip(cut.padded(generator), cut.counts, strict=True)]


def step_count(examples: int, training: LocalTraining) -> int:
    """How many steps a client with this many examples takes."""
    if examples == 0:
        return 0
    if training.steps is not None:
        return training.steps
    return int(training.epochs or 0) * -(-examples // training.batch_size)
