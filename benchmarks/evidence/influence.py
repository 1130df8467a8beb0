"""How much of a push against the model in round t is left in the model that is handed out.

A trained run is repeated from round t on with a small isotropic push on its parameters and the same
random draws; what differs at the end is what is left of the push. It is measured in parameters and,
since directions that predictions do not depend on never contract, in the scores of the test images
(their labels are not read): 1 means that all of it is left.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only influence

Learning rate and clip are those that `over_time` chose for uniform spending, and those of
examples/papers, which nobody chose for the noise; data sets and budgets for which nothing has been
chosen yet are left out.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import over_time
from experiment import (
    TAIL,
    Arm,
    Finished,
    Results,
    Unfinished,
    by_section,
    key_of,
    prepared,
    tuned,
)

STUDY = "influence"
ROUNDS = (1, 5, 9, 13, 17, 21, 23, 24, 25)  # the push comes after this round's release
PUSH = 0.01  # deviation of every coordinate, about that of a round's noise
SEEDS = (1, 2)
AS_SHIPPED = "as shipped"


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
        replace(one, study=STUDY, label=(*one.label, AS_SHIPPED))
        for one in over_time.untuned()
        if one.label[-1] == "uniform"
    ]


def key(arm: Arm, settings: dict[str, Any]) -> str:
    return key_of({**settings, "influence": [PUSH, *ROUNDS], "readout": arm.readout})


def run(results: Results) -> None:
    known = Finished(results.path, results.found)
    for arm in arms():
        try:
            choice, _ = tuned(known, arm)
        except Unfinished:
            continue
        for seed in SEEDS:
            settings = arm.at(choice, seed)
            if key(arm, settings) in results.found:
                continue
            began = time.process_time()
            left = measured(settings, arm.readout, seed)
            line = {
                "key": key(arm, settings),
                "study": STUDY,
                "label": list(arm.label),
                "lr": choice[0],
                "clip": choice[1],
                "seed": seed,
                "held_out": 0.0,
                **left,
                "seconds": round(time.process_time() - began, 2),
            }
            results.add(line)
            print(time.strftime("%H:%M:%S"), arm.name, seed, left, flush=True)


def measured(settings: dict[str, Any], readout: str, seed: int) -> dict[str, list[float]]:
    """What is left of a push after each of `ROUNDS`, in parameters and in scores."""
    import torch

    from fedspend.models.evaluation import scores

    setup, play = prepared(settings)
    rows = torch.from_numpy(setup.federation.dataset.test_features)

    def scored(model: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = scores(setup.module, torch.from_numpy(model.astype(np.float32)), rows).numpy()
        # softmax ignores what is common to all classes
        return found - found.mean(axis=1, keepdims=True)

    def handed_out(iterates: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        last = iterates[-TAIL:] if readout == "tail" else iterates[-1:]
        return np.mean(last, axis=0, dtype=np.float64)

    states = list(play(None))
    plain = handed_out([state.parameters for state in states])
    draw = np.random.default_rng(seed)
    left: dict[str, list[float]] = {"parameters": [], "scores": []}
    for t in ROUNDS:
        before = states[t - 1]
        push = draw.normal(0, PUSH, before.parameters.size)
        pushed = replace(before, parameters=(before.parameters + push).astype(np.float32))
        later = [pushed, *play(pushed)]
        iterates = [state.parameters for state in [*states[: t - 1], *later]]
        found = handed_out(iterates)
        left["parameters"].append(_rms(found - plain) / _rms(push))
        whole = scored(plain + push) - scored(plain)
        left["scores"].append(_rms(scored(found) - scored(plain)) / _rms(whole))
    return {name: [round(value, 4) for value in values] for name, values in left.items()}


# --- reading ---


def left(results: Finished, arm: Arm) -> np.ndarray[Any, Any] | None:
    """Mean over seeds of what is left in the scores of a push after each of `ROUNDS`; None if it
    has not been measured.
    """
    try:
        choice, _ = tuned(results, arm)
    except Unfinished:
        return None
    keys = [key(arm, arm.at(choice, seed)) for seed in SEEDS]
    if not all(one in results.found for one in keys):
        return None
    return np.mean([results.found[one]["scores"] for one in keys], axis=0)


def noise_over(found: np.ndarray[Any, Any], ours: Arm, base: Arm) -> float:
    """Variance of the noise in the result over that of another way of spending, if this is left of
    it.
    """
    rounds = np.arange(1, ours.settings["train.rounds"] + 1)
    at_the_end = np.interp(rounds, ROUNDS, found)
    noise = [at_the_end * round_noise(one) for one in (ours, base)]
    return float(np.square(noise[0]).sum() / np.square(noise[1]).sum())


def round_noise(arm: Arm) -> Any:
    """The noise of every round's mean update by an arm's plan, relative to its first clip."""
    from fedspend.configuration.config import config_of
    from fedspend.configuration.plan_inputs import Flags, resolve

    settings = arm.at((1.0, 1.0), 1)
    flags = Flags(clients=settings["data.clients"])
    plan = resolve(config_of(by_section(settings)), flags).request.plan()
    return plan.round_noise * plan.clip_factors / plan.round_rate


def _rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
