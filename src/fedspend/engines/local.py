"""Which engine runs a model on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from fedspend.basics.registry import Entry, Registry
from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.dense import DenseEngine
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import InvalidInput
from fedspend.models.linear import supports


@dataclass(frozen=True)
class EngineEntry(Entry):
    """`make(work, workers)`; `workers` is None where nobody has said how many."""

    make: Callable[[Workload, int | None], Engine] = lambda work, _: ReferenceEngine(work)


def make_engine(name: str, work: Workload, workers: int | None = None) -> Engine:
    """The engine `name`, ready to run tasks."""
    if workers is not None and workers < 0:
        raise InvalidInput(f"workers must be at least 0, got {workers}")
    return ENGINES[name].make(work, workers)


def _local(work: Workload, workers: int | None) -> Engine:
    if supports(work.module):
        return DenseEngine(work)
    return ClientwiseEngine(work, cores() if workers is None else workers)


ENGINES: Registry[EngineEntry] = Registry(
    "engine",
    EngineEntry(
        "local",
        "on this machine: dense models batched over clients, others client by client over worker "
        "processes",
        ("workers",),
        make=_local,
    ),
    EngineEntry("reference", "on this machine, one client after the other, nothing clever"),
)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
