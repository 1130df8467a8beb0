"""The plot of a ledger: what is spent of each budget, what open runs hold, and what is free."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedspend.basics.files import write_whole
from fedspend.basics.words import counted
from fedspend.ledger.spending import Balances
from fedspend.report.plots import LOOK

SPENT, RESERVED, FREE = "#0072B2", "#E69F00", "#dddddd"
NAMED = 40  # up to this many accounts get a bar and a name each; more are drawn as areas


def balance_plot(balances: Balances, path: str | Path, *, unit: str, simulation: bool) -> None:
    """Draw to a .png, .svg or .pdf."""
    with rc_context(LOOK):
        figure = balance_figure(balances, unit=unit, simulation=simulation)
        buffer = io.BytesIO()
        kind = Path(path).suffix.lower().removeprefix(".")
        figure.savefig(
            buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
        )
    write_whole(Path(path), buffer.getvalue())  # readable by the owner only: balances are sensitive


def balance_figure(balances: Balances, *, unit: str, simulation: bool) -> Figure:
    figure = _bars(balances) if len(balances.names) <= NAMED else _areas(balances, unit)
    note = f"{counted(len(balances.names), unit)}, epsilon by composition" + (
        "; simulated accounts" if simulation else ""
    )
    figure.suptitle(f"Lifetime budgets: {note}", x=0.01, ha="left", fontsize=11, color="#333333")
    return figure


def _bars(balances: Balances) -> Figure:
    rows = np.arange(len(balances.names))[::-1]
    figure = Figure(figsize=(8, 1.3 + 0.27 * rows.size), layout="constrained")
    axes = figure.add_subplot()
    free = np.maximum(balances.budget - balances.total, 0)
    left = np.zeros(rows.size)
    for values, colour, label in (
        (balances.spent, SPENT, "spent"),
        (balances.reserved, RESERVED, "held by open runs"),
        (free, FREE, "free"),
    ):
        axes.barh(rows, values, left=left, color=colour, label=label, height=0.72)
        left = left + values
    axes.set_yticks(rows, [name if len(name) <= 24 else name[:23] + "…" for name in balances.names])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("epsilon")
    _legend(figure)
    return figure


def _areas(balances: Balances, unit: str) -> Figure:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    order = np.argsort(balances.budget, kind="stable")
    x = np.arange(order.size)
    lower = np.zeros(order.size)
    for upper, colour, label in (
        (balances.spent, SPENT, "spent"),
        (balances.total, RESERVED, "held by open runs"),
        (balances.budget, FREE, "free"),
    ):
        top = np.maximum(upper[order], lower)
        axes.fill_between(x, lower, top, step="mid", color=colour, label=label, linewidth=0)
        lower = top
    axes.set_xlabel(f"{unit}s, by budget")
    axes.set_ylabel("epsilon")
    axes.set_xlim(0, max(1, order.size - 1))
    axes.set_ylim(0, None)
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False)
