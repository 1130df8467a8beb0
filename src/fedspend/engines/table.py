"""The registry of engines. Does not need torch, because reading a config uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedspend.basics.registry import Entry, Registry
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.engines.base import Engine, Workload


@dataclass(frozen=True)
class EngineEntry(Entry):
    """`make(work, workers)` gives the engine; `workers` is None if the user did not set it."""

    make: Callable[[Workload, int | None], Engine] = field(kw_only=True)
    elsewhere: bool = False  # clients have their rows and run on machines of their own


NO_GRID = (
    'engine "flower" runs inside a Flower ServerApp, which brings the connection to the nodes; '
    "start it with flwr run (docs/how-to/flower.md), or choose another engine.name"
)
NO_FLOWER = "engine \"flower\" needs Flower; install it with: pip install 'fedspend[flower]'"


def _local(work: Workload, workers: int | None) -> Engine:
    from fedspend.engines.local import local

    return local(work, workers)


def _reference(work: Workload, _workers: int | None) -> Engine:
    from fedspend.engines.reference import ReferenceEngine

    return ReferenceEngine(work)


def _flower(work: Workload, _workers: int | None) -> Engine:
    try:
        from fedspend.engines.flower.engine import FlowerEngine
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise InvalidInput(NO_FLOWER) from None
    return FlowerEngine(work)


ENGINES: Registry[EngineEntry] = Registry(
    "engine",
    EngineEntry(
        "local",
        "on this machine: dense models in batches of clients, other models client by client in "
        "worker processes",
        ("workers", "ask"),
        make=_local,
    ),
    EngineEntry(
        "reference",
        "on this machine, one client at a time, without optimisations",
        ("ask",),
        make=_reference,
    ),
    EngineEntry(
        "flower",
        "on other machines, each with its own rows, reached through Flower (docs/how-to/flower.md)",
        ("ask", "deadline", "retries", "quorum", "without_quorum", "keys", "slices", "silos"),
        make=_flower,
        elsewhere=True,
    ),
    section="engine",
)
