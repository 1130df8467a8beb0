"""Which examples a client sees in which step. One function, so that all engines see the same."""

from __future__ import annotations

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.client.task import LocalTraining


def padded_batches(
    generator: np.random.Generator, examples: int, training: LocalTraining
) -> tuple[IntArray, IntArray]:
    """Positions (0..examples-1) of each step's batch as a (steps, width) table, and how many
    columns of each row count.

    Each pass over the client's data is a fresh shuffle cut into batches, the last of which may be
    smaller: the rest of its row repeats its first position. With `steps`, passes go on until there
    are enough batches. No example, no step.

    >>> training = LocalTraining(batch_size=3, epochs=1)
    >>> table, counts = padded_batches(np.random.default_rng(0), 5, training)
    >>> table.shape, counts.tolist()
    ((2, 3), [3, 2])
    """
    if examples == 0:
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    width = min(training.batch_size, examples)
    per_pass = -(-examples // width)
    passes = (
        training.epochs if training.epochs is not None else -(-int(training.steps or 0) // per_pass)
    )
    steps = passes * per_pass if training.steps is None else training.steps
    table = np.empty((passes, per_pass * width), dtype=np.int64)
    for row in table:
        row[:examples] = generator.permutation(examples)
        row[examples:] = row[(per_pass - 1) * width]
    counts = np.full((passes, per_pass), width, dtype=np.int64)
    counts[:, -1] = examples - (per_pass - 1) * width
    return table.reshape(passes * per_pass, width)[:steps], counts.reshape(-1)[:steps]


def step_batches(
    generator: np.random.Generator, examples: int, training: LocalTraining
) -> list[IntArray]:
    """The same, one array per step."""
    table, counts = padded_batches(generator, examples, training)
    return [row[:count] for row, count in zip(table, counts, strict=True)]


def step_count(examples: int, training: LocalTraining) -> int:
    """How many steps a client with so many examples takes."""
    if examples == 0:
        return 0
    per_pass = -(-examples // min(training.batch_size, examples))
    return training.steps if training.steps is not None else int(training.epochs or 0) * per_pass
