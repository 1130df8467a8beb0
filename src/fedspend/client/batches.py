"""Which examples a client sees in which step. One function, so that all engines see the same."""

from __future__ import annotations

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.client.task import LocalTraining


def padded_batches(
    generator: np.random.Generator, examples: int, training: LocalTraining
) -> IntArray:
    """Positions (0..examples-1) of each step's batch as a (steps, width) table; how many columns of
    each row count is in `batch_counts`.

    Each pass over the client's data is a fresh shuffle cut into batches, the last of which may be
    smaller: the rest of its row repeats its first position. With `steps`, passes go on until there
    are enough batches. No example, no step.

    >>> training = LocalTraining(batch_size=3, epochs=1)
    >>> padded_batches(np.random.default_rng(0), 5, training).shape, batch_counts(5, training)
    ((2, 3), array([3, 2]))
    """
    if examples == 0:
        return np.zeros((0, 0), dtype=np.int64)
    width, per_pass = _cut(examples, training)
    steps = step_count(examples, training)
    passes = -(-steps // per_pass)
    if passes == 1 and examples == per_pass * width:
        return generator.permutation(examples).reshape(per_pass, width)[:steps]
    table = np.empty((passes, per_pass * width), dtype=np.int64)
    for row in table:
        row[:examples] = generator.permutation(examples)
        row[examples:] = row[(per_pass - 1) * width]
    return table.reshape(passes * per_pass, width)[:steps]


def batch_counts(examples: int, training: LocalTraining) -> IntArray:
    """How many examples each step's batch has."""
    steps = step_count(examples, training)
    if steps == 0:
        return np.zeros(0, dtype=np.int64)
    width, per_pass = _cut(examples, training)
    counts = np.full(steps, width, dtype=np.int64)
    counts[per_pass - 1 :: per_pass] = examples - (per_pass - 1) * width
    return counts


def step_batches(
    generator: np.random.Generator, examples: int, training: LocalTraining
) -> list[IntArray]:
    """The same, one array per step."""
    table = padded_batches(generator, examples, training)
    counts = batch_counts(examples, training)
    return [row[:count] for row, count in zip(table, counts, strict=True)]


def step_count(examples: int, training: LocalTraining) -> int:
    """How many steps a client with so many examples takes."""
    if examples == 0:
        return 0
    if training.steps is not None:
        return training.steps
    return int(training.epochs or 0) * _cut(examples, training)[1]


def _cut(examples: int, training: LocalTraining) -> tuple[int, int]:
    """How many examples a full batch has, and how many batches make a pass."""
    width = min(training.batch_size, examples)
    return width, -(-examples // width)
