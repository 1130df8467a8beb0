"""Which engine runs a model on this machine."""

from __future__ import annotations

import os

from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.dense import DenseEngine
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import InvalidInput
from fedspend.models.linear import supports


def make_engine(name: str, work: Workload, workers: int | None = None) -> Engine:
    """`local`: dense models batched over clients, all others client by client over `workers`
    processes (default: one per core). `reference`: plain and sequential.
    """
    if workers is not None and workers < 0:
        raise InvalidInput(f"workers must be at least 0, got {workers}")
    if name == "reference":
        return ReferenceEngine(work)
    if name == "local":
        if supports(work.module):
            return DenseEngine(work)
        return ClientwiseEngine(work, cores() if workers is None else workers)
    raise InvalidInput(f"engine must be 'local' or 'reference', got {name!r}")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
