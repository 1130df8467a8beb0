"""The plan of a record-level run: every record's sampling rate and steps in every round, made
before training from budgets alone.

Guarantee: a record that is sampled according to its columns and clipped to `clip`, with noise of
`terms.noise_multiplier * clip` on every step's sum, spends at most its claim at `delta` against the
public and against a server that sees who takes part. Adjacency is zero-out: the record's gradients
become zero; roster, budgets, rates and the expected batch sizes stay. Records at rate 0 spend
nothing. The consortium decides how much of the plan to publish: rates reveal budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedspend.accounting.conversion import check_planned_delta, conversion_cost
from fedspend.accounting.mechanisms import Mechanisms, two_stage
from fedspend.accounting.rdp import ORDERS, check_orders, rdp
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput
from fedspend.ledger.rules import Proposal, busy
from fedspend.planning.base import BasePlan
from fedspend.planning.clipping import check_clip
from fedspend.planning.plan import check_client_ids
from fedspend.planning.plan_json import Content, Kind
from fedspend.planning.schedules import Schedules
from fedspend.records.filtering import active_by_step, check_steps
from fedspend.records.policies import Wanted, rate_table
from fedspend.records.remaining import Past, table_on_top
from fedspend.records.terms import Terms, check_budgets

if TYPE_CHECKING:
    from fedspend.basics.progress import OnProgress
    from fedspend.planning.protocol import AnyPlan, Unit
    from fedspend.report.drawing import Drawing
    from fedspend.verification.findings import Verification

ADJACENCY = (
    "zero-out: one record's gradients become zero; roster, budgets, rates and expected batches "
    "stay fixed"
)
OBSERVER = (
    "other clients, the public, and a server that sees every client's update and who takes part "
    "but does not choose"
)
# Parameters of a plan whose records, with their budgets, stay at their silos (`records.silos`).
SILOS, OFFER = "silos", "offer"


@dataclass(frozen=True, eq=False, repr=False)
class RecordPlan(BasePlan):
    """Rates for all records, the claim for each, and what is needed to check it. Here
    `schedules.of_client` has one entry per record.

    `fedspend.plan(config=...)` makes one for a config with a record-level method, and
    `RecordPlan.load` reads one from its file.

    Attributes:
        records: the records' ids, in the order of every array.
        owner: (records,) the number of the client that holds each record.
        clients: the clients' ids.
        budget: (records,) the epsilon of each record's budget.
        epsilon: (records,) the epsilon that each record spends at most; at most its budget.
        delta: of every epsilon.
        rate: (rounds, records) the probability that a record enters a local step.
        terms: rounds, local steps, noise and the rate at which clients join.
        clip: the clip norm of a record's gradient.
        parameters: how the plan was made: method, policy and so on.
    """

    records: tuple[str, ...]
    owner: IntArray  # (records,) index of the client that holds each record
    clients: tuple[str, ...]
    budget: FloatArray  # (records,)
    schedules: Schedules  # classes of records with equal rates
    terms: Terms
    clip: float
    parameters: dict[str, Any]
    orders: tuple[float, ...] = ORDERS
    # (rounds, classes) steps in a round; None if every class always takes all of them
    short: FloatArray | None = None
    unit: ClassVar[Unit] = "record"
    accountant: ClassVar[str] = "rdp"
    promised_observers: ClassVar[int] = 2  # the public, and a server that sees who takes part
    discrete: ClassVar[bool] = False
    client_by_client: ClassVar[bool] = True
    # they describe local steps, not the sum
    hidden_statistics: ClassVar[tuple[str, ...]] = ("noise_deviation", "clip", "clipped_share")

    def __post_init__(self) -> None:
        check_record_plan(self)
        for array in (self.owner, self.budget, self.steps):
            array.flags.writeable = False

    @property
    def delta(self) -> float:
        return self.terms.delta

    @property
    def names(self) -> tuple[str, ...]:
        return self.records

    @property
    def silos(self) -> Mapping[str, str] | None:
        """The certificate of each silo, if the records and their budgets stay there. The plan then
        has one made-up record for each silo, which costs no less than any record there.
        """
        found: Mapping[str, str] | None = self.parameters.get(SILOS)
        return found

    @property
    def who(self) -> str:
        if self.silos is not None:
            return f"the records of {counted(len(self.clients), 'silo')}"
        return f"{counted(len(self.records), 'record')} of {counted(len(self.clients), 'client')}"

    @property
    def headline(self) -> str:
        return f"{self.method_words}, {self.policy}"

    @property
    def update_noise(self) -> FloatArray:
        """(rounds, classes): nothing but updates is released."""
        return self.schedules.noise_multiplier

    @property
    def rate(self) -> FloatArray:
        """(rounds, records)."""
        return self.schedules.wide("sampling_rate")

    @cached_property
    def classes_of_client(self) -> list[IntArray]:
        """For each client, the classes of its records, in the order of the plan."""
        order = np.argsort(self.owner, kind="stable")
        counts = np.bincount(self.owner, minlength=len(self.clients))
        return np.split(self.schedules.of_client[order], np.cumsum(counts)[:-1])

    @cached_property
    def steps(self) -> FloatArray:
        """How many of a round's local steps a class takes, from the first on, (rounds, classes); 0
        in a round at rate 0.
        """
        return np.where(
            self.schedules.sampling_rate > 0,
            self.terms.local_steps if self.short is None else self.short,
            0.0,
        )

    @property
    def filters(self) -> bool:
        return self.parameters.get("method") == "filter"

    @property
    def by_norm(self) -> bool:
        """Whether records pay for their own gradients' norms. `steps` are then squared norms, in
        squared clips: the most that a record can have paid by the end of a round. How long a record
        lasts depends on its gradients and is private.
        """
        return self.parameters.get("charge") == "norm"

    @property
    def method_words(self) -> str:
        """The method and what a filter charges by: norm and clip are different promises."""
        charge = f" by {'norm' if self.by_norm else 'clip'}" if self.filters else ""
        return f"{self.parameters['method']}{charge}"

    def expected_batch(self, round: int) -> FloatArray:
        """The sum of a client's rates in each step, by which it divides, (local steps, clients).
        Planned, never counted.
        """
        rate, steps = self.schedules.sampling_rate[round], self.steps[round]
        if self.by_norm:  # every record that can pay for anything, in every step
            rate, steps = (
                self.schedules.sampling_rate[0],
                self.schedules.sampling_rate[0] * self.terms.local_steps,
            )
        batch = np.zeros((self.terms.local_steps, len(self.clients)))
        for begin, end in pairwise(sorted({0, *map(int, steps)})):
            now = np.where(steps >= end, rate, 0.0)[self.schedules.of_client]
            batch[begin:end] = np.bincount(self.owner, weights=now, minlength=len(self.clients))
        return batch

    @cached_property
    def active_by_step(self) -> IntArray:
        """How many records can be sampled in each step, (rounds * local steps,) (the paper's Figure
        7).
        """
        if self.by_norm:
            raise InvalidInput(
                "under a filter by norms, how many records take part in a step depends on their "
                "gradients, so it is not planned"
            )
        return active_by_step(self.steps, self.schedules.clients_of, self.terms.local_steps)

    @property
    def left_out(self) -> IntArray:
        """Records that are never sampled, because no rate can meet their budget or it does not pay
        for a single step.
        """
        return np.flatnonzero(~busy(self.schedules.sampling_rate, self.schedules.of_client))

    def spent_by_schedule(self) -> FloatArray:
        """Cumulative epsilon after each round, (rounds, classes)."""
        return self._spent

    @cached_property
    def _spent(self) -> FloatArray:
        rate = self.schedules.sampling_rate
        # With fewer orders epsilon reads higher; the last round shows the claim itself.
        every = 1 if rate.shape[1] <= 300 else 3
        orders = np.asarray(self.orders)[::every]
        curves, at = distinct_rounds(rate, self.steps, self.terms, orders)
        cost, total = conversion_cost(orders, self.delta), np.zeros((rate.shape[1], orders.size))
        spent = np.zeros(rate.shape)
        for t in range(self.rounds):
            total += curves[at[t]]
            reading = np.maximum((total + cost).min(axis=1), 0.0)
            spent[t] = np.minimum(np.where(total[:, 0] > 0, reading, 0.0), self.schedules.epsilon)
        return spent

    def content(self) -> Content:
        from fedspend.records.plan_file import to_content

        return to_content(self)

    @classmethod
    def kind(cls) -> Kind[RecordPlan]:
        from fedspend.records.plan_file import RECORD_PLAN

        return RECORD_PLAN

    def verify(
        self,
        *,
        colluders: int = 0,
        progress: OnProgress | None = None,
        seed: int = 0,
        max_pld: int = 200,
    ) -> Verification:
        """Checks the plan with accountants that share no code with the planner."""
        from fedspend.records.verification import verify_records

        del progress, seed, max_pld  # the check is quick and deterministic
        return verify_records(self, colluders=colluders)

    def proposal(self) -> Proposal:
        """What the plan asks of the ledger: every record, by class."""
        return Proposal(
            names=self.records,
            budgets=self.budget,
            delta=self.delta,
            of_class=self.schedules.of_client,
            rate=self.schedules.sampling_rate,
            noise=self.schedules.noise_multiplier,
            plan=self.hash,
            method=str(self.parameters["method"]),
            order=self.schedules.order,
            unit=self.unit,
            client_rate=self.terms.client_rate,
            steps=self.terms.local_steps if self.short is None else self.steps,
            own=self.silos is not None,
        )

    def shows_others(self) -> str | None:
        """Why what may be shown of one unit would tell budgets of others; None if it does not."""
        from fedspend.records.disclosure import shows_others

        return shows_others(self)

    def bound(self, slack: float = 0.0) -> RecordPlan:
        """A plan of one made-up record that costs no less than any record of this one."""
        from fedspend.records.disclosure import bound

        return bound(self, slack)

    def plot(self) -> Drawing:
        """Epsilon spent and sampling rates by round: `plan.plot().save("plan.png")`."""
        from fedspend.report.drawing import drawing
        from fedspend.report.records_plot import record_plan_figure

        return drawing(lambda: record_plan_figure(self))

    def part_of(self, client: int) -> RecordPlan:
        """What this plan says about one client's records."""
        from fedspend.records.disclosure import part_of

        return part_of(self, client)

    def covers(self, own: AnyPlan) -> bool:
        """Of a bound: whether no record in `own` can cost more than it."""
        from fedspend.records.disclosure import covers

        return own.unit == self.unit and covers(self, RecordPlan.expect(own, "a plan of records"))

    def planned_facts(self, round: int) -> dict[str, Any]:
        """How many records can be sampled in each local step under a filter; empty for a filter by
        norms, where that is private.
        """
        if not self.filters or self.by_norm:
            return {}
        return {"active": self.active_by_step.reshape(self.rounds, -1)[round].tolist()}

    def extended(
        self,
        begun: int,
        more: int,
        *,
        spent: Mechanisms,
        elsewhere: Mechanisms,
        of_unit: IntArray,
        lifetime: FloatArray,
    ) -> RecordPlan:
        """The plan with `more` rounds, and less sampling in all rounds after `begun`."""
        from fedspend.records.replanning import extended_records

        if self.silos is not None:
            raise InvalidInput(
                "every silo has planned its own records for these rounds, so the server cannot add "
                "any; drop --replan, or start another run"
            )
        return extended_records(self, begun, more, spent, Past(elsewhere, of_unit), lifetime)


