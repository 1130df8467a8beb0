"""What docs/results/time.md has of tuned arms, and time-choices.md of what was chosen for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import over_time
from experiment import (
    TAIL,
    Finished,
    Outcome,
    compared,
    cpu_hours,
    outcome,
)
from judging import Gain, is_clear, negative, over, told
from over_time import AS_SHIPPED, SCHEDULES, SHIPPED, SPENDING, TIGHT
from tables import accuracy, gain, markdown

from fedspend.runs.comparison import interval

NAMES = {
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "adult": "Adult",
    "cifar10": "CIFAR-10",
}
COLUMNS = {
    "annealed": "annealed, clip fixed; last iterate",
    "constant": "constant; mean of the last 8",
    "following": "annealed, clip following; last iterate",
}
ROWS = {
    "uniform": "uniform",
    "exact": "saving, exact plans",
    "literal": "saving, the paper's Algorithm 1",
    "optimal": "`optimal`",
    "geometric 1.05": "5% more each round",
    "geometric 0.95": "5% less each round",
}
# Kiani et al. (2025): uniform spending (IDP-FedAvg, or DP-FedAvg), theirs, and the table. Table 9
# where it has the saving rates of this page, else Table 6 (2, 5, 10) with 0.3/0.5/0.7 and Table 7.
PAPER = {
    ("fashion-mnist", (2, 5, 10)): (60.99, 65.75, 6),
    ("fashion-mnist", (10, 20, 30)): (62.57, 70.57, 9),
    ("fashion-mnist", (5, 5, 5)): (51.06, 60.79, 7),
    ("fashion-mnist", (10, 10, 10)): (64.8, 67.90, 7),
    ("mnist", (2, 5, 10)): (63.35, 66.50, 6),
    ("mnist", (10, 20, 30)): (64.53, 72.72, 9),
    ("mnist", (5, 5, 5)): (61.45, 69.07, 7),
    ("mnist", (10, 10, 10)): (76.79, 80.2, 7),
    ("adult", (10, 20, 30)): (70.93, 77.53, 2),
}
AT_UNIFORM = "†"  # marks what has the learning rate and clip of uniform spending
Cells = dict[tuple[str, str], Outcome | None]
Pairs = dict[tuple[str, tuple[float, ...]], Cells]  # by data and budgets
FIRST_LIMIT = 12  # of a search, before it was raised
SPENT = ("uniform", "exact")  # what the question is about


def cells(results: Finished, data: str, budgets: tuple[float, ...]) -> Cells:
    return {
        (schedule, spending): outcome(results, over_time.arm(data, budgets, schedule, spending))
        for schedule, spending in product(SCHEDULES, SPENDING)
    }


def every(results: Finished) -> Pairs:
    """The cells of every pair of data and budgets for which anything is finished, in order."""
    found = {}
    for data, budgets in product(over_time.DATA, over_time.BUDGETS):
        made = cells(results, data, budgets)
        if any(one is not None for one in made.values()):
            found[data, budgets] = made
    return found


def against_uniform(made: Cells, schedule: str, spending: str) -> Gain | None:
    return compared(made[schedule, spending], made[schedule, "uniform"])


def cell(made: Cells, schedule: str, spending: str) -> str:
    ours = made[schedule, spending]
    if ours is None:
        return "-"
    if ours.refused:
        return "refused"
    if spending == "uniform":
        return accuracy(*interval(ours.percent()))
    found = against_uniform(made, schedule, spending)
    told = accuracy(*interval(ours.percent())) if found is None else gain(*found)
    return told if ours.arm.like is None else told + AT_UNIFORM


def tables(results: Finished) -> str:
    """A table for every learning rate: uniform spending, and what the other ways gain over it."""
    made = every(results)
    parts = []
    for schedule, label in COLUMNS.items():
        body = []
        for (data, budgets), found in made.items():
            row = [cell(found, schedule, spending) for spending in ROWS]
            if schedule == "annealed":
                row.append(_printed(data, budgets))
            body.append([f"{NAMES[data]}, {budgets}", *row])
        paper = ["*the paper: uniform; saving*"] if schedule == "annealed" else []
        heading = f"{label[0].upper()}{label[1:]}"
        parts.append(f"**{heading}**\n\n{markdown(['', *ROWS.values(), *paper], body)}")
    return "\n\n".join(parts) if made else "Nothing has been run yet."


def _printed(data: str, budgets: tuple[float, ...]) -> str:
    """What the paper has, and in which of its tables; empty if it has nothing."""
    if (data, budgets) not in PAPER:
        return ""
    uniform, gained = claimed(data, budgets)
    return f"*{uniform:.1f}; {gained:+.1f} (Table {PAPER[data, budgets][2]})*"


def status(results: Finished) -> str:
    wanted = [
        over_time.arm(data, budgets, schedule, spending)
        for data, budgets, schedule, spending in product(
            over_time.DATA, over_time.BUDGETS, SCHEDULES, SPENDING
        )
    ]
    done = sum(outcome(results, one) is not None for one in wanted)
    lines = [line for line in results.found.values() if line["study"].startswith(over_time.STUDY)]
    return (
        f"**{done} of {len(wanted)} arms are finished** ({len(lines)} runs, "
        f"{cpu_hours(lines):.1f} CPU hours on one core of a shared machine); `-` has not been run."
    )


def at_one_choice(
    results: Finished, data: str, budgets: tuple[float, ...]
) -> tuple[Gain | None, Gain | None]:
    """What saving gains, annealed, if both have the learning rate and clip that were chosen for
    uniform spending, and for saving.
    """
    uniform, saving = (over_time.arm(data, budgets, "annealed", one) for one in SPENT)
    return (
        over(results, over_time.at_choice_of(data, budgets, "exact", "uniform"), uniform),
        over(results, saving, over_time.at_choice_of(data, budgets, "uniform", "exact")),
    )


def crossed(results: Finished) -> str:
    """What saving gains if both ways of spending have one learning rate and clip; annealed."""
    body: list[list[str]] = []
    found: list[list[Gain]] = [[], [], []]
    for data, budgets in product(over_time.DATA, over_time.BUDGETS):
        uniform, saving = (over_time.arm(data, budgets, "annealed", one) for one in SPENT)
        gains = [over(results, saving, uniform), *at_one_choice(results, data, budgets)]
        if all(one is None for one in gains):
            continue
        for known, one in zip(found, gains, strict=True):
            known += [] if one is None else [one]
        choices = (choice_of(outcome(results, arm)) for arm in (uniform, saving))
        body.append([f"{NAMES[data]}, {budgets}", *map(told, gains), *choices])
    body.append(["all", *map(counted, found), "", ""])
    headings = [
        "saving against uniform, annealed, clip fixed",
        "each at its own choice",
        "both at the choice for uniform",
        "both at the choice for saving",
        "learning rate, clip (tried): uniform",
        "saving",
    ]
    return markdown(headings, body)


def gains_of(pairs: Pairs, schedule: str, spending: str) -> list[Gain]:
    """What a way of spending gains over uniform spending in every finished pair."""
    made = (against_uniform(one, schedule, spending) for one in pairs.values())
    return [one for one in made if one is not None]


def signs(results: Finished) -> str:
    """In how many cells a way of spending is better or worse than uniform."""
    body, pairs = [], every(results)
    for spending in [name for name in ROWS if name != "uniform"]:
        row = [ROWS[spending]]
        for schedule in COLUMNS:
            row.append(counted(gains_of(pairs, schedule, spending)))
        body.append(row)
    return markdown(["against uniform", *COLUMNS.values()], body)


def kinds(found: Sequence[Gain]) -> Counter[str]:
    """How many are better or worse with an interval that leaves 0 out."""
    return Counter(
        "better" if is_clear(one) else "worse" if is_clear(negative(one)) else "not clear"
        for one in found
    )


def mean_of(found: Sequence[Gain]) -> float:
    return sum(mean for mean, _ in found) / len(found)


def counted(found: Sequence[Gain]) -> str:
    if not found:
        return "-"
    many = kinds(found)
    told = [f"{many[kind]} {kind}" for kind in ("better", "worse", "not clear") if many[kind]]
    return f"{', '.join(told)}; mean {mean_of(found):+.1f}"


def choice_of(found: Outcome | None) -> str:
    if found is None:
        return "-"
    lr, clip = found.choice
    return f"*{lr:g}, {clip:g} ({found.tried})*"


def lead(cells: Cells, schedule: str, other: str) -> Gain | None:
    """How far uniform spending under one learning rate is ahead of that under another."""
    return compared(cells[schedule, "uniform"], cells[other, "uniform"])


def with_a_smaller_limit(results: Finished) -> str:
    """What saving against uniform comes out as if searches end after as many tries as at first."""
    told = []
    for schedule, label in COLUMNS.items():
        gains = []
        for pair in product(over_time.DATA, over_time.BUDGETS):
            arms = (over_time.arm(*pair, schedule, one) for one in ("exact", "uniform"))
            gained = over(results, *(replace(arm, tries=FIRST_LIMIT) for arm in arms))
            gains += [] if gained is None else [gained]
        if gains:
            told.append(f"{label.partition(';')[0]}: {counted(gains)}")
    return (
        f"With the limit of {FIRST_LIMIT} tries, saving against uniform spending comes out as: "
        f"{'. '.join(one[0].upper() + one[1:] for one in told)}."
    )


def mean_gain(results: Finished, schedule: str) -> str:
    """What saving gains on average over uniform spending, everything tuned."""
    found = gains_of(every(results), schedule, "exact")
    return f"{mean_of(found):+.1f}" if found else "-"


def claimed(data: str, budgets: tuple[float, ...]) -> tuple[float, float]:
    """Uniform spending in the paper, and what it gains by saving."""
    uniform, theirs, _ = PAPER[data, budgets]
    return uniform, theirs - uniform


def read(ours: Outcome, base: Outcome, readout: str) -> tuple[float, float | None]:
    """Ours minus base, paired by seed, with both read in this way."""
    return interval(ours.percent(readout) - base.percent(readout))


def readings(results: Finished) -> str:
    """Saving against uniform by what is handed out: the last iterate or a mean of several."""
    body = []
    for schedule, readout in product(("annealed", "constant"), ("last", "tail")):
        pairs = [
            (made[schedule, "exact"], made[schedule, "uniform"])
            for made in every(results).values()
            if against_uniform(made, schedule, "exact") is not None
        ]
        row = [f"{schedule}, {'last iterate' if readout == 'last' else f'mean of the last {TAIL}'}"]
        row.append(counted([read(ours, base, readout) for ours, base in pairs if ours and base]))
        for data in SHIPPED:
            ours, base = (
                outcome(results, over_time.as_shipped(data, schedule, one))
                for one in ("exact", "uniform")
            )
            missing = ours is None or base is None or ours.refused or base.refused
            row.append("-" if missing else gain(*read(ours, base, readout)))
        body.append(row)
    shipped = (f"{NAMES[data]} {TIGHT}, {AS_SHIPPED}" for data in SHIPPED)
    return markdown(["saving against uniform", "tuned, all pairs", *shipped], body)


def chosen(results: Finished) -> str:
    """What the search chose, and the other reading of the same runs."""
    body = []
    for (data, budgets), made in every(results).items():
        for (schedule, spending), found in made.items():
            if found is None or found.refused:
                continue
            other = "tail" if found.arm.readout == "last" else "last"
            body.append(
                [
                    f"{NAMES[data]}, {budgets}",
                    COLUMNS[schedule].partition(";")[0],
                    ROWS[spending],
                    f"{found.choice[0]:g}",
                    f"{found.choice[1]:g}",
                    tries(found),
                    accuracy(*interval(found.percent())),
                    accuracy(*interval(found.percent(other))),
                    f"{found.seconds / len(found.lines):.0f}",
                ]
            )
    headings = [
        "data, budgets",
        "learning rate",
        "spending",
        "lr",
        "clip",
        "tried",
        "accuracy",
        "the other reading",
        "CPU s a run",
    ]
    return markdown(headings, body)


def tries(found: Outcome) -> str:
    """How many settings the search of an arm has tried, and whether it was cut off."""
    if found.arm.like is not None:
        return "as uniform"
    return f"{found.tried}{', cut off' if found.tried >= found.arm.tries else ''}"


CHOICES = {"time-chosen": chosen}
