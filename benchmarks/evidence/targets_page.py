"""The blocks of docs/results/time.md on `optimal` and on the best setting, from results files."""

from __future__ import annotations

from itertools import product
from typing import Any

import influence
import numpy as np
import over_time
import targets
from experiment import (
    SEEDS,
    Arm,
    Finished,
    Unfinished,
    difference,
    key_of,
    outcome,
    tuned,
)
from over_time_page import COLUMNS
from tables import accuracy, gain, markdown
from targets import CELLS, Cell

from fedspend.runs.comparison import interval

NAMES = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST", "adult": "Adult"}


def short(axis: str) -> str:
    """The name of an axis in a table."""
    return axis.rpartition(".")[2].removesuffix("_average").replace("_", " ")


def said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def title(cell: Cell) -> str:
    return f"{NAMES[cell.data]}, {cell.budgets}"


def measured(results: Finished, cell: Cell) -> tuple[dict[str, Any], list[float]] | None:
    """What the search found, and its accuracies on the test rows; None if it has not been run."""
    search = results.found.get(targets.search_key(cell))
    if search is None:
        return None
    lines = [
        results.found.get(key_of(targets.of_seed(cell, search["best"], seed))) for seed in SEEDS
    ]
    done = [100 * line["accuracy"] for line in lines if line is not None]
    return (search, done) if len(done) == len(SEEDS) else None


def baseline(results: Finished, cell: Cell) -> str:
    """FedAvg without privacy."""
    found = outcome(results, targets.without_privacy(cell))
    return "-" if found is None else accuracy(*interval(found.percent()))


def table(results: Finished) -> str:
    rows = []
    for cell in CELLS:
        found = measured(results, cell)
        aim = f"{cell.target:g}" + (", or FedAvg - 1" if cell.data == "adult" else "")
        if found is None:
            rows.append([title(cell), aim, "-", "-", baseline(results, cell), "-", "-"])
            continue
        search, values = found
        mean, half = interval(np.array(values))
        target = cell.target
        free = outcome(results, targets.without_privacy(cell))
        if cell.data == "adult" and free is not None:
            target = min(target, float(free.percent().mean()) - 1)
        rows.append(
            [
                title(cell),
                aim,
                accuracy(mean, half),
                f"{mean - target:+.1f}",
                baseline(results, cell),
                settings(search["best"]),
                str(search["tried"]),
            ]
        )
    heads = ["data, budgets", "aim", "test accuracy", "to the aim", "FedAvg, no privacy"]
    return markdown([*heads, "chosen on held-out rows", "tried"], rows)


def settings(best: dict[str, Any]) -> str:
    """The setting in words, without what is the usual value."""
    usual = {"train.server_momentum": 0.0, "train.tail_average": 1}
    told = [
        f"{short(axis)} {said(value)}"
        for axis, value in best.items()
        if axis not in usual or usual[axis] != value
    ]
    return ", ".join(told)


def worth(results: Finished) -> str:
    """What single changes to the chosen setting do on the held-out rows."""
    rows = []
    for cell in CELLS:
        found = measured(results, cell)
        if found is None:
            continue
        search, _ = found
        by_axis: dict[str, list[str]] = {}
        for one in search["worth"]:
            by_axis.setdefault(one["axis"], []).append(
                f"{said(one['value'])}: {100 * one['difference']:+.1f}"
            )
        rows.append(
            [
                title(cell),
                "; ".join(f"{short(axis)} {', '.join(by_axis[axis])}" for axis in by_axis),
            ]
        )
    return markdown(["data, budgets", "points on held-out rows if one thing is changed"], rows)


def status(results: Finished) -> str:
    done = [cell for cell in CELLS if measured(results, cell) is not None]
    free = [cell for cell in CELLS if _finished(results, cell)]
    seconds = sum(
        line["seconds"] for line in results.found.values() if line["study"] == targets.STUDY
    )
    return (
        f"{len(done)} of {len(CELLS)} settings are searched and measured, {len(free)} with FedAvg "
        f"beside them ({seconds / 60:.0f} CPU minutes)."
    )


def _finished(results: Finished, cell: Cell) -> bool:
    try:
        tuned(results, targets.without_privacy(cell))
    except Unfinished:
        return False
    return outcome(results, targets.without_privacy(cell)) is not None


# --- optimal against uniform ----------------------------------------------------------------------


def against_uniform(results: Finished) -> str:
    """Points of `optimal` over uniform spending, and what the measured influence promises."""
    rows = []
    for data, schedule in product(("fashion-mnist", "mnist"), COLUMNS):
        ours, base = (
            over_time.arm(data, (2, 5, 10), schedule, spending)
            for spending in ("optimal", "uniform")
        )
        found = outcome(results, ours), outcome(results, base)
        points = "-" if None in found else gain(*difference(*found), digits=2)  # type: ignore[arg-type]
        ratio = promised(results, ours, base)
        rows.append(
            [NAMES[data], COLUMNS[schedule], points, "-" if ratio is None else f"{ratio:.2f}"]
        )
    return markdown(
        ["(2, 5, 10)", "learning rate", "`optimal` against uniform, points", "noise in the result"],
        rows,
    )


def promised(results: Finished, ours: Arm, base: Arm) -> float | None:
    """Variance of the noise in the result over uniform's, by the influence that was measured."""
    arm = next(one for one in influence.arms() if one.label == base.label)
    found = influence.left(results, arm)
    return None if found is None else influence.noise_over(found**2, ours, base)


BLOCKS = {
    "targets-optimal": against_uniform,
    "targets-status": status,
    "targets-table": table,
    "targets-worth": worth,
}
