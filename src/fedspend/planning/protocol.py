"""What every plan offers, whether it protects clients (`Plan`) or single records (`RecordPlan`).

Guarantee: verifying, training, charging a ledger and reporting need nothing else from a plan, and
never look at its type. Wherever the two kinds differ, there is a property or method here; how each
is displayed is in `report.views` and `cli.views`, side by side. A third kind of plan must pass
`tests/contracts/test_plans.py`, and needs a row in both tables.

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
    """A plan of clients or of records. `schedules.of_client` has one entry per unit."""

    # --- whom it protects ---

    @property
    def unit(self) -> Unit: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The id of each unit: client ids, or record ids."""

    @property
    def budget(self) -> FloatArray:
        """The budget of each unit."""

    @property
    def owner(self) -> IntArray:
        """The number of the client that holds each unit."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def left_out(self) -> IntArray:
        """Numbers of the units that keep their place but are never sampled."""

    # --- what it promises, and how it is checked ---

    @property
    def delta(self) -> float: ...

    @property
    def epsilon(self) -> FloatArray:
        """The claimed epsilon of each unit."""

    @property
    def accountant(self) -> str: ...

    @property
    def discrete(self) -> bool:
        """Whether the claims are meant for discrete noise."""

    @property
    def promised_observers(self) -> int:
        """The promise holds against this many of the verification's observers: the first ones."""

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
        """The verdict of the independent verifier for this kind of plan.

        The plan names the verifier but has no influence on its verdict.
        """

    def proposal(self) -> Proposal:
        """What the ledger is asked to admit."""

    # --- what may be shown ---

    def shows_others(self) -> str | None:
        """Why what may be shown of one unit would tell budgets of others; None if it does not."""

    def bound(self, slack: float = 0.0) -> AnyPlan:
        """A plan of one made-up unit that costs no less than any unit of this plan, and shows
        nothing else about them. Its budget is the epsilon to state: the claim, that part `slack`
        more, rounded up.
        """

    def part_of(self, client: int) -> AnyPlan:
        """What this plan says about one client, and nothing about the others."""

    def covers(self, own: AnyPlan) -> bool:
        """Of a bound: whether no unit in `own` can cost more than it."""

    # --- the rounds ---

    @property
    def rounds(self) -> int: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def update_noise(self) -> FloatArray:
        """(rounds, schedules): noise multipliers of updates alone. They are above those of the
        schedules where a bit or a metric takes its part of a round.
        """

    @property
    def clip(self) -> float: ...

    @property
    def policy(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]:
        """How the plan was made: policy, method and their parameters."""

    @property
    def filters(self) -> bool:
        """Whether a unit takes part only until its budget is used up."""

    @property
    def by_norm(self) -> bool:
        """Whether units pay for the norms of their own gradients.

        Clients then keep private state, and who still takes part is private too.
        """

    @property
    def client_by_client(self) -> bool:
        """Whether tasks run one client after another, whatever the engine."""

    @property
    def hidden_statistics(self) -> tuple[str, ...]:
        """Statistics of the server's sum that mean nothing under this plan; metrics omit them."""

    def planned_facts(self, round: int) -> dict[str, Any]:
        """What the plan adds to a round's metrics. It is planned, so showing it costs nothing."""

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
        """The plan with `more` rounds added and the rounds after `begun` replanned.

        It claims no more than before. `spent` is what each schedule has spent in this run;
        `elsewhere[of_unit]` is what each unit has spent and holds in other runs. With that, every
        unit stays within its `lifetime` budget.
        """

    # --- description and file ---

    @property
    def who(self) -> str:
        """Whom the plan is for: `3 clients`, `120 records of 4 clients`."""

    @property
    def headline(self) -> str:
        """How the budgets are spent, in one or two words."""

    @property
    def hash(self) -> str: ...

    def content(self) -> Content: ...

    def save(self, path: str | Path) -> None: ...


def plan_kinds() -> tuple[Kind[AnyPlan], ...]:
    """How files of each kind of plan are read."""
    from fedspend.planning.plan_file import CLIENT_PLAN
    from fedspend.records.plan_file import RECORD_PLAN

    return CLIENT_PLAN, RECORD_PLAN


def load_any_plan(path: str | Path) -> AnyPlan:
    """The plan in a file, of clients or of records, whichever the file says it is."""
    return load(Path(path), *plan_kinds())
