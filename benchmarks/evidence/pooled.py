"""Table 2 and Figure 7 of Liu et al. (2024): the filter against sampled records, on pooled rows.

One client holds all rows; 70, 20 and 10% of them have the budgets of the table, with its noise and
clip. What is tuned, is on held-out training rows. MNIST: the learning rate, once, with a seed of
its own; `filter by clip` has that of the other filter, and exact rates have that of the clamped
fit. Heart: learning rate and number of steps, for every method and every seed, within the seed's
own training rows, because a test row of one seed is a training row of another. The arm without
privacy is trained to the end: it has ten times the steps.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only pooled

Differences from the paper: it names neither steps nor delta. Delta is that of its other
experiments. For MNIST there are 500 steps: charged at the clip, records of the first two levels
have used up their budgets after 111 and 488 of them (those of the third after 2,201), and early
stopping is what the table is about. Logistic regression, for MNIST on fixed features. The paper's
rates are a curve fit that may overspend; here it is clamped to exact rates.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from claims import shared
from experiment import (
    HELD_OUT,
    MOST_TRIES,
    SEEDS,
    STEP,
    TUNING_SEED,
    Finished,
    Results,
    Unfinished,
    by_section,
    key_of,
    searched,
)
from in_memory import held_out_of, in_memory

STUDY = "pooled"
ROUNDS = 10  # records are re-planned for each
LONGER = 10  # times the steps, for the arm without privacy
START = 0.5  # of the search for a learning rate
METHODS: dict[str, dict[str, Any]] = {
    "filter by norm": {"method.name": "filter", "method.charge": "norm"},
    "rpdp, clamped fit": {"method.name": "rpdp", "method.rates": "scf-clamped"},
    "no privacy": {"method.name": "privacy-free"},
    "rpdp, exact rates": {"method.name": "rpdp", "method.rates": "exact"},
    "filter by clip": {"method.name": "filter", "method.charge": "clip", "method.common_rate": 1.0},
}
FILTERS = ("filter by norm", "filter by clip")
LIKE = {"filter by clip": "filter by norm", "rpdp, exact rates": "rpdp, clamped fit"}


@dataclass(frozen=True)
class Task:
    """A data set, its line of the table, and how its arms are tuned. Steps are those of a round."""

    levels: tuple[float, ...]
    delta: float
    noise: float
    clip: float
    features: str
    batch: int  # of the arm without privacy
    steps: int  # where a search of them begins, or all there is
    longest: int  # those of Figure 7
    held_out: float
    tries: int
    seeds: tuple[int, ...]
    paper: Mapping[str, tuple[float, float]]  # test accuracy, and milliseconds a step
    by_seed: bool = False  # whether learning rate and steps are searched for every seed


TASKS = {
    "heart": Task(
        levels=(0.9, 1.8, 4.2),
        delta=1e-3,
        noise=10.0,
        clip=1.0,
        features="none",
        batch=512,  # all rows
        steps=16,
        longest=32,
        held_out=0.25,
        tries=MOST_TRIES,
        seeds=SEEDS,
        paper={"filter by norm": (77.17, 12.8), "rpdp, clamped fit": (81.89, 5.0)},
        by_seed=True,
    ),
    "mnist": Task(
        levels=(2.0, 4.7, 11.8),
        delta=1e-4,
        noise=20.0,
        clip=5.0,
        features="gabor",
        batch=256,
        steps=50,
        longest=50,
        held_out=HELD_OUT,
        tries=8,
        seeds=SEEDS,
        paper={"filter by norm": (84.11, 7101.6), "rpdp, clamped fit": (94.77, 2182.4)},
    ),
}


@dataclass(frozen=True)
class Pooled:
    """One method; budgets are drawn with the seed of the run."""

    method: str
    data: str
    steps: int
    rounds: int = ROUNDS

    @property
    def task(self) -> Task:
        return TASKS[self.data]

    @property
    def private(self) -> bool:
        return self.method != "no privacy"

    @property
    def like(self) -> Pooled | None:
        """The arm whose learning rate it has."""
        if self.task.by_seed or self.method not in LIKE:
            return None
        return replace(self, method=LIKE[self.method])

    def settings(self, lr: float, seed: int, held_out: float) -> dict[str, Any]:
        """Every setting, but for the file of budgets, which the levels and the seed decide."""
        task = self.task
        made = {
            "data.name": self.data,
            "data.clients": 1,
            "data.partition": "iid",
            "model.name": "logistic",
            "model.features": task.features,
            **METHODS[self.method],
            "train.rounds": self.rounds,
            "train.local_steps": self.steps * (1 if self.private else LONGER),
            "train.lr": lr,
            "train.lr_schedule": "constant",
            "train.momentum": 0.0,
            "train.server_lr": 1.0,
            "train.server_momentum": 0.0,
            "train.tail_average": 1,
            "train.seed": seed,
            "held_out": held_out,
        }
        if not self.private:
            # private methods have no batches: rates decide
            return made | {"train.batch_size": task.batch}
        return made | {
            "privacy.delta": task.delta,
            "privacy.noise_multiplier": task.noise,
            "privacy.clip": task.clip,
            "privacy.rate": 1.0,
            "privacy.noise": "central",
            "levels": list(task.levels),
            "privacy.randomness": "seeded",
        }


def arm(data: str, method: str) -> Pooled:
    return Pooled(method, data, TASKS[data].steps)


def arms() -> list[Pooled]:
    return [arm(data, method) for data in TASKS for method in METHODS]


def run(results: Results) -> None:
    def finish(one: Pooled) -> None:
        results.read_again()
        for seed in one.task.seeds:
            trained(results, one, seed)
            if one.method in FILTERS:
                trained(results, one, seed, longest=True)

    def tuned_with(one: Pooled) -> str:
        return f"{STUDY}, {one.data}, {(one.like or one).method}"

    shared(results.path.parent, arms(), tuned_with, finish)


def trained(results: Results, one: Pooled, seed: int, *, longest: bool = False) -> dict[str, Any]:
    """The line of this seed at what was chosen for it; with the steps of Figure 7, if `longest`."""
    lr, steps = chosen(results, one, seed)
    steps = one.task.longest if longest else steps
    return line_of(results, replace(one, steps=steps), lr, seed, 0.0)


def chosen(results: Results, one: Pooled, seed: int) -> tuple[float, int]:
    """Learning rate and steps a round with the best accuracy on held-out training rows."""
    if one.like is not None:
        return chosen(results, one.like, seed)
    task = one.task

    def score(choice: tuple[float, float]) -> float:
        lr, steps = choice
        if steps < 1:
            return -np.inf
        tuning = seed if task.by_seed else TUNING_SEED
        tried = replace(one, steps=int(steps))
        return float(line_of(results, tried, lr, tuning, task.held_out)["accuracy"])

    steps_too = task.by_seed and one.private
    (lr, steps), _ = searched(score, (START, float(one.steps)), task.tries, clips=steps_too)
    return lr, int(steps)


def cut_off(one: Pooled, lr: float) -> bool:
    """Whether a search of the learning rate alone ended at the largest that so many tries can
    reach, so that a larger one may be better: the first two neighbours are on either side, then one
    on each step.
    """
    return lr >= START * STEP ** (one.task.tries - 2)


def lines(results: Finished, one: Pooled, *, longest: bool = False) -> dict[int, dict[str, Any]]:
    """Its finished runs by seed."""
    found = {}
    for seed in one.task.seeds:
        try:
            found[seed] = trained(results, one, seed, longest=longest)
        except Unfinished:
            continue
    return found


def line_of(results: Results, one: Pooled, lr: float, seed: int, held_out: float) -> dict[str, Any]:
    """From the file, or run now."""
    settings = one.settings(lr, seed, held_out)
    key = key_of({**settings, "study": STUDY})
    if key not in results.found and isinstance(results, Finished):
        raise Unfinished(one.method)
    if key not in results.found:
        choice, label = (lr, settings.get("privacy.clip", 0.0)), (one.data, one.method)
        line = results.enter(key, STUDY, label, choice, seed, measured(settings), held_out)
        told = f"{lr:g} x {settings['train.local_steps']} steps, seed {seed}: {line['accuracy']}"
        print(time.strftime("%H:%M:%S"), *label, told, flush=True)
    return results.found[key]


def measured(settings: dict[str, Any]) -> dict[str, Any]:
    """Accuracy after training, on the test rows, or on the rows that are held out; CPU seconds, and
    those of a training step.
    """
    import fedspend
    from fedspend.records import ThreeLevels

    began = time.process_time()
    settings = dict(settings)
    levels, held_out = settings.pop("levels", None), settings.pop("held_out")
    settings = in_memory(settings)
    rows = held_out_of(settings, held_out)
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        if levels:
            place = Path(folder) / "budgets.csv"
            budgets = ThreeLevels(levels=tuple(levels)).draw(
                rows, np.random.default_rng(settings["train.seed"])
            )
            lines = (f"{n},{epsilon}\n" for n, epsilon in enumerate(budgets.tolist()))
            place.write_text("record,epsilon\n" + "".join(lines))
            settings["privacy.budgets"] = str(place)
        result = fedspend.train(
            by_section(settings), on_round=lambda *_: marks.append(time.process_time())
        )
    assert not levels or bool((result.plan.epsilon <= result.plan.budget).all())
    active = [count for record in result.metrics for count in record.get("active", [])]
    steps = settings["train.local_steps"] * (len(marks) - 1)
    return {
        "accuracy": result.accuracy,
        "seconds": round(time.process_time() - began, 2),
        "step": round((marks[-1] - marks[0]) / steps, 5) if steps else None,
        "active": [] if held_out else active,
    }
