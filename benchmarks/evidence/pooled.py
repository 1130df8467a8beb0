"""Table 2 of Liu et al. (2024) for MNIST: the filter against sampled records, on pooled rows.

One client holds all rows; 70, 20 and 10% of them have budgets 2.0, 4.7 and 11.8; noise multiplier
20, clip 5, as in the table. Learning rates are searched on held-out training rows; `filter by clip`
has that of the other filter, and exact rates have that of the clamped fit. Then three seeds. The
arm without privacy is trained to the end: it has ten times the steps.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only pooled

Differences from the paper: it names neither steps nor delta. Delta is 1e-4, that of its other
experiments with MNIST, and there are 500 steps: charged at the clip, records of the first two
levels have used up their budgets after 111 and 488 of them (those of the third after 2,201), and
early stopping is what the table is about. Logistic regression on fixed features. The paper's rates
are a curve fit that may overspend; here it is clamped to exact rates.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from claims import shared
from experiment import (
    HELD_OUT,
    STEP,
    TUNING_SEED,
    Finished,
    Results,
    Unfinished,
    by_section,
    key_of,
    searched,
)
from experiment import SEEDS as ALL_SEEDS
from in_memory import held_out_of, in_memory

STUDY = "pooled"
SEEDS = ALL_SEEDS[:3]
LEVELS = (2.0, 4.7, 11.8)
ROUNDS, STEPS = 10, 50  # records are re-planned for each round of so many steps
LONGER = 10  # the arm without privacy
START, TRIES = 0.5, 8  # of the search for a learning rate
METHODS: dict[str, dict[str, Any]] = {
    "filter by norm": {"method.name": "filter", "method.charge": "norm"},
    "rpdp, clamped fit": {"method.name": "rpdp", "method.rates": "scf-clamped"},
    "no privacy": {"method.name": "privacy-free"},
    "rpdp, exact rates": {"method.name": "rpdp", "method.rates": "exact"},
    "filter by clip": {"method.name": "filter", "method.charge": "clip", "method.common_rate": 1.0},
}
LIKE = {"filter by clip": "filter by norm", "rpdp, exact rates": "rpdp, clamped fit"}
# what the paper prints: test accuracy, and milliseconds a step
PAPER = {"filter by norm": 84.11, "rpdp, clamped fit": 94.77}


@dataclass(frozen=True)
class Pooled:
    """One method; budgets are drawn with the seed of the run."""

    method: str
    data: str = "mnist"
    rounds: int = ROUNDS
    steps: int = STEPS

    @property
    def private(self) -> bool:
        return self.method != "no privacy"

    def settings(self, lr: float, seed: int, held_out: float) -> dict[str, Any]:
        """Every setting, but for the file of budgets, which `LEVELS` and the seed decide."""
        made = {
            "data.name": self.data,
            "data.clients": 1,
            "data.partition": "iid",
            "model.name": "logistic",
            "model.features": "gabor",
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
        if self.private:
            made |= {"privacy.delta": 1e-4, "privacy.noise_multiplier": 20.0, "privacy.clip": 5.0}
            made |= {"privacy.rate": 1.0, "privacy.noise": "central", "levels": list(LEVELS)}
            made["privacy.randomness"] = "seeded"
        else:
            made["train.batch_size"] = 256  # private methods have no batches: rates decide
        return made


def arms() -> list[Pooled]:
    return [Pooled(method) for method in METHODS]


def run(results: Results) -> None:
    def finish(arm: Pooled) -> None:
        results.read_again()
        lr = chosen(results, arm)
        for seed in SEEDS:
            line_of(results, arm, lr, seed, 0.0)

    def tuned_with(arm: Pooled) -> str:
        return f"{STUDY}, {LIKE.get(arm.method, arm.method)}"

    shared(results.path.parent, arms(), tuned_with, finish)


def chosen(results: Results, arm: Pooled) -> float:
    """The learning rate with the best accuracy on held-out training rows."""

    def score(choice: tuple[float, float]) -> float:
        return float(line_of(results, arm, choice[0], TUNING_SEED, HELD_OUT)["accuracy"])

    if arm.method in LIKE:
        return chosen(results, replace(arm, method=LIKE[arm.method]))
    (lr, _), _ = searched(score, (START, 5.0), TRIES, clips=False)
    return lr


def cut_off(lr: float) -> bool:
    """Whether the search ended at the largest learning rate that so many tries can reach, so that a
    larger one may be better: the first two neighbours are on either side, then one on each step.
    """
    return lr >= START * STEP ** (TRIES - 2)


def line_of(results: Results, arm: Pooled, lr: float, seed: int, held_out: float) -> dict[str, Any]:
    """From the file, or run now."""
    settings = arm.settings(lr, seed, held_out)
    key = key_of({**settings, "study": STUDY})
    if key not in results.found and isinstance(results, Finished):
        raise Unfinished(arm.method)
    if key not in results.found:
        choice, label = (lr, settings.get("privacy.clip", 0.0)), (arm.data, arm.method)
        line = results.enter(key, STUDY, label, choice, seed, measured(settings), held_out)
        print(time.strftime("%H:%M:%S"), arm.method, lr, seed, line["accuracy"], flush=True)
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