def plan_records(
    epsilons: Any,
    owner: Any,
    terms: Terms,
    *,
    clients: Sequence[str],
    records: Sequence[str] | None = None,
    clip: float = 1.0,
    wanted: Wanted | None = None,
    left_out: BoolArray | None = None,
    past: Past | None = None,
) -> RecordPlan:
    """The plan for one budget per record. `owner` is the index of each record's client; `wanted`
    says how budgets become rates.

    Records that are `left_out` (their lifetime budget is used up) keep their place at rate 0.
    `past` is what was spent before, according to a ledger: `epsilons` are then lifetime budgets,
    and past and plan together stay within them; `RecordPlan.epsilon` is what the plan alone spends.
    """
    budget = np.atleast_1d(check_budgets(epsilons)).ravel()
    check_planned_delta(terms.delta)
    owner = np.asarray(owner, dtype=np.int64)
    if owner.shape != budget.shape:
        raise InvalidInput(
            f"every record needs a budget and a client: got {budget.size} budgets for {owner.size} "
            "records"
        )
    wanted = wanted or Wanted()
    if past is None:
        # who is left out sets nobody else's rate
        here = np.ones(budget.size, dtype=bool)
        if left_out is not None and not left_out.all():
            here = ~left_out
        of_record = np.zeros(budget.size, dtype=np.int64)
        table, short, of_record[here] = rate_table(budget[here], terms, wanted)
    else:
        table, short, of_record = table_on_top(budget, past, terms, wanted, left_out)
    if left_out is not None and left_out.any():
        none = np.zeros(terms.rounds)
        table, short = (
            np.column_stack([table, none]),
            short if short is None else np.column_stack([short, none]),
        )
        of_record = np.where(left_out, table.shape[1] - 1, of_record)
    epsilon, order = claims(table, terms, short)
    names = tuple(map(str, range(budget.size))) if records is None else tuple(records)
    shape = table.shape
    return RecordPlan(
        records=names,
        owner=owner,
        clients=tuple(clients),
        budget=budget.copy(),
        schedules=Schedules(
            noise_multiplier=np.full(shape, terms.noise_multiplier),
            sampling_rate=table,
            clip_norm=np.full(shape, float(clip)),
            epsilon=epsilon,
            order=order,
            of_client=of_record,
        ),
        terms=terms,
        clip=float(clip),
        parameters=wanted.parameters(),
        short=short,
    )


