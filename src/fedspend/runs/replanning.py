"""Planning the rest of a run anew, after rounds were lost.

A round that was reserved and whose release is gone has been paid for. Without `--replan` the run has one round less. With it, what
is left of the run's budget is spread over as many rounds as are still missing: the full number of releases, a little more noise in
each. (For records, a little less sampling: `records.replanning`.)

Guarantee: rounds that were begun stay as they are; the run as a whole claims no more than it did; the ledger admits the new plan
like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedspend.accounting.calibration import seal, starting_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, distinct_rows
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.spending import histories
from fedspend.planning.plan import Plan, harmonic_mean
from fedspend.planning.policies import Spending, Terms, by_itself
from fedspend.planning.schedules import Schedules
from fedspend.records.planning import AnyPlan, RecordPlan
from fedspend.records.remaining import Past
from fedspend.records.replanning import extended_records
from fedspend.runs.directory import RunDirectory


def plan_anew(folder: Path, ledger: Ledger, plan: AnyPlan, rounds: int, on_note: Callable[[str], None]) -> AnyPlan:
    """The plan of the run in `folder`, long enough for `rounds` releases in spite of those that were lost."""
    directory = RunDirectory(folder)
    account = directory.account = directory.account_in(ledger)
    if not account.admitted or ledger.simulation:  # a simulation repeats what was lost
        on_note("no round was lost: the plan stays as it is")
        return plan
    done = found.done if (found := directory.progress()) else 0
    if account.was_reserved(done) and directory.kept(done) is None:
        account.lose(done)
    run = account.run
    lost = sum(state == "lost" for state in run.rounds.values())
    missing = rounds + lost - plan.rounds
    if missing <= 0:
        on_note("no round was lost: the plan stays as it is")
        return plan
    if run.next_round >= plan.rounds:
        on_note("every planned round was begun, so no budget is left to make up for lost ones")
        return plan
    others = histories(ledger.state, run.unit, held=True, without=run.id)
    lifetime = ledger.accounts(run.unit).budget[run.accounts]
    longer: AnyPlan
    if isinstance(plan, RecordPlan):
        elsewhere = Past(others.mechanisms, others.of_account[run.accounts])
        longer = extended_records(plan, run.next_round, missing, run.mechanisms(held=False), elsewhere, lifetime)
    else:
        longer = extended(plan, run.next_round, missing, others.for_accounts(run.accounts), lifetime)
    told = "1 lost round is" if missing == 1 else f"{missing} lost rounds are"
    on_note(f"{told} made up for: rounds {run.next_round + 1} to {longer.rounds} were planned anew")
    return longer


def extended(plan: Plan, begun: int, more: int, others: Mechanisms, lifetime: FloatArray) -> Plan:
    """`plan` with `more` rounds at its end and the noise of all rounds after `begun` scaled up, so that it claims what it did.

    `others` is what each client has spent and holds elsewhere; with it, the plan stays within each `lifetime` budget.
    """
    if plan.accountant != "rdp":
        raise InvalidInput(f"planning anew goes by accountant 'rdp', and this plan is by {plan.accountant!r}; drop --replan")
    old, orders = plan.schedules, WHOLE_ORDERS if others.discrete.any() else plan.orders
    first, of_client = distinct_rows(old.of_client, others.alike(), lifetime)
    column = old.of_client[first]
    noise, rate = (_longer(table[:, column], more) for table in (old.noise_multiplier, old.sampling_rate))
    rest = np.arange(plan.rounds + more)[:, None] >= np.full(first.size, begun)
    scaled = fitted(noise, rate, rest, old.epsilon[column], plan.delta, Mechanisms.none(first.size), plan.orders)
    within = fitted(noise, rate, rest, lifetime[first], plan.delta, others.take(first), orders)
    noise = np.where(rest, np.maximum(scaled, within), noise)
    terms = Terms(plan.delta, float(rate.max()), plan.rounds + more, plan.orders)
    spending = by_itself(Spending(noise, rate, np.zeros(first.size), np.zeros(first.size)), terms)
    s_t = harmonic_mean(noise, np.bincount(of_client, minlength=first.size))
    schedules = Schedules(noise, rate, plan.clip * s_t[:, None] / noise, spending.epsilon, spending.order, of_client)
    return plan.replace(schedules=schedules, parameters=plan.parameters | {"planned_anew_after": begun})


def _longer(table: FloatArray, more: int) -> FloatArray:
    return np.concatenate([table, np.repeat(table[-1:], more, axis=0)])


def fitted(
    noise: FloatArray,
    rate: FloatArray,
    rest: BoolArray,
    budget: FloatArray,
    delta: float,
    past: Mechanisms,
    orders: tuple[float, ...],
) -> FloatArray:
    """Scale the `rest` of each schedule until past and schedule together spend the budget exactly.

    Which order binds depends on the scale, so the two are found in turn; every turn is a valid plan, and two or three settle it.
    """
    cost = starting_cost(budget.size, orders, delta, past)
    binding = np.full(budget.size, -1)
    for _ in range(8):
        best = (Mechanisms.of_schedules(noise, rate).curves(orders) + cost).argmin(axis=1)
        if np.array_equal(best, binding):
            break
        binding = best
        noise = seal(noise, rate, rest, budget, binding, np.asarray(orders), delta, past=past).noise
    return noise
