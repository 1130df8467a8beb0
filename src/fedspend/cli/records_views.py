"""How `fedspend records` shows rates and noise: as tables, and as documents for --json."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from fedspend.basics.arrays import FloatArray
from fedspend.basics.words import counted
from fedspend.cli.tables import figures, frame
from fedspend.cli.terminal import console
from fedspend.errors import Refused
from fedspend.records import (
    OBSERVERS,
    SAFE_METHODS,
    Fit,
    Overspending,
    Suggestion,
    Terms,
    fit_curve,
)
from fedspend.records.budget_file import RecordBudgets
from fedspend.records.summary import idle_clients, summarise

NAMED = 5  # most records or clients named in a sentence; --json and --output have all


def fit_or_none(terms: Terms) -> Fit | None:
    """The paper's fit, or None if it cannot be made."""
    try:
        return fit_curve(terms)
    except Refused:
        return None


def rates_document(
    budgets: RecordBudgets,
    terms: Terms,
    method: str,
    rate: FloatArray,
    spent: dict[str, FloatArray],
    fit: Fit | None,
) -> dict[str, Any]:
    over = spent["public"] > budgets.budget * (1 + 1e-9)
    return {
        "method": method,
        **vars(terms),
        "unit": "record",
        "records": len(budgets.records),
        "distinct_rates": int(np.unique(rate).size),
        "expected_sampled": float(rate.sum()),
        "overspent": int(over.sum()),
        "worst_overspending": float((spent["public"] / budgets.budget).max())
        if over.any()
        else None,
        "left_out": [budgets.records[n] for n in np.flatnonzero(rate == 0)],
        "idle_clients": idle_clients(budgets.clients, rate),
        "levels": [vars(level) for level in summarise(budgets.budget, rate, spent)],
        "fit": None if fit is None else fit_document(fit, budgets.budget, terms),
    }


def fit_document(fit: Fit, budget: FloatArray, terms: Terms) -> dict[str, Any]:
    told = Overspending.of(budget, fit.rates(budget), terms)
    about = {name: getattr(fit, name) for name in ("a", "b", "c", "r_squared")}
    return about | {
        "would_overspend_share": told.share,
        "worst_overspending": told.worst,
        "worst_budget": told.worst_budget,
    }


def show_rates(document: dict[str, Any]) -> None:
    out = console()
    facts = [
        (
            "records",
            f"{document['records']:,}, {counted(document['distinct_rates'], 'distinct rate')}, "
            f"method {document['method']}",
        ),
        (
            "terms",
            f"{counted(document['rounds'], 'round')} of "
            f"{counted(document['local_steps'], 'step')}, client rate "
            f"{document['client_rate']:g}, noise {document['noise_multiplier']:g}, delta "
            f"{document['delta']:g}",
        ),
        ("protects", "one record: its gradients become zero, everything else stays (zero-out)"),
        (
            "a step",
            f"samples {figures(document['expected_sampled'])} records on average, over all clients",
        ),
    ]
    for name, words in facts:
        out.print(Text.assemble((f"{name:<12}", "bold"), words))
    out.print()
    table = frame()
    differs = document["client_rate"] < 1
    observers = OBSERVERS if differs else OBSERVERS[:1]
    for heading in (
        "budget",
        "records",
        "rate",
        *(f"spent\n{name}" for name in observers),
        "unspent",
        "left out",
    ):
        table.add_column(heading, justify="right")
    for level in document["levels"]:
        table.add_row(
            between(*level["budget"]),
            f"{level['records']:,}",
            between(level["rate"][0], level["rate"][2]),
            *(figures(level["spent"][name]) for name in observers),
            f"{100 * level['unspent']:.2f}%",
            f"{level['left_out']:,}" if level["left_out"] else "",
        )
    out.print(table)
    out.print()
    for sentence, style in sentences(document):
        out.print(Text(sentence, style=style))


def sentences(document: dict[str, Any]) -> list[tuple[str, str]]:
    said = []
    if document["overspent"]:
        said.append(
            (
                f"OVER BUDGET: {document['overspent']:,} of {document['records']:,} records, the "
                f"worst by a factor of {document['worst_overspending']:.3g}. Do not train with "
                "these rates; use method exact.",
                "bold red",
            )
        )
    if document["left_out"]:
        count, names = counted(len(document["left_out"]), "record"), named(document["left_out"])
        why = (
            "no rate can meet the budget"
            if document["method"] in SAFE_METHODS
            else "the fit gives nothing"
        )
        said.append((f"Left out at rate 0 because {why}: {count}: {names}.", ""))
    if document["idle_clients"]:
        text = (
            f"Clients without any usable record: {named(document['idle_clients'])}. Leave them "
            "out, or choose more noise."
        )
        said.append((text, "bold"))
    if document["client_rate"] == 1:
        said.append(
            ("Every client takes part in every round, so all observers learn equally much.", "dim")
        )
    said.append((fit_sentence(document["fit"]), "dim"))
    said += [
        (f"{word}: {document[key]}", "")
        for word, key in (("Rates", "saved"), ("Plot", "plot"))
        if document[key]
    ]
    return said


def fit_sentence(fit: dict[str, Any] | None) -> str:
    if fit is None:
        return "The paper's curve fit (scf) cannot be made for these terms."
    curve = (
        f"epsilon ~ exp({fit['a']:.4g} q {fit['b']:+.4g}) {fit['c']:+.4g}, R^2 "
        f"{fit['r_squared']:.4f}"
    )
    if fit["would_overspend_share"] == 0:
        return f"The paper's fit: {curve}; it would overspend none of these budgets."
    worst = f"up to {fit['worst_overspending']:.3g} times (epsilon {fit['worst_budget']:.3g})"
    return (
        f"The paper's fit: {curve}; it would overspend {100 * fit['would_overspend_share']:.0f}% "
        f"of these budgets, {worst}."
    )


def named(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def between(low: float, high: float) -> str:
    first, last = f"{low:.4g}", f"{high:.4g}"
    return first if first == last else f"{first}–{last}"


def noise_document(told: Suggestion) -> dict[str, Any]:
    finite = [
        vars(one) | {"step_noise": one.step_noise if np.isfinite(one.step_noise) else None}
        for one in told.candidates
    ]
    return {"noise_multiplier": told.noise_multiplier, "candidates": finite}


def show_noise(document: dict[str, Any]) -> None:
    out, table = console(), frame()
    for heading in (
        "noise\nmultiplier",
        "mean\nrate",
        "batch of\na client",
        "noise in\na step",
        "left\nout",
        "always\nin",
    ):
        table.add_column(heading, justify="right")
    for one in document["candidates"]:
        best = one["noise_multiplier"] == document["noise_multiplier"]
        noise = "—" if one["step_noise"] is None else figures(one["step_noise"])
        shares = (f"{100 * one[key]:.0f}%" for key in ("left_out", "always_in"))
        cells = (
            figures(one["noise_multiplier"], "#.3g"),
            figures(one["mean_rate"], "#.3g"),
            figures(one["expected_batch"], "#.3g"),
            noise,
        )
        table.add_row(*cells, *shares, style="bold" if best else None)
    out.print(table)
    out.print()
    note = (
        "Noise in a step: noise multiplier divided by expected batch, per coordinate, in units of "
        "the clip; root mean square over clients."
    )
    out.print(Text(note, style="dim"))
    out.print(
        Text(
            f"Suggested noise multiplier: {document['noise_multiplier']:g} (from budgets alone)",
            style="bold",
        )
    )
    if document["plot"]:
        out.print(Text(f"Plot: {document['plot']}"))
