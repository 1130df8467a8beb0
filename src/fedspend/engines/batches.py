"""Which examples a client sees in which step. One function, so that all engines see the same."""

from __future__ import annotations

import numpy as np

from fedspend.arrays import IntArray
from fedspend.engines.base import LocalTraining


def step_batches(generator: np.random.Generator, examples: int, training: LocalTraining) -> list[IntArray]:
    """Positions (0..examples-1) of each step's batch.

    Each pass over the client's data is a fresh shuffle cut into batches, the last of which may be smaller. With `steps`,
    passes go on until there are enough batches. No example, no step.
    """
    if examples == 0:
        return []
    size = min(training.batch_size, examples)
    per_pass = -(-examples // size)
    passes = training.epochs if training.epochs is not None else -(-int(training.steps or 0) // per_pass)
    batches: list[IntArray] = []
    for _ in range(passes):
        shuffled = generator.permutation(examples)
        batches += [shuffled[start : start + size] for start in range(0, examples, size)]
    return batches if training.steps is None else batches[: training.steps]
