"""Where a run keeps what it must not lose: the protocol, and the store in memory.

`directory.RunDirectory` is the store on disk.

Guarantee: running the rounds needs nothing else of a store, so runs in memory and on disk go
through the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fedspend.planning.protocol import AnyPlan
from fedspend.server.rounds import Kept, Store, TrainingState
from fedspend.stored.run import MetricsLine

if TYPE_CHECKING:
    from fedspend.runs.run_ledger import RunLedger


class RunStore(Store, Protocol):
    """What the rounds write (`server.rounds.Store`), and what is written before and after them."""

    @property
    def run_id(self) -> str:
        """The run's name in the ledger; empty for a run that charges none."""

    def charging(
        self, plan: AnyPlan | None, ledger: RunLedger, *, simulation: bool
    ) -> AbstractContextManager[None]:
        """Open the run's account, with the plan admitted, for as long as the rounds are played."""

    def finish(self) -> None:
        """All rounds are done: close the run in the ledger."""

    def training_state(self) -> TrainingState | None:
        """The training state, or None if no round was committed."""

    def metrics(self) -> list[MetricsLine]: ...

    def keep_metrics(self, rounds: int) -> None:
        """Drop lines of rounds that were not committed: those rounds are repeated."""

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None: ...

    def write_model(self, tensors: dict[str, Any], about: dict[str, Any]) -> None: ...


class MemoryStore:
    """A run that leaves nothing on disk and charges no ledger: for notebooks and tests."""

    run_id = ""

    def __init__(self) -> None:
        self._metrics: list[MetricsLine] = []

    @contextmanager
    def charging(
        self,
        plan: AnyPlan | None,  # noqa: ARG002
        ledger: RunLedger,  # noqa: ARG002
        *,
        simulation: bool,  # noqa: ARG002
    ) -> Iterator[None]:
        yield

    def finish(self) -> None: ...

    def reserve(self, round: int) -> None: ...

    def lose(self, round: int) -> None: ...

    def was_reserved(self, round: int) -> bool:  # noqa: ARG002
        return False

    def keep(self, round: int, kept: Kept) -> None: ...

    def memory(self) -> None:
        return None

    def kept(self, round: int) -> None:  # noqa: ARG002
        return None

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None:  # noqa: ARG002
        self._metrics.append(line)

    def training_state(self) -> TrainingState | None:
        return None

    def metrics(self) -> list[MetricsLine]:
        return list(self._metrics)

    def keep_metrics(self, rounds: int) -> None: ...

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None: ...

    def write_model(self, tensors: dict[str, Any], about: dict[str, Any]) -> None: ...
