"""How a report shows a plan: one view for plans of clients, one for plans of records.

Guarantee: a report states what the plan promises and nothing else, because everything it says about
a unit is in this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedspend.basics.words import counted
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan, Unit
from fedspend.records.planning import RecordPlan
from fedspend.report.panels import Panel, client_schedule, record_schedule
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
VIEWS: dict[Unit, View[Any]] = {"client": CLIENTS, "record": RECORDS}


def view_of(plan: AnyPlan) -> View[Any]:
    return VIEWS[plan.unit]


def schedule(run: RunData) -> list[Panel]:
    """The charts of the plan's rounds."""
    return [] if run.plan is None else view_of(run.plan).schedule(run, run.plan)
