"""Which engines there are. None of this needs torch: configs are read with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedspend.basics.registry import Entry, Registry

if TYPE_CHECKING:
    from fedspend.engines.base import Engine, Workload


@dataclass(frozen=True)
class EngineEntry(Entry):
    """`make(work, workers)`; `workers` is None where nobody has said how many."""

    make: Callable[[Workload, int | None], Engine] = field(kw_only=True)


def _local(work: Workload, workers: int | None) -> Engine:
    from fedspend.engines.local import local

    return local(work, workers)


def _reference(work: Workload, _workers: int | None) -> Engine:
    from fedspend.engines.reference import ReferenceEngine

    return ReferenceEngine(work)


ENGINES: Registry[EngineEntry] = Registry(
    "engine",
    EngineEntry(
        "local",
        "on this machine: dense models batched over clients, others client by client over worker "
        "processes",
        ("workers",),
        make=_local,
    ),
    EngineEntry(
        "reference",
        "on this machine, one client after the other, nothing clever",
        make=_reference,
    ),
    section="engine",
)
