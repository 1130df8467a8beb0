"""How a report shows a plan: one view for plans of clients, one for plans of records.

Guarantee: a report states what the plan promises and nothing else, because everything it says about
a unit is in this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fedspend.basics.words import counted
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan, Unit
from fedspend.records.planning import SILOS, RecordPlan
from fedspend.report.panels import Panel, client_schedule, record_schedule, silo_schedule
from fedspend.report.run_data import RunData

P = TypeVar("P")


@dataclass(frozen=True)
class View(Generic[P]):
    """What a report says about plans of one unit."""

    protected: str  # what one unit is
    zeroed: str  # the other world of the adjacency, as a clause after "if"
    observer: str  # whom it is protected against
    real_run: str  # the banner of a verified real run
    method: Callable[[RunData, P], str]
    sizes: Callable[[P], list[str]]
    schedule: Callable[[RunData, P], list[Panel]]
    # where budgets are elsewhere: how strong the guarantee is, and who knows the rest
    strength: Callable[[P], str] | None = None
    elsewhere: Callable[[P], list[str]] = lambda _: []


CLIENTS: View[Plan] = View(
    protected="one client, with everything it holds",
    zeroed=(
        "its contributions in all rounds became zero, with the list of clients, the budgets and "
        "the plan as they are (zero-out)"
    ),
    observer="other clients and the public; participation hidden",
    real_run=(
        "Noise and cohorts were drawn from the operating system's randomness. The budgets hold "
        "against other clients and the public as long as nobody learns who took part. This page "
        "shows the clients' budgets: ask before you publish it."
    ),
    method=lambda run, _: run.method,
    sizes=lambda plan: [counted(len(plan.clients), "client")],
    schedule=client_schedule,
)
RECORDS: View[RecordPlan] = View(
    protected="one record",
    zeroed=(
        "its gradients in all rounds became zero, with the lists of clients and records, the "
        "budgets and the plan as they are (zero-out)"
    ),
    observer="the public, other clients, and a server that does not choose who takes part",
    real_run=(
        "Noise, cohorts and record samples were drawn from the operating system's randomness. "
        "Every record's budget holds against the public, other clients, and a server that sees "
        "who takes part. Ask before you publish this page: it shows budgets."
    ),
    method=lambda _, plan: plan.method_words,
    sizes=lambda plan: [counted(len(plan.clients), "client"), counted(len(plan.records), "record")],
    schedule=record_schedule,
)


def strength_at_silos(plan: RecordPlan) -> str:
    return (
        "every record has its own epsilon, at most its budget, which its silo alone knows; for any "
        f"record at all, whatever its budget, it is at most {float(plan.epsilon.max()):.4g}"
    )


def who_checked(plan: RecordPlan) -> list[str]:
    """What a server cannot check, and who did."""
    handed_in = ", ".join(f"{silo} {one[:12]}" for silo, one in (plan.silos or {}).items())
    return [
        "The budgets of records are at their silos. Each silo planned its own records, had that "
        "plan verified there by a second accountant, and keeps their account; what is checked here "
        "is the cost of a record that is sampled in every step, with the noise and clip of the "
        "terms. That a silo keeps to its plan is for the silo to know, and for whoever it shows "
        f"the plan to, which must open its certificate: {handed_in}."
    ]


AT_SILOS = replace(
    RECORDS,
    zeroed=(
        "its gradients in all rounds became zero, with the list of silos, each silo's list of "
        "records, budgets and plan as they are (zero-out)"
    ),
    observer="the public, other silos, and a server that does not choose who takes part",
    real_run=(
        "Every silo drew noise and record samples from its own operating system's randomness. This "
        "page shows public terms and no record's budget; what each record spends is in the account "
        "of its silo."
    ),
    sizes=lambda plan: [counted(len(plan.clients), "silo")],
    schedule=silo_schedule,
    strength=strength_at_silos,
    elsewhere=who_checked,
)
VIEWS: dict[Unit, View[Any]] = {"client": CLIENTS, "record": RECORDS}


def view_of(plan: AnyPlan) -> View[Any]:
    return AT_SILOS if SILOS in plan.parameters else VIEWS[plan.unit]


def schedule(run: RunData) -> list[Panel]:
    """The charts of the plan's rounds."""
    return [] if run.plan is None else view_of(run.plan).schedule(run, run.plan)
