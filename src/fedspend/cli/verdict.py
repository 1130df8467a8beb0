"""How `fedspend verify` shows its findings: verdict, checks, and what observers would learn."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from fedspend.basics.words import counted
from fedspend.cli.tables import IF_CENTRAL, figures, frame, short_hash, size
from fedspend.cli.terminal import console
from fedspend.planning.protocol import AnyPlan
from fedspend.report.certificate import PROMISED
from fedspend.verification.observers import OF_DISTRIBUTED
from fedspend.verification.verify import Check, Verification

MOST_BUDGETS = 6  # most budget columns in a row
MOST_NAMED = 10


def show_verdict(plan: AnyPlan, result: Verification) -> None:
    out = console()
    word, style, sentence = (
        ("PASS", "bold green", "every claim was reproduced and is within its budget")
        if result.ok
        else (
            "FAIL",
            "bold red",
            f"{counted(result.failure_count, 'failure')}; do not train with this plan",
        )
    )
    out.print(Text.assemble((word, style), f"  {sentence}"))
    out.print(
        Text(
            f"plan {short_hash(plan)}, {size(plan)}, {plan.headline}, delta {plan.delta:g}",
            style="dim",
        )
    )
    out.print()
    show_checks(out, result)
    show_margin(out, plan, result)
    if "ledger" in plan.parameters:
        out.print(
            Text.assemble(
                ("ledger ", "bold"),
                "budgets are for a lifetime, and claims are what this plan adds; train checks both "
                "together with what was spent before",
            )
        )
    if plan.left_out.size:
        some = ", ".join(plan.names[n] for n in plan.left_out[:MOST_NAMED]) + (
            " ..." if plan.left_out.size > MOST_NAMED else ""
        )
        out.print(
            Text.assemble(
                ("left out ", "bold"),
                f"{counted(plan.left_out.size, plan.unit)} that cannot pay for any step: {some}",
            )
        )
    for warning in result.warnings:
        out.print(Text.assemble(("warning: ", "yellow"), f"{warning}; choose a smaller delta"))
    for failure in result.failures:
        out.print(Text.assemble(("failed: ", "red"), failure))
    if result.failure_count > len(result.failures):
        out.print(
            Text(f"... and {result.failure_count - len(result.failures):,} more", style="red")
        )
    if result.observers:
        out.print()
        show_observers(out, plan, result)


def show_checks(out: Console, result: Verification) -> None:
    table = frame("check", "result", "by")
    for heading in ("looked at", "worst"):
        table.add_column(heading, justify="right")
    table.add_column("which is")
    for check in result.checks:
        verdict = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        by = "comparison" if check.accountant == "none" else check.accountant
        table.add_row(
            Text(check.name),
            verdict,
            Text(by),
            f"{check.schedules:,}",
            worst(check),
            Text(check.meaning),
        )
    out.print(table)
    out.print()


def worst(check: Check) -> str:
    if not math.isfinite(check.worst):
        return "not finite"
    return "0" if check.worst == 0 else f"{check.worst:.4g}"


def show_margin(out: Console, plan: AnyPlan, result: Verification) -> None:
    """The slack between the pessimistic PLD epsilon and the budget, where it is smallest."""
    if plan.discrete and result.pld_schedules == 0:
        out.print(
            Text(
                "no PLD check: the plan is for discrete noise, whose guarantee rests on the Rényi "
                "bound at whole orders"
            )
        )
        return
    if math.isfinite(result.worst_margin):
        how = (
            f"over {result.pld_schedules:,} of {result.schedules:,} distinct schedules"
            if result.sampled
            else f"over all {plan.unit}s"
        )
        out.print(
            Text.assemble(
                ("worst margin ", "bold"),
                f"{100 * result.worst_margin:.2f}% (1 - PLD epsilon / budget, smallest {how})",
            )
        )
    else:
        out.print(Text("worst margin: none, because PLD could account no schedule"))
    if result.sampled and result.pld_schedules:
        out.print(
            Text(
                "PLD checked the extremes and a random sample; for the others the guarantee rests "
                "on the reproduced Rényi bound."
            )
        )


def show_observers(out: Console, plan: AnyPlan, result: Verification) -> None:
    """Epsilon against every observer; the plan promises it only against its own."""
    budgets = [budget for budget, _ in result.observers[0].by_budget]
    by_budget = 0 < len(budgets) <= MOST_BUDGETS
    table = frame("epsilon against")
    for heading in (
        [f"budget\n{budget:.4g}" for budget in budgets]
        if by_budget
        else ["smallest", "median", "largest"]
    ):
        table.add_column(heading, justify="right")
    table.add_column("who")
    for observer in result.observers:
        values = (
            [value for _, value in observer.by_budget]
            if by_budget
            else [observer.smallest, observer.median, observer.largest]
        )
        table.add_row(Text(observer.name), *map(figures, values), Text(observer.assumption))
    out.print(table)
    out.print()
    promised = PROMISED[plan.promised_observers]
    out.print(
        Text(
            f"{promised} what the plan promises; the rest shows what is lost when its assumption "
            "fails.",
            style="dim",
        )
    )
    if any(one.assumption.startswith(OF_DISTRIBUTED) for one in result.observers):
        out.print(Text(IF_CENTRAL, style="dim"))
