"""How the command line shows a plan: one view for plans of clients, one for plans of records.

Heavy parts (tables of records, plots) are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.text import Text

from fedspend.basics.words import counted
from fedspend.cli.tables import short_hash, show_groups, size
from fedspend.planning.influence import expectation
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan, Unit
from fedspend.records.planning import SILOS, RecordPlan
from fedspend.records.verification import NO_COLLUDERS
from fedspend.report.groups import Grouping, accountant_words

P = TypeVar("P")
Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class View(Generic[P]):
    """What the command line says about plans of one unit."""

    protects: str
    against: str
    # what a plan within a ledger does with the budgets; {past} says what was spent before
    lifetime: str
    terms: Callable[[P], Facts]  # header lines: how budgets are spent
    show: Callable[[Console, P, Grouping], None]  # the tables of `fedspend plan`
    numbers: Callable[[P, Grouping], dict[str, Any]]  # the numbers of --json
    draw: Callable[[P, str, Sequence[str] | None], None]  # the picture of --plot
    verdict: Callable[[P], dict[str, Any]]  # what `fedspend verify --json` adds
    no_colluders: str | None = None  # why colluders make no sense here, if they do not


def client_terms(plan: Plan) -> Facts:
    method = plan.parameters.get("method")
    facts = [("policy", plan.policy + (f" (method {method})" if method else ""))]
    if (expected := plan.parameters.get("expected")) is not None:
        asks = " (fedspend glossary contraction)" if "contraction" in expected else ""
        facts.append(("expects", expectation(expected) + asks))
    if "clip_factors" in plan.parameters:
        facts.append(("clip", clip_course(plan)))
    return facts


def clip_course(plan: Plan) -> str:
    factors, dropped = plan.clip_factors, plan.dropped_rounds
    words = f"planned by round, {plan.clip * factors[0]:.3g} to {plan.clip * factors[-1]:.3g}"
    if dropped:
        words += (
            f"; {counted(dropped, 'round')} at the end left out, since the learning rate and with "
            "it the clip would be 0"
        )
    return words


def client_numbers(plan: Plan, grouping: Grouping) -> dict[str, Any]:
    from fedspend.report.numbers import plan_numbers

    return plan_numbers(plan, grouping)


def draw_clients(plan: Plan, path: str, labels: Sequence[str] | None) -> None:
    from fedspend.report.plots import spending_plot

    spending_plot(plan, path, labels)


def record_terms(plan: RecordPlan) -> Facts:
    terms = plan.terms
    rates = "one rate for all" if plan.filters else f"rates {plan.parameters['rates']}"
    return [
        ("method", f"{plan.method_words} ({plan.policy}, {rates})"),
        (
            "a round",
            f"{counted(terms.local_steps, 'step')} at noise multiplier {terms.noise_multiplier:g} "
            f"and clip {plan.clip:g}; a client takes part with probability {terms.client_rate:g}",
        ),
    ]


def record_numbers(plan: RecordPlan, grouping: Grouping) -> dict[str, Any]:
    from fedspend.report.record_numbers import record_plan_numbers

    return record_plan_numbers(plan, grouping)


def show_records(out: Console, plan: RecordPlan, grouping: Grouping) -> None:
    from fedspend.cli.plan_records import show

    show(out, plan, grouping)


def draw_records(plan: RecordPlan, path: str, _labels: Sequence[str] | None) -> None:
    from fedspend.report.records_plot import record_plan_plot

    record_plan_plot(plan, path)


CLIENTS: View[Plan] = View(
    protects=(
        "whole clients: one client's contribution in all rounds becomes zero, everything else "
        "stays (zero-out)"
    ),
    against="other clients and the public, who see every model but not who took part",
    lifetime="with {past}, this plan spends all that Rényi curves leave of them",
    terms=client_terms,
    show=show_groups,
    numbers=client_numbers,
    draw=draw_clients,
    verdict=lambda _: {},
)
RECORDS: View[RecordPlan] = View(
    protects="single records: one record's gradients become zero, everything else stays (zero-out)",
    against="other clients, the public, and a server that sees who takes part but does not choose",
    lifetime="on top of {past}, this plan stays within them",
    terms=record_terms,
    show=show_records,
    numbers=record_numbers,
    draw=draw_records,
    verdict=lambda plan: {"left_out": [plan.records[n] for n in plan.left_out]},
    no_colluders=NO_COLLUDERS,
)
AT_SILOS = replace(
    RECORDS,
    protects=(
        "single records, whose budgets stay at their silos; shown is the cost of a record that is "
        "sampled in every step"
    ),
    verdict=lambda plan: {"silos": dict(plan.silos or {})},
)
VIEWS: dict[Unit, View[Any]] = {"client": CLIENTS, "record": RECORDS}


def view_of(plan: AnyPlan) -> View[Any]:
    return AT_SILOS if SILOS in plan.parameters else VIEWS[plan.unit]


def show_header(out: Console, plan: AnyPlan) -> None:
    view = view_of(plan)
    facts = [
        (
            "plan",
            f"{short_hash(plan)}, {size(plan)}, "
            f"{counted(plan.schedules.count, 'distinct schedule')}",
        ),
        *view.terms(plan),
        ("accountant", f"{accountant_words(plan)}, delta {plan.delta:g}"),
        ("protects", view.protects),
        ("against", view.against),
    ]
    if "ledger" in plan.parameters:
        past = f"what was spent up to entry {plan.parameters['ledger'].partition(':')[0]}"
        facts.append(("ledger", f"budgets are for a lifetime: {view.lifetime.format(past=past)}"))
    for name, words in facts:
        out.print(Text.assemble((f"{name:<12}", "bold"), words))
    out.print()
