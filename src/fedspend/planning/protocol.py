"""What every plan offers, whether it protects whole clients (`planning.plan.Plan`) or single
records (`records.RecordPlan`).

Guarantee: whoever verifies, trains, charges a ledger or writes a report needs nothing else of a
plan, and asks the plan, never its type. What differs between the two is a property or method here;
how each is shown is in `report.views` and `cli.views`, side by side. A third kind of plan passes
`tests/contracts/test_plans.py`, and has a row in both tables.

A *unit* is what is protected: a client with everything it holds, or one record. A plan has one
name, one budget and one owner for each unit, in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.progress import OnProgress
from fedspend.planning.plan_json import Content, Kind, load
from fedspend.planning.schedules import Schedules

if TYPE_CHECKING:
    from fedspend.accounting.mechanisms import Mechanisms
    from fedspend.ledger.rules import Proposal
    from fedspend.verification.findings import Verification

Unit = Literal["client", "record"]


class AnyPlan(Protocol):
    """A plan of clients or of records. `schedules.of_client` is by unit."""

    # --- whom it protects ---

    @property
    def unit(self) -> Unit: ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of the units: client ids, or record ids."""

    @property
    def budget(self) -> FloatArray:
        """Of each unit."""

    @property
    def owner(self) -> IntArray:
        """The number of the client that holds each unit."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def left_out(self) -> IntArray:
        """Numbers of the units that keep their place and are never sampled."""

    # --- what it promises, and how it is checked ---

    @property
    def delta(self) -> float: ...

    @property
    def epsilon(self) -> FloatArray:
        """Claimed for each unit."""

    @property
    def accountant(self) -> str: ...

    @property
    def discrete(self) -> bool:
        """Whether the claims are meant for discrete noise."""

    @property
    def promised_observers(self) -> int:
        """How many of the observers that its verification lists, the first ones, the promise is
        against.
        """

    def spent_by_schedule(self) -> FloatArray:
        """Cumulative epsilon after each round, (rounds, schedules)."""

    def verify(
        self,
        *,
        colluders: int = 0,
        progress: OnProgress | None = None,
        seed: int = 0,
        max_pld: int = 200,
    ) -> Verification:
        """The verdict of the independent verifier for this kind of plan: the plan names it and has
        no say in it.
        """

    def proposal(self) -> Proposal:
        """What the ledger is asked for."""

    # --- the rounds ---

    @property
    def rounds(self) -> int: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def clip(self) -> float: ...

    @property
    def policy(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]:
        """How the plan came about: policy, method and what they were given."""

    @property
    def filters(self) -> bool:
        """Whether a unit takes part until its budget is used up, and then no more."""

    @property
    def by_norm(self) -> bool:
        """Whether units pay for the norms of their own gradients. Clients then keep private states,
        and who is left is private.
        """

    @property
    def client_by_client(self) -> bool:
        """Whether tasks run one client after the other, whatever engine was asked for."""

    @property
    def hidden_statistics(self) -> tuple[str, ...]:
        """Statistics of the server's sum that mean nothing under this plan, and that metrics leave
        out.
        """

    def planned_facts(self, round: int) -> dict[str, Any]:
        """What the plan adds to the metrics of a round. Planned, so it costs nothing to tell."""

    def extended(
        self,
        begun: int,
        more: int,
        *,
        spent: Mechanisms,
        elsewhere: Mechanisms,
        of_unit: IntArray,
        lifetime: FloatArray,
    ) -> AnyPlan:
        """The plan with `more` rounds at its end and the rounds after `begun` planned anew, so that
        it claims no more than it did.

        `spent` is what each schedule has spent in this run, `elsewhere[of_unit]` what each unit has
        spent and holds in others; with it, every unit stays within its `lifetime` budget.
        """

    # --- in words, and written down ---

    @property
    def who(self) -> str:
        """Whom the plan is for: `3 clients`, `120 records of 4 clients`."""

    @property
    def headline(self) -> str:
        """How the budgets are spent, in a word or two."""

    @property
    def hash(self) -> str: ...

    def content(self) -> Content: ...

    def save(self, path: str | Path) -> None: ...


def load_any_plan(path: str | Path) -> AnyPlan:
    """The plan in a file, of clients or of records, by what the file says it is."""
    from fedspend.planning.plan_file import CLIENT_PLAN
    from fedspend.records.plan_file import RECORD_PLAN

    kinds: tuple[Kind[AnyPlan], ...] = (CLIENT_PLAN, RECORD_PLAN)
    return load(Path(path), *kinds)
