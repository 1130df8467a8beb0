"""The tables of docs/results/time.md, from the results files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import by_influence
import influence
import networks
import numpy as np
import over_time
from by_influence import TUNED
from experiment import (
    HELD_OUT,
    STEP,
    TAIL,
    TUNING_SEED,
    Arm,
    Finished,
    Outcome,
    Unfinished,
    compared,
    cpu_hours,
    outcome,
)
from judging import Gain, is_clear, negative, over, told
from over_time import AS_SHIPPED, LARGE, SCHEDULES, SHIPPED, SPENDING, TIGHT
from tables import accuracy, against, gain, markdown, with_seconds

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
Cells = dict[tuple[str, str], Outcome | None]
FIRST_LIMIT = 12  # of a search, before it was raised
SPENT = ("uniform", "exact")  # what the question is about


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
    return accuracy(*interval(ours.percent())) if found is None else gain(*found)


def tables(results: Finished) -> str:
    parts = []
    for (data, budgets), made in every(results).items():
        title = f"{NAMES[data]}, {budgets}"
        body = [
            [label, *(cell(made, schedule, spending) for schedule in COLUMNS)]
            for spending, label in ROWS.items()
            if any(made[schedule, spending] is not None for schedule in COLUMNS)
        ]
        if (data, budgets) in PAPER:
            uniform, claimed = _claimed(data, budgets)
            title_of = f"*the paper, Table {PAPER[data, budgets][2]}*"
            body.append([title_of, f"*{uniform:.1f}; {claimed:+.1f}*", "", ""])
        parts.append(markdown([title, *COLUMNS.values()], body))
    return "\n\n".join(parts) or "Nothing has been run yet."


def trained_networks(results: Finished) -> str:
    """The same for networks that are trained from scratch."""
    body, missing = [], []
    for name, budgets in product(networks.NETWORKS, networks.BUDGETS):
        made: Cells = {
            (schedule, spending): outcome(results, networks.arm(name, budgets, schedule, spending))
            for schedule, spending in product(SCHEDULES, networks.SPENDING)
        }
        if not any(one is not None for one in made.values()):
            missing.append(f"{name} {budgets}")
            continue
        for spending in networks.SPENDING:
            title = f"{name}, {budgets}: {ROWS[spending]}"
            body.append([title, *(cell(made, schedule, spending) for schedule in COLUMNS)])
        chosen = (_choice(made[schedule, "uniform"]) for schedule in COLUMNS)
        body.append(["*learning rate, clip (tried)*", *chosen])
    table = markdown(["Fashion-MNIST", *COLUMNS.values()], body)
    return _with_missing([table] if body else [], missing)


def _choice(found: Outcome | None) -> str:
    if found is None:
        return "-"
    lr, clip = found.choice
    return f"*{lr:g}, {clip:g} ({found.tried})*"


def networks_with_large_clips(results: Finished) -> str:
    """Annealed, at the clip that was chosen and at one that is too large."""
    body, missing = [], []
    for budgets in networks.BUDGETS:
        name = "small CNN"
        for times, make in (
            (1.0, lambda *one: networks.arm(*one[:2], "annealed", one[2])),
            (networks.TOO_LARGE, networks.with_large_clip),
        ):
            made: Cells = {
                ("annealed", spending): outcome(results, make(name, budgets, spending))
                for spending in networks.SPENDING
            }
            if any(one is not None for one in made.values()):
                found = made["annealed", "uniform"]
                clip = "-" if found is None else f"{found.choice[1]:g}"
                told = "chosen" if times == 1 else f"{times:g} times the chosen one"
                cells = (cell(made, "annealed", spending) for spending in networks.SPENDING)
                body.append([f"{name}, {budgets}, clip {clip}: {told}", *cells])
            else:
                missing.append(f"{name} {budgets}, {times:g} times the clip")
    headings = [COLUMNS["annealed"], *(ROWS[spending] for spending in networks.SPENDING)]
    return _with_missing([markdown(headings, body)] if body else [], missing)


def _with_missing(parts: list[str], missing: list[str]) -> str:
    """What there is, and what of the networks is not run."""
    if missing:
        parts = [*parts, f"Not run yet (`--only {networks.STUDY}`): {'; '.join(missing)}."]
    return "\n\n".join(parts)


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
        choices = (_choice(outcome(results, arm)) for arm in (uniform, saving))
        body.append([f"{NAMES[data]}, {budgets}", *map(told, gains), *choices])
    body.append(["all", *map(_counted, found), "", ""])
    headings = [
        "saving against uniform, annealed, clip fixed",
        "each at its own choice",
        "both at the choice for uniform",
        "both at the choice for saving",
        "learning rate, clip (tried): uniform",
        "saving",
    ]
    return markdown(headings, body)


def gains_of(results: Finished, schedule: str, spending: str) -> list[Gain]:
    """What a way of spending gains over uniform spending in every finished pair."""
    made = (against_uniform(one, schedule, spending) for one in every(results).values())
    return [one for one in made if one is not None]


def signs(results: Finished) -> str:
    """In how many cells a way of spending is better or worse than uniform."""
    body = []
    for spending in [name for name in ROWS if name != "uniform"]:
        row = [ROWS[spending]]
        for schedule in COLUMNS:
            row.append(_counted(gains_of(results, schedule, spending)))
        body.append(row)
    return markdown(["against uniform", *COLUMNS.values()], body)


def _kinds(found: Sequence[Gain]) -> Counter[str]:
    """How many are better or worse with an interval that leaves 0 out."""
    return Counter(
        "better" if is_clear(one) else "worse" if is_clear(negative(one)) else "not clear"
        for one in found
    )


def _mean(found: Sequence[Gain]) -> float:
    return sum(mean for mean, _ in found) / len(found)


def _counted(found: Sequence[Gain]) -> str:
    if not found:
        return "-"
    kinds = _kinds(found)
    told = [f"{kinds[kind]} {kind}" for kind in ("better", "worse", "not clear") if kinds[kind]]
    return f"{', '.join(told)}; mean {_mean(found):+.1f}"


def _in_words(found: Sequence[Gain], other: str) -> str:
    kinds = _kinds(found)
    return (
        f"beats {other} in {kinds['better']} of {len(found)} pairs of data and budgets, loses in "
        f"{kinds['worse']}, and makes no clear difference in {kinds['not clear']} (mean "
        f"{_mean(found):+.1f} points)"
    )


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
        uniform, claimed = _claimed(data, LARGE)
        cells = [cell(made, "annealed", spending) for spending in over_time.NOT_TUNED]
        body.append([NAMES[data], *cells, f"*{uniform:.1f}; {claimed:+.1f}*"])
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
        for title, cells in found.items()
        if len(known := {value: told for value, told in cells.items() if told}) > 2
    }
    columns = sorted({value for known in tried.values() for value in known})
    return markdown(
        ["uniform; saving against it", *(f"{name} {value:g}" for value in columns)],
        [[title, *(known.get(value, "") for value in columns)] for title, known in tried.items()],
    )


def in_short(results: Finished) -> str:
    """What the finished runs say, in sentences."""
    told = [one for one in [_untuned_in_short(results)] if one]
    for schedule, label in COLUMNS.items():
        gains = gains_of(results, schedule, "exact")
        if gains:
            told.append(
                f"Learning rate {label}; both tuned: saving {_in_words(gains, 'uniform spending')}."
            )
        if schedule == "annealed":
            told += _at_one_choice_in_short(results)
    other = f"*{COLUMNS['annealed']}*"
    for schedule in ("constant", "following"):
        leads = [
            lead
            for pair in every(results)
            if (lead := _lead(results, *pair, schedule, "annealed")) is not None
        ]
        if leads:
            told.append(
                f"Uniform spending, tuned: *{COLUMNS[schedule]}* {_in_words(leads, other)}."
            )
    return "\n".join(f"- {one}" for one in told) or "Nothing has been run yet."


def _lead(
    results: Finished, data: str, budgets: tuple[float, ...], schedule: str, other: str
) -> Gain | None:
    """How far uniform spending under one learning rate is ahead of that under another."""
    arms = (over_time.arm(data, budgets, one, "uniform") for one in (schedule, other))
    return over(results, *arms)


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
            told.append(f"{label.partition(';')[0]}: {_counted(gains)}")
    return (
        f"With the limit of {FIRST_LIMIT} tries, saving against uniform spending comes out as: "
        f"{'. '.join(one[0].upper() + one[1:] for one in told)}."
    )


def _at_one_choice_in_short(results: Finished) -> list[str]:
    """A sentence; none before anything is run."""
    pairs = product(over_time.DATA, over_time.BUDGETS)
    found = (at_one_choice(results, *pair)[0] for pair in pairs)
    gains = [one for one in found if one is not None]
    if not gains:
        return []
    return [
        "The same, both with the learning rate and clip that were chosen for uniform spending: "
        f"saving {_in_words(gains, 'uniform spending')}."
    ]


def mean_gain(results: Finished, schedule: str) -> str:
    """What saving gains on average over uniform spending, everything tuned."""
    found = gains_of(results, schedule, "exact")
    return f"{_mean(found):+.1f}" if found else "-"


def _untuned_in_short(results: Finished) -> str:
    """What saving gains where nothing is tuned, by exact plans and by the paper's algorithm."""
    exact, literal = (
        [untuned_gain(results, data, "annealed", spending) for data in SHIPPED]
        for spending in ("exact", "literal")
    )
    if "-" in exact + literal:
        return ""
    names = (NAMES[data] for data in SHIPPED)
    claimed = ("{1:+.1f}".format(*_claimed(data, TIGHT)) for data in SHIPPED)
    return (
        "**Trained in the paper's way (annealed, clip fixed), with a learning rate and a clip that "
        f"nobody chose for the noise, saving gains** at budgets {TIGHT}: "
        f"{' and '.join(exact)} points on {' and '.join(names)} with exact plans; "
        f"{' and '.join(literal)} with the paper's Algorithm 1, read literally, which leaves "
        f"budget over (the paper: {' and '.join(claimed)})." + _planned_in_short(results)
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


def _planned_in_short(results: Finished) -> str:
    """What `optimal` with measured influence does there; empty before it is run."""
    told = []
    for spending in ("uniform", "exact"):
        for data in SHIPPED:
            ours = by_influence.outcome(results, by_influence.Cell(data, "annealed", AS_SHIPPED))
            base = outcome(results, over_time.as_shipped(data, "annealed", spending))
            told.append(against(ours, base))
    if "-" in told:
        return ""
    return (
        f" The policy `optimal`, planned with measured influence, gains {told[0]} and {told[1]} "
        f"there: {told[2]} and {told[3]} over saving."
    )


def _claimed(data: str, budgets: tuple[float, ...]) -> tuple[float, float]:
    """Uniform spending in the paper, and what it gains by saving."""
    uniform, theirs, _ = PAPER[data, budgets]
    return uniform, theirs - uniform


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
        row.append(_counted([read(ours, base, readout) for ours, base in pairs if ours and base]))
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


def read(ours: Outcome, base: Outcome, readout: str) -> tuple[float, float | None]:
    """Ours minus base, paired by seed, with both read in this way."""
    return interval(ours.percent(readout) - base.percent(readout))


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
                    f"{found.tried}{', cut off' if found.tried >= found.arm.tries else ''}",
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
    """What is left of a push in the scores, by round."""
    body = []
    for arm in influence.arms():
        left = influence.left(results, arm)
        if left is None:
            continue
        title, schedule = measured_arm(arm)
        body.append([title, COLUMNS[schedule], *(f"{value:.2f}" for value in left)])
        if arm.settings["privacy.clip_schedule"] == "lr":
            at = lr_schedule(1.0, "cosine", over_time.END, arm.settings["train.rounds"])
            falls = np.array([at(t - 1) for t in influence.ROUNDS])
            body.append([title, "times the clip of its round", *(f"{x:.2f}" for x in left * falls)])
    return markdown(["push after round", "", *map(str, influence.ROUNDS)], body)


def harms(results: Finished) -> str:
    """What a push does to the loss at the end, by round, relative to the worst one; and the harm of
    all rounds' noise under saving, over that under uniform spending.
    """
    body = []
    for arm in influence.arms():
        harm = influence.harmed(results, arm)
        if harm is None:
            continue
        title, schedule = measured_arm(arm)
        saving = over_time.arm(arm.label[0], _budgets(arm.label[1]), schedule, "exact")
        ratio = influence.noise_over(harm, saving, arm)
        cells = (f"{value:.2f}" for value in harm / harm.max())
        body.append([title, COLUMNS[schedule], *cells, f"{ratio:.2f}"])
    rounds = map(str, influence.ROUNDS)
    return markdown(["push after round", "", *rounds, "harm under saving"], body)


def harm_and_accuracy(results: Finished) -> str:
    """Where accuracy is clear, whether harm says the same."""
    agree, differ, unclear = 0, [], 0
    for arm in influence.arms():
        harm = influence.harmed(results, arm)
        if harm is None:
            continue
        title, schedule = measured_arm(arm)
        data, budgets = arm.label[0], _budgets(arm.label[1])
        saving = over_time.arm(data, budgets, schedule, "exact")
        ratio = influence.noise_over(harm, saving, arm)
        if title.endswith(AS_SHIPPED):
            saving = over_time.as_shipped(data, schedule, "exact", budgets)
        gained = over(results, saving, arm)
        if gained is None or not (is_clear(gained) or is_clear(negative(gained))):
            unclear += 1
        elif is_clear(gained) == (ratio < 1):
            agree += 1
        else:
            differ.append(f"{title}, {COLUMNS[schedule]}")
    against = f" It disagrees in: {'; '.join(differ)}." if differ else ""
    return (
        f"Below 1 saving should pay, and above 1 cost. Accuracy agrees in {agree} of the "
        f"{agree + len(differ)} lines in which what saving gains or loses is clear of 0.{against} "
        f"In the other {unclear} it says nothing."
    )


def measured_arm(arm: Arm) -> tuple[str, str]:
    """Data and budgets of an arm in words, and its learning rate."""
    data, budgets, schedule, _, *words = arm.label
    return ", ".join([f"{NAMES[data]}, ({budgets.replace('/', ', ')})", *words]), schedule


def _budgets(label: str) -> tuple[float, ...]:
    """Those that a label names."""
    named = {"/".join(f"{epsilon:g}" for epsilon in one): one for one in over_time.BUDGETS}
    return named[label]


BLOCKS = {
    "time-short": in_short,
    "time-influence": with_seconds(influences),
    "time-harm": with_seconds(harms),
    "time-harm-agrees": harm_and_accuracy,
    "time-networks": with_seconds(trained_networks),
    "time-networks-clip": with_seconds(networks_with_large_clips),
    "time-status": status,
    "time-limit": with_a_smaller_limit,
    "time-tables": tables,
    "time-crossed": with_seconds(crossed),
    "time-signs": signs,
    "time-untuned": with_seconds(untuned),
    "time-untuned-large": with_seconds(untuned_at_larger_budgets),
    "time-by-clip": by_clip,
    "time-by-rate": by_rate,
    "time-readings": readings,
    "time-chosen": chosen,
}
