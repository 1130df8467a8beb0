"""Where a run keeps what it must not lose: the protocol, and the store in memory.

`directory.RunDirectory` is the store on disk.

Guarantee: running the rounds needs nothing else of a store, so runs in memory and on disk go
through the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fedspend.errors import FedspendError
from fedspend.ledger.account import RunAccount
from fedspend.ledger.participants import check_planned_on
from fedspend.planning.protocol import AnyPlan
from fedspend.server.rounds import Kept, Store, TrainingState
from fedspend.stored.run import MetricsLine

if TYPE_CHECKING:
    from fedspend.runs.run_ledger import RunLedger


class RunStore(Store, Protocol):
    """What the rounds write (`server.rounds.Store`), and what is written before and after them."""

    account: RunAccount | None  # while rounds are played; None if nothing is charged

    @property
    def run_id(self) -> str:
        """The run's name in the ledger; empty for a run that charges none."""

    def charging(
        self, plan: AnyPlan | None, ledger: RunLedger, *, simulation: bool, stops: bool = False
    ) -> AbstractContextManager[None]:
        """Open the run's account, with the plan admitted, for as long as the rounds are played.

        `stops`: it has a rule by which it may end early.
        """

    def finish(self, *, stopped: bool = False) -> None:
        """All rounds are done, or the run's own rule has stopped it: close it in the ledger."""

    def training_state(self) -> TrainingState | None:
        """The training state, or None if no round was committed."""

    def metrics(self) -> list[MetricsLine]: ...

    def check_metrics(self, rounds: int) -> None:
        """Refuse metrics that are not those of so many rounds."""

    def keep_metrics(self, rounds: int) -> None:
        """Drop lines of rounds that were not committed: those rounds are repeated."""

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None: ...

    def write_model(self, tensors: dict[str, Any], about: dict[str, Any]) -> None: ...

    def drop_model(self) -> None: ...


class MemoryStore:
    """A run that leaves nothing on disk but its account: for notebooks and tests.

    It cannot be resumed. `run_id` is its name in the ledger; without one nothing is charged, which
    is for simulations.
    """

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id
        self._metrics: list[MetricsLine] = []
        self.account: RunAccount | None = None

    @contextmanager
    def charging(
        self, plan: AnyPlan | None, ledger: RunLedger, *, simulation: bool, stops: bool = False
    ) -> Iterator[None]:
        if not self.run_id or plan is None or ledger.asked is None:
            yield
            return
        book = ledger.to_charge(ledger.asked, None, simulation=simulation)
        check_planned_on(book, plan)
        account = RunAccount(book, self.run_id, None)
        account.admit(replace(plan.proposal(), stops=stops), simulation=simulation)
        self.account = account
        try:
            yield
        except BaseException as error:
            _give_up(account, error)
            raise
        finally:
            self.account = None

    def finish(self, *, stopped: bool = False) -> None:
        if self.account is not None:
            self.account.finish(stopped=stopped)

    def reserve(self, round: int) -> None:
        if self.account is not None:
            self.account.reserve(round)

    def lose(self, round: int) -> None:
        if self.account is not None:
            self.account.lose(round)

    def was_reserved(self, round: int) -> bool:
        return self.account is not None and self.account.was_reserved(round)

    def keep(self, round: int, kept: Kept) -> None:
        if self.account is not None:
            self.account.commit(round, kept.release)

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

    def check_metrics(self, rounds: int) -> None: ...

    def keep_metrics(self, rounds: int) -> None: ...

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None: ...

    def write_model(self, tensors: dict[str, Any], about: dict[str, Any]) -> None: ...

    def drop_model(self) -> None: ...


def _give_up(account: RunAccount, error: BaseException) -> None:
    """A run that stopped before its first round has spent nothing and is closed.

    A later one stays open: what it holds is not given back because of what its releases showed,
    unless somebody decides so and says why.
    """
    with suppress(FedspendError):
        if account.run.next_round == 0:
            account.close("stopped before its first round")
        elif account.run.stops:
            error.add_note(
                f"run {account.id} stays open in the ledger {account.ledger.location}; it has a "
                "stopping rule, so all of its rounds stay spent"
            )
        else:
            project = account.ledger.project
            error.add_note(
                f"run {account.id} stays open in the ledger {account.ledger.location} and holds "
                "what its other rounds would have spent; to give that back: fedspend ledger "
                f"close-run {account.id} --ledger {account.ledger.location}"
                + (f" --project {project!r}" if project else "")
                + " --reason WORDS"
            )
