"""What docs/results/time.md has of learning rates and clips that nobody chose for the noise."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import by_influence
import over_time
from by_influence import TUNED
from experiment import HELD_OUT, STEP, TUNING_SEED, Finished, Unfinished, outcome
from judging import Gain, over, told
from over_time import AS_SHIPPED, LARGE, SHIPPED, TIGHT
from over_time_page import COLUMNS, NAMES, Cells, cell, cells, claimed
from tables import against, markdown


def untuned(results: Finished) -> str:
    """The learning rate and clip of the shipped configs, beside tuned ones."""
    body = []
    spendings = over_time.NOT_TUNED
    for data in SHIPPED:
        tuned = cells(results, data, TIGHT)
        for schedule, label in COLUMNS.items():
            arms = {one: over_time.as_shipped(data, schedule, one) for one in spendings}
            made = {(schedule, name): outcome(results, arm) for name, arm in arms.items()}
            row = [f"{NAMES[data]}, {label}"]
            for found, chosen in ((made, AS_SHIPPED), (tuned, TUNED)):
                row += [cell(found, schedule, spending) for spending in spendings]
                row.append(by_measured_influence(results, data, schedule, chosen))
            body.append(row)
    return markdown(
        [
            "(2, 5, 10)",
            "uniform, as shipped",
            "saving, exact",
            "saving, literal",
            "`optimal`, influence measured",
            "uniform, tuned",
            "saving, exact",
            "saving, literal",
            "`optimal`, influence measured",
        ],
        body,
    )


def untuned_at_larger_budgets(results: Finished) -> str:
    """The same at the budgets of most of the paper's tables, annealed."""
    body = []
    for data in SHIPPED:
        made: Cells = {
            ("annealed", spending): outcome(
                results, over_time.as_shipped(data, "annealed", spending, LARGE)
            )
            for spending in over_time.NOT_TUNED
        }
        uniform, gained = claimed(data, LARGE)
        ours = [cell(made, "annealed", spending) for spending in over_time.NOT_TUNED]
        body.append([NAMES[data], *ours, f"*{uniform:.1f}; {gained:+.1f}*"])
    headings = ["uniform, as shipped", "saving, exact", "saving, literal", "*the paper, Table 9*"]
    return markdown([f"{LARGE}, annealed, clip fixed; last iterate", *headings], body)


def by_measured_influence(results: Finished, data: str, schedule: str, chosen: str) -> str:
    """What planning with measured influence gains over uniform spending, at the same choice."""
    cell = by_influence.Cell(data, schedule, chosen)
    return against(by_influence.outcome(results, cell), outcome(results, cell.uniform))


def by_clip(results: Finished) -> str:
    """What saving gains at the clips that both searches tried, the learning rate being the one they
    began with; annealed, on held-out training rows.
    """
    found = {}
    for data, budgets in product(over_time.DATA, over_time.BUDGETS):
        lr, middle = over_time.start(data, budgets, "annealed")
        clips = (middle * STEP**power for power in range(-3, 4))
        found[f"{NAMES[data]}, {budgets}, learning rate {lr:g}"] = {
            clip: held_out(results, data, budgets, (lr, clip)) for clip in clips
        }
    return _by_column(found, "clip")


def by_rate(results: Finished) -> str:
    """The same at the learning rates that both searches tried, at the clip that they began with.
    Without Adult, whose learning rates are of another size.
    """
    found = {}
    images = [data for data in over_time.DATA if data != "adult"]
    for data, budgets in product(images, over_time.BUDGETS):
        middle, clip = over_time.start(data, budgets, "annealed")
        rates = (middle * STEP**power for power in range(-3, 6))
        found[f"{NAMES[data]}, {budgets}, clip {clip:g}"] = {
            lr: held_out(results, data, budgets, (lr, clip)) for lr in rates
        }
    return _by_column(found, "learning rate")


def held_out(
    results: Finished, data: str, budgets: tuple[float, ...], choice: tuple[float, float]
) -> str:
    """Uniform, annealed, on held-out training rows, and what saving gains at the same learning rate
    and clip; empty if one of them was not tried.
    """
    arms = (over_time.arm(data, budgets, "annealed", name) for name in ("uniform", "exact"))
    try:
        base, ours = (100 * results.of(arm, choice, TUNING_SEED, HELD_OUT)["last"] for arm in arms)
    except Unfinished:
        return ""
    return f"{base:.1f}; {ours - base:+.1f}"


def _by_column(found: Mapping[str, Mapping[float, str]], name: str) -> str:
    """A line for every title of which more than two values were tried; a column for each value."""
    tried = {
        title: known
        for title, by_value in found.items()
        if len(known := {value: text for value, text in by_value.items() if text}) > 2
    }
    columns = sorted({value for known in tried.values() for value in known})
    return markdown(
        ["uniform; saving against it", *(f"{name} {value:g}" for value in columns)],
        [[title, *(known.get(value, "") for value in columns)] for title, known in tried.items()],
    )


def untuned_gain(results: Finished, data: str, schedule: str, spending: str) -> str:
    """What a way of spending gains over uniform spending, as shipped."""
    return told(gain_as_shipped(results, data, schedule, spending))


def gain_as_shipped(
    results: Finished,
    data: str,
    schedule: str,
    spending: str,
    budgets: tuple[float, ...] = TIGHT,
) -> Gain | None:
    arms = (over_time.as_shipped(data, schedule, one, budgets) for one in (spending, "uniform"))
    return over(results, *arms)
