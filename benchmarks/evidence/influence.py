"""How much of a push against the model in round t is left in the model that is handed out.

A trained run is repeated from round t on with a small isotropic push on its parameters and the same
random draws; what differs at the end is what is left of the push. It is measured in parameters and,
since directions that predictions do not depend on never contract, in the scores of the test images
(their labels are not read): 1 means that all of it is left.

What is left need not do harm: training may leave of early noise just what it does not mind. So the
harm is measured too: by how much the loss on the training rows is higher at the end if the model is
pushed after round t as a round's noise would push it, the mean over a push and its opposite.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only influence

Learning rate and clip are those that `over_time` chose for uniform spending, and those of
examples/papers, which nobody chose for the noise; data sets and budgets for which nothing has been
chosen yet are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import over_time
from experiment import (
    TAIL,
    Arm,
    Finished,
    Play,
    Results,
    Unfinished,
    by_section,
    key_of,
    prepared,
    tuned,
)

if TYPE_CHECKING:
    from fedspend.server.rounds import TrainingState

STUDY = "influence"
Model = np.ndarray[Any, Any]
ROUNDS = (1, 5, 9, 13, 17, 21, 23, 24, 25)  # the push comes after this round's release
PUSH = 0.01  # deviation of every coordinate, about that of a round's noise
SEEDS = (1, 2)


def arms() -> list[Arm]:
    return [*tuned_arms(), *untuned_arms()]


def tuned_arms() -> list[Arm]:
    return [
        replace(over_time.arm(data, budgets, schedule, "uniform"), study=STUDY)
        for data, budgets in over_time.cells()[:4]
        for schedule in over_time.SCHEDULES
    ]


def untuned_arms() -> list[Arm]:
    return [
        replace(one, study=STUDY, label=(*one.label, over_time.AS_SHIPPED))
        for one in over_time.untuned()
        if one.label[-1] == "uniform"
    ]


def key(arm: Arm, settings: dict[str, Any]) -> str:
    return key_of({**settings, "influence": [PUSH, *ROUNDS], "readout": arm.readout})


def key_of_harm(arm: Arm, settings: dict[str, Any]) -> str:
    return key_of({**settings, "harm": ROUNDS, "readout": arm.readout})


def run(results: Results) -> None:
    known = Finished(results.path, results.found)
    for arm in arms():
        try:
            choice, _ = tuned(known, arm)
        except Unfinished:
            continue
        for seed in SEEDS:
            settings = arm.at(choice, seed)
            for name, measure in (
                (key(arm, settings), measured),
                (key_of_harm(arm, settings), harm),
            ):
                if name in results.found:
                    continue
                began = time.process_time()
                found = measure(settings, arm.readout, seed)
                found["seconds"] = round(time.process_time() - began, 2)
                results.enter(name, STUDY, arm.label, choice, seed, found)
                print(time.strftime("%H:%M:%S"), arm.name, seed, found, flush=True)


def measured(settings: dict[str, Any], readout: str, seed: int) -> dict[str, Any]:
    """What is left of a push after each of `ROUNDS`, in parameters and in scores."""
    import torch

    from fedspend.models.evaluation import scores

    setup, play = prepared(settings)
    rows = torch.from_numpy(setup.federation.dataset.test_features)

    def scored(model: Model) -> Model:
        found = scores(setup.module, torch.from_numpy(model.astype(np.float32)), rows).numpy()
        # softmax ignores what is common to all classes
        return found - found.mean(axis=1, keepdims=True)

    states = list(play(None))
    plain = handed_out(states, readout)
    draw = np.random.default_rng(seed)
    left: dict[str, list[float]] = {"parameters": [], "scores": []}
    for t in ROUNDS:
        push = draw.normal(0, PUSH, plain.size)
        found = handed_out(pushed(states, play, t, push), readout)
        left["parameters"].append(_rms(found - plain) / _rms(push))
        whole = scored(plain + push) - scored(plain)
        left["scores"].append(_rms(scored(found) - scored(plain)) / _rms(whole))
    return {name: [round(value, 4) for value in values] for name, values in left.items()}


def harm(settings: dict[str, Any], readout: str, seed: int) -> dict[str, Any]:
    """How much higher the loss is at the end if the model is pushed after each of `ROUNDS` as the
    noise of the first round would push it, and the loss without.
    """
    import torch

    from fedspend.models.evaluation import evaluate

    setup, play = prepared(settings)
    assert setup.plan is not None
    rows, answers = (
        torch.from_numpy(part)
        for part in (setup.federation.dataset.features, setup.federation.dataset.labels)
    )

    def loss(model: Model) -> float:
        flat = torch.from_numpy(model.astype(np.float32))
        return evaluate(setup.module, flat, rows, answers)[0]

    states = list(play(None))
    plain = loss(handed_out(states, readout))
    deviation = setup.plan.noise_of_average[0]
    draw = np.random.default_rng(seed)
    higher = []
    for t in ROUNDS:
        push = draw.normal(0, deviation, states[0].parameters.size)
        both = [loss(handed_out(pushed(states, play, t, sign * push), readout)) for sign in (1, -1)]
        higher.append(round(float(np.mean(both)) - plain, 6))
    return {"harm": higher, "loss": round(plain, 6), "push": round(deviation, 6)}


def pushed(states: list[TrainingState], play: Play, t: int, push: Model) -> list[TrainingState]:
    """The states of the same run, if its model is pushed after round `t`."""
    before = states[t - 1]
    other = replace(before, parameters=(before.parameters + push).astype(np.float32))
    return [*states[: t - 1], other, *play(other)]


def handed_out(states: list[TrainingState], readout: str) -> Model:
    last = states[-TAIL:] if readout == "tail" else states[-1:]
    return np.mean([state.parameters for state in last], axis=0, dtype=np.float64)


# --- reading ---


def left(results: Finished, arm: Arm) -> Model | None:
    """Mean over seeds of what is left in the scores of a push after each of `ROUNDS`; None if it
    has not been measured.
    """
    return _mean_over_seeds(results, arm, key, "scores")


def harmed(results: Finished, arm: Arm) -> Model | None:
    """The same of how much higher the loss is at the end."""
    return _mean_over_seeds(results, arm, key_of_harm, "harm")


def _mean_over_seeds(
    results: Finished, arm: Arm, named: Callable[[Arm, dict[str, Any]], str], what: str
) -> Model | None:
    try:
        choice, _ = tuned(results, arm)
    except Unfinished:
        return None
    keys = [named(arm, arm.at(choice, seed)) for seed in SEEDS]
    if not all(one in results.found for one in keys):
        return None
    return np.mean([results.found[one][what] for one in keys], axis=0)


def noise_over(weights: Model, ours: Arm, base: Arm) -> float:
    """The noise of all rounds over that of another way of spending, where the variance of a round's
    noise counts by these weights after `ROUNDS`.
    """
    every = np.interp(np.arange(1, ours.settings["train.rounds"] + 1), ROUNDS, weights)
    noise = [every @ np.square(round_noise(one)) for one in (ours, base)]
    return float(noise[0] / noise[1])


def round_noise(arm: Arm) -> Any:
    """The noise of every round's mean update by an arm's plan, at a clip of 1."""
    return _round_noise(json.dumps(arm.at((1.0, 1.0), 1)))


@cache
def _round_noise(settings: str) -> Any:
    """By settings as JSON: a page asks for the same plan several times."""
    from fedspend.configuration.config import config_of
    from fedspend.configuration.plan_inputs import Flags, resolve

    given = json.loads(settings)
    flags = Flags(clients=given["data.clients"])
    return np.array(resolve(config_of(by_section(given)), flags).request.plan().noise_of_average)


def _rms(values: Model) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
