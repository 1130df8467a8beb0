"""The tables of docs/results/time.md, from the results files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import influence
import networks
import numpy as np
import over_time
from experiment import (
    HELD_OUT,
    STEP,
    TUNING_SEED,
    Finished,
    Outcome,
    Unfinished,
    cpu_hours,
    difference,
    outcome,
    tuned,
)
from over_time import SCHEDULES, SPENDING
from tables import accuracy, gain, markdown

from fedspend.configuration.learning_rates import lr_schedule
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
    "literal": "saving, the paper's algorithm",
    "optimal": "`optimal`",
    "geometric 1.05": "5% more each round",
    "geometric 0.95": "5% less each round",
}
# Kiani et al. (2025), Tables 6 and 7: uniform spending (IDP-FedAvg, or DP-FedAvg), and theirs.
PAPER = {
    ("fashion-mnist", (2, 5, 10)): (60.99, 65.75),
    ("fashion-mnist", (10, 20, 30)): (62.57, 66.55),
    ("fashion-mnist", (5, 5, 5)): (51.06, 60.79),
    ("fashion-mnist", (10, 10, 10)): (64.8, 67.90),
    ("mnist", (2, 5, 10)): (63.35, 66.50),
    ("mnist", (10, 20, 30)): (64.53, 77.38),
    ("mnist", (5, 5, 5)): (61.45, 69.07),
    ("mnist", (10, 10, 10)): (76.79, 80.2),
    ("adult", (10, 20, 30)): (70.93, 77.53),  # Table 2
}
Cells = dict[tuple[str, str], Outcome | None]


def cells(results: Finished, data: str, budgets: tuple[float, ...]) -> Cells:
    return {
        (schedule, spending): outcome(results, over_time.arm(data, budgets, schedule, spending))
        for schedule, spending in product(SCHEDULES, SPENDING)
    }


def every(results: Finished) -> dict[tuple[str, tuple[float, ...]], Cells]:
    """The cells of every pair of data and budgets for which anything is finished, in order."""
    found = {}
    for data, budgets in product(over_time.DATA, over_time.BUDGETS):
        made = cells(results, data, budgets)
        if any(one is not None for one in made.values()):
            found[data, budgets] = made
    return found


def against_uniform(made: Cells, schedule: str, spending: str) -> tuple[float, float | None] | None:
    ours, base = made[schedule, spending], made[schedule, "uniform"]
    if ours is None or base is None or ours.refused or base.refused:
        return None
    return difference(ours, base)


def cell(made: Cells, schedule: str, spending: str) -> str:
    ours = made[schedule, spending]
    if ours is None:
        return "-"
    if ours.refused:
        return "refused"
    if spending == "uniform":
        return accuracy(*interval(ours.percent()))
    found = against_uniform(made, schedule, spending)
    return accuracy(*interval(ours.percent())) if found is None else gain(*found)


def tables(results: Finished) -> str:
    parts = []
    for (data, budgets), made in every(results).items():
        title = f"{NAMES[data]}, {budgets}"
        body = [
            [label, *(cell(made, schedule, spending) for schedule in COLUMNS)]
            for spending, label in ROWS.items()
        ]
        if (data, budgets) in PAPER:
            uniform, theirs = PAPER[data, budgets]
            body.append(["*the paper*", f"*{uniform:.1f}; {theirs - uniform:+.1f}*", "", ""])
        parts.append(markdown([title, *COLUMNS.values()], body))
    return "\n\n".join(parts) or "Nothing has been run yet."


def trained_networks(results: Finished) -> str:
    """The same for networks that are trained from scratch; "-" has not been run."""
    body = []
    for name, budgets in product(networks.NETWORKS, networks.BUDGETS):
        made: Cells = {
            (schedule, spending): outcome(results, networks.arm(name, budgets, schedule, spending))
            for schedule, spending in product(SCHEDULES, networks.SPENDING)
        }
        for spending in networks.SPENDING:
            title = f"{name}, {budgets}: {ROWS[spending]}"
            body.append([title, *(cell(made, schedule, spending) for schedule in COLUMNS)])
    return markdown(["Fashion-MNIST", *COLUMNS.values()], body)


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


def signs(results: Finished) -> str:
    """In how many cells a way of spending is better or worse than uniform."""
    body = []
    for spending in [name for name in ROWS if name != "uniform"]:
        row = [ROWS[spending]]
        for schedule in COLUMNS:
            found = [
                one
                for made in every(results).values()
                if (one := against_uniform(made, schedule, spending)) is not None
            ]
            row.append(_counted(found))
        body.append(row)
    return markdown(["against uniform", *COLUMNS.values()], body)


def _kinds(found: Sequence[tuple[float, float | None]]) -> Counter[str]:
    """How many are better or worse with an interval that leaves 0 out."""
    return Counter(
        "better"
        if half is not None and mean > half
        else "worse"
        if half is not None and mean < -half
        else "not clear"
        for mean, half in found
    )


def _mean(found: Sequence[tuple[float, float | None]]) -> float:
    return sum(mean for mean, _ in found) / len(found)


def _counted(found: Sequence[tuple[float, float | None]]) -> str:
    if not found:
        return "-"
    kinds = _kinds(found)
    told = [f"{kinds[kind]} {kind}" for kind in ("better", "worse", "not clear") if kinds[kind]]
    return f"{', '.join(told)}; mean {_mean(found):+.1f}"


def _in_words(found: Sequence[tuple[float, float | None]]) -> str:
    kinds = _kinds(found)
    return (
        f"clearly better in {kinds['better']}, clearly worse in {kinds['worse']} of {len(found)} "
        f"finished pairs of data and budgets, {_mean(found):+.1f} points on average"
    )


def untuned(results: Finished) -> str:
    """The learning rate and clip of the shipped configs, beside tuned ones."""
    body = []
    made = {one.label: outcome(results, one) for one in over_time.untuned()}
    for data in ("fashion-mnist", "mnist"):
        for schedule in COLUMNS:
            base, label = made[data, "2/5/10", schedule, "uniform"], COLUMNS[schedule]
            row = [f"{NAMES[data]}, {label}"]
            row.append("-" if base is None else accuracy(*interval(base.percent())))
            for spending in ("exact", "literal"):
                ours = made[data, "2/5/10", schedule, spending]
                row.append("-" if ours is None or base is None else gain(*difference(ours, base)))
            tuned = cells(results, data, (2, 5, 10))
            row += [cell(tuned, schedule, spending) for spending in ("uniform", "exact", "literal")]
            body.append(row)
    return markdown(
        [
            "(2, 5, 10)",
            "uniform, as shipped",
            "saving, exact",
            "saving, literal",
            "uniform, tuned",
            "saving, exact",
            "saving, literal",
        ],
        body,
    )


def by_clip(results: Finished) -> str:
    """What saving gains at the clips that both searches tried, the learning rate being the one they
    began with; annealed, on held-out training rows.
    """
    found: dict[str, dict[float, str]] = {}
    for data, budgets in product(over_time.DATA, over_time.BUDGETS):
        uniform, saving = (
            over_time.arm(data, budgets, "annealed", spending) for spending in ("uniform", "exact")
        )
        lr, middle = uniform.start
        tried = {}
        for clip in (middle * STEP**power for power in range(-3, 4)):
            try:
                base, ours = (
                    100 * results.of(arm, (lr, clip), TUNING_SEED, HELD_OUT)["last"]
                    for arm in (uniform, saving)
                )
            except Unfinished:
                continue
            tried[clip] = f"{base:.1f}; {ours - base:+.1f}"
        if len(tried) > 2:
            found[f"{NAMES[data]}, {budgets}, learning rate {lr:g}"] = tried
    clips = sorted({clip for tried in found.values() for clip in tried})
    return markdown(
        ["uniform; saving against it", *(f"clip {clip:g}" for clip in clips)],
        [[name, *(tried.get(clip, "") for clip in clips)] for name, tried in found.items()],
    )


def in_short(results: Finished) -> str:
    """What the finished runs say, in sentences."""
    made = {one.label: outcome(results, one) for one in over_time.untuned()}
    told = []
    found = []
    for data in ("fashion-mnist", "mnist"):
        base, ours = (made[data, "2/5/10", "annealed", name] for name in ("uniform", "exact"))
        if base is not None and ours is not None:
            theirs = PAPER[data, (2, 5, 10)]
            found.append(
                f"{gain(*difference(ours, base))} on {NAMES[data]} (the paper: "
                f"{theirs[1] - theirs[0]:+.1f})"
            )
    if found:
        told.append(
            "**With a learning rate that is annealed and a clip that is too large for the noise, "
            f"saving gains**, as the paper says: {' and '.join(found)} points at budgets "
            "(2, 5, 10), with exact plans."
        )
    for schedule, label in COLUMNS.items():
        gains = [
            one
            for cell_of in every(results).values()
            if (one := against_uniform(cell_of, schedule, "exact")) is not None
        ]
        if gains:
            told.append(f"Tuned, {label}: saving is {_in_words(gains)}, against uniform spending.")
    for schedule in ("constant", "following"):
        leads = [
            difference(ours, base)
            for cell_of in every(results).values()
            if (ours := cell_of[schedule, "uniform"]) is not None
            and (base := cell_of["annealed", "uniform"]) is not None
        ]
        if leads:
            told.append(
                f"Uniform spending, tuned: *{COLUMNS[schedule]}* is {_in_words(leads)}, against "
                f"*{COLUMNS['annealed']}*."
            )
    return "\n".join(f"- {one}" for one in told) or "Nothing has been run yet."


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
                    schedule,
                    spending,
                    f"{found.choice[0]:g}",
                    f"{found.choice[1]:g}",
                    str(found.tried),
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
        "read the other way",
        "CPU s a run",
    ]
    return markdown(headings, body)


def influences(results: Finished) -> str:
    """Mean over seeds of what is left of a push in the scores, by round."""
    body = []
    for arm in influence.arms():
        try:
            choice, _ = tuned(results, arm)
        except Unfinished:
            continue
        keys = [influence.key(arm, arm.at(choice, seed)) for seed in influence.SEEDS]
        if not all(one in results.found for one in keys):
            continue
        left = np.mean([results.found[one]["scores"] for one in keys], axis=0)
        data, budgets, schedule, _ = arm.label
        title = f"{NAMES[data]}, ({budgets.replace('/', ', ')})"
        body.append([title, COLUMNS[schedule], *(f"{value:.2f}" for value in left)])
        if arm.settings["privacy.clip_schedule"] == "lr":
            at = lr_schedule(1.0, "cosine", over_time.END, arm.settings["train.rounds"])
            falls = np.array([at(t - 1) for t in influence.ROUNDS])
            body.append([title, "times the clip of its round", *(f"{x:.2f}" for x in left * falls)])
    return markdown(["push after round", "", *map(str, influence.ROUNDS)], body)


BLOCKS = {
    "time-short": in_short,
    "time-influence": influences,
    "time-networks": trained_networks,
    "time-status": status,
    "time-tables": tables,
    "time-signs": signs,
    "time-untuned": untuned,
    "time-by-clip": by_clip,
    "time-chosen": chosen,
}