def claims(
    table: FloatArray, terms: Terms, short: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Epsilon of each column of the rates `table` (rounds, classes), and the order it is read at; 0
    for a column that is never sampled.
    """
    orders = np.asarray(ORDERS)
    steps = np.full(table.shape, float(terms.local_steps)) if short is None else short
    curves, at = distinct_rounds(table, steps, terms, orders)
    total = sum((curves[at[t]] for t in range(1, len(at))), curves[at[0]])
    reading = total + conversion_cost(orders, terms.delta)
    best = reading.argmin(axis=1)
    used = table.max(axis=0) > 0
    epsilon = np.where(used, np.maximum(reading[np.arange(best.size), best], 0.0), 0.0)
    return epsilon, orders[best]


def distinct_rounds(
    rate: FloatArray, steps: FloatArray, terms: Terms, orders: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Rényi divergence of each distinct round, (distinct, orders), and the index of the one that
    each (round, class) is.
    """
    first, at = distinct_rows(rate.ravel(), steps.ravel())
    inner = steps.ravel()[first, None] * rdp(rate.ravel()[first], terms.noise_multiplier, orders)
    return two_stage(inner, np.array(terms.client_rate), orders), at.reshape(rate.shape)


def check_record_plan(plan: RecordPlan) -> None:
    """Refuse a plan whose parts do not fit together. `verify` checks that it keeps its promise."""
    s, records = plan.schedules, len(plan.records)
    if not (plan.owner.shape == plan.budget.shape == s.of_client.shape == (records,)):
        raise InvalidInput(
            f"the plan lists {records} records, {plan.budget.size} budgets and {plan.owner.size} "
            "owners"
        )
    if s.rounds != plan.terms.rounds or s.count < 1:
        raise InvalidInput(
            f"the plan's tables have {s.rounds} rounds, but its terms {plan.terms.rounds}"
        )
    if not (records >= 1 and s.of_client.min() >= 0 and s.of_client.max() < s.count):
        raise InvalidInput(
            "the plan has no records, or a record refers to a class that does not exist"
        )
    if not (plan.owner.min() >= 0 and plan.owner.max() < len(plan.clients)):
        raise InvalidInput(
            f"a record belongs to client number {int(plan.owner.max())}, but there are "
            f"{len(plan.clients)}"
        )
    if len(set(plan.records)) < records:
        raise InvalidInput("two records have the same name; every record needs its own name")
    check_client_ids(plan.clients)
    check_budgets(plan.budget)
    Terms.checked(**vars(plan.terms))
    check_clip(plan.clip)
    if not np.all((s.sampling_rate >= 0) & (s.sampling_rate <= 1)):
        raise InvalidInput("every rate in a plan must be from 0 to 1")
    if not (
        np.all(s.noise_multiplier == plan.terms.noise_multiplier)
        and np.all(s.clip_norm == plan.clip)
    ):
        raise InvalidInput(
            "a record-level plan must have a single noise multiplier and a single clip"
        )
    if not np.all(np.isfinite(s.epsilon) & (s.epsilon >= 0)):
        raise InvalidInput("every claimed epsilon must be finite and at least 0")
    if not np.all(np.isin(s.order, check_orders(plan.orders))):
        raise InvalidInput("every claim must be read at one of the plan's orders")
    check_steps(s.sampling_rate, plan.short, plan.terms, by_norm=plan.by_norm)
    idle = np.setdiff1d(np.arange(len(plan.clients)), np.delete(plan.owner, plan.left_out))
    if idle.size:
        name = plan.clients[int(idle[0])]
        others = f" and {idle.size - 1} more" if idle.size > 1 else ""
        raise InvalidInput(
            f"no record of client {name!r}{others} can be sampled: no rate can meet its budgets, "
            "or what is left of them; choose more noise (fedspend records noise suggests one), "
            "larger budgets or fewer steps, or leave the client out"
        )
