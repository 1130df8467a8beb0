"""Chooses the engine that runs a model on this machine."""

from __future__ import annotations

import os

from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.dense import DenseEngine
from fedspend.engines.slopes import slope_of
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput
from fedspend.models.linear import supports


def make_engine(name: str, work: Workload, workers: int | None = None) -> Engine:
    """The engine `name`, ready to run tasks."""
    if workers is not None and workers < 0:
        raise InvalidInput(f"workers must be at least 0, got {workers}")
    return ENGINES[name].make(work, workers)


def local(work: Workload, workers: int | None) -> Engine:
    """The batched engine for dense models and losses of ours, the clientwise one for others."""
    if supports(work.module) and slope_of(work.task) is not None:
        return DenseEngine(work)
    return ClientwiseEngine(work, cores() if workers is None else workers)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
