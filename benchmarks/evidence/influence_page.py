"""What docs/results/time.md has of pushes: what is left of them, and what harm they do."""

from __future__ import annotations

import influence
import numpy as np
import over_time
from experiment import Arm, Finished
from judging import is_clear, negative, over
from over_time import AS_SHIPPED
from over_time_page import COLUMNS, NAMES
from tables import markdown

from fedspend.configuration.learning_rates import lr_schedule


def influences(results: Finished) -> str:
    """What is left of a push in the scores, by round."""
    body = []
    for arm in influence.arms():
        left = influence.left(results, arm)
        title, schedule = measured_arm(arm)
        if left is None:
            body.append([title, COLUMNS[schedule], *["-"] * len(influence.ROUNDS)])
            continue
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
        title, schedule = measured_arm(arm)
        if harm is None:
            body.append([title, COLUMNS[schedule], *["-"] * (len(influence.ROUNDS) + 1)])
            continue
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
