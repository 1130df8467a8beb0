"""Which engine runs a model on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import nn

from fedspend.arrays import IntArray
from fedspend.engines import dense
from fedspend.engines.base import Engine, LocalTraining
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import InvalidInput
from fedspend.randomness import Randomness


def make_engine(
    name: str,
    module: nn.Module,
    features: torch.Tensor,
    labels: torch.Tensor,
    shards: Sequence[IntArray],
    training: LocalTraining,
    randomness: Randomness,
    workers: int | None = None,
) -> Engine:
    """`local`: dense models batched over clients, all others client by client over `workers` processes (default: one per core).

    `reference`: plain and sequential. `shards[n]` are the rows of `features` and `labels` that belong to client n.
    """
    if workers is not None and workers < 0:
        raise InvalidInput(f"workers must be at least 0, got {workers}")
    if name == "reference":
        return ReferenceEngine(module, features, labels, shards, training, randomness)
    if name == "local":
        if dense.supports(module):
            return dense.DenseEngine(module, features, labels, shards, training, randomness)
        count = cores() if workers is None else workers
        return ClientwiseEngine(module, features, labels, shards, training, randomness, count)
    raise InvalidInput(f"engine must be 'local' or 'reference', got {name!r}")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
