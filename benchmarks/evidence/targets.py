"""The best that fedspend does at the budgets of Kiani et al. (2025), with rounds and rate free.

For each data set and budget, version 0.2.0 looked for the best setting with trainings on held-out
training rows, and its results file says what it found (`searched`); that setting is measured once
on the test rows, with five seeds. Beside it is FedAvg without privacy with the same model, as the
study `kiani` has it: 25 rounds at rate 0.9, its learning rate searched.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only targets
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import kiani
import over_time
from experiment import (
    SEEDS,
    TUNING_SEED,
    Arm,
    Results,
    Settings,
    by_section,
    finish,
    key_of,
    prepared,
)

from fedspend.configuration.config import config_of

STUDY = "targets"
CHOSEN = "chosen"  # label of the runs of what the search found

IMAGES: dict[str, tuple[Any, ...]] = {
    "privacy.clip": (0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0),
    "train.lr": (0.05, 0.1, 0.2, 0.4, 0.8),
    "train.rounds": (3, 6, 12, 18, 25, 36, 50),
    "schedule": ("linear/lr", "cosine/lr", "constant"),
    "train.local_steps": (20, 40, 80, 160),
    "train.tail_average": (1, 2, 4, 8),
    "privacy.rate": (0.5, 0.9, 1.0),
    "policy": ("uniform", "optimal", "geometric:1.05", "individual-rates:best"),
    "train.server_momentum": (0.0, 0.3),
}
TABLE: dict[str, tuple[Any, ...]] = {
    "privacy.clip": (1.0, 2.0, 4.0, 8.0, 16.0),
    "train.rounds": (25, 36, 50, 72, 100),
    "train.local_steps": (20, 40, 80),
    "train.lr": (0.25, 0.5, 1.0, 2.0),
    "train.tail_average": (1, 4, 8, 16),
    "schedule": ("constant", "linear/lr"),
    "train.server_momentum": (0.0, 0.5, 0.8),
    "privacy.rate": (0.5, 1.0),
    "policy": ("uniform", "optimal", "individual-rates:best"),
}


@dataclass(frozen=True)
class Cell:
    """A data set and its budgets, what is aimed at, and where the search begins."""

    data: str
    budgets: tuple[float, ...]
    target: float
    # of the search: candidates, how many of them race, and with how many seeds
    most: int = 12
    finalists: int = 2
    seeds: int = 2
    start: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> tuple[str, str]:
        return self.data, "/".join(f"{epsilon:g}" for epsilon in self.budgets)

    def settings(self) -> dict[str, Any]:
        """The config that the search begins with; nothing is left to a default."""
        begins = {
            "train.lr": 0.2,
            "privacy.clip": 1.0,
            "privacy.rate": 1.0,
            "train.local_steps": 80,
            "train.batch_size": 32,
            "train.lr_schedule": "linear",
            "train.lr_end": 0.1,
            "privacy.clip_schedule": "lr",
            "train.tail_average": 1,
            "method.name": "idp-fedavg",
            "privacy.policy": "uniform",
            "privacy.accountant": "pld",
        }
        made = over_time.common(self.data) | begins | self.start
        if made["train.lr_schedule"] == "constant":
            del made["train.lr_end"], made["privacy.clip_schedule"]
        return made | {"privacy.groups": over_time.groups(self.budgets, None)}

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        return TABLE if self.data == "adult" else IMAGES


CELLS = (
    Cell("fashion-mnist", (2, 5, 10), 80.0, 24, 4, 3),
    Cell(
        "fashion-mnist",
        (1, 1, 1),
        63.0,
        6,
        2,
        2,
        start={
            "model.features": "gabor-bands",
            "train.rounds": 6,
            "train.local_steps": 20,
            "train.lr_end": 0.3,
        },
    ),
    Cell("mnist", (2, 5, 10), 95.0, 15, 1, 1),
    Cell(
        "adult",
        (10, 20, 30),
        82.5,
        24,
        6,
        4,
        start={
            "train.lr": 0.5,
            "privacy.clip": 4.0,
            "train.rounds": 50,
            "train.local_steps": 40,
            "train.lr_schedule": "constant",
            "train.tail_average": 8,
        },
    ),
    Cell(
        "fashion-mnist",
        (10, 20, 30),
        84.0,
        3,
        1,
        1,
        start={"privacy.clip": 1.5, "train.local_steps": 160},
    ),
)


def search_key(cell: Cell) -> str:
    axes = {axis: list(values) for axis, values in cell.axes.items()}
    return key_of(
        {**cell.settings(), "search": [axes, cell.most, cell.finalists, cell.seeds, TUNING_SEED]}
    )


def searched(results: Results, cell: Cell) -> dict[str, Any]:
    """What the search of version 0.2.0 (`design choose`) found on held-out rows, from the file."""
    return results.found[search_key(cell)]


def rate_and_clip(best: Settings) -> dict[str, float]:
    """What every line of a results file says of its run."""
    return {"lr": best["train.lr"], "clip": best["privacy.clip"]}


def chosen(cell: Cell, best: Settings) -> dict[str, Any]:
    """Every setting of the run that the search recommends."""
    words = {name: value for name, value in best.items() if "." not in name}
    schedule, _, clips = words["schedule"].partition("/")
    made = cell.settings() | {name: best[name] for name in best if name not in words}
    made |= {"privacy.policy": words["policy"], "train.lr_schedule": schedule}
    made |= {"privacy.clip_schedule": clips} if clips else {}
    made |= {"method.name": "time-adaptive"} if words["policy"] == "optimal" else {}
    return {
        f"{section}.{key}": value
        for section, table in config_of(by_section(made)).values.items()
        for key, value in table.items()
    }


def without_privacy(cell: Cell) -> Arm:
    return kiani.free(cell.data)


def measured_once(settings: Settings) -> dict[str, Any]:
    """Accuracy of the model that is handed out, on the test rows."""
    import torch

    from fedspend.models.evaluation import evaluate

    began = time.process_time()
    setup, play = prepared(settings)
    rows, labels = (
        torch.from_numpy(setup.federation.dataset.test_features),
        torch.from_numpy(setup.federation.dataset.test_labels),
    )
    *_, last = play(None)
    _, accuracy = evaluate(setup.module, torch.from_numpy(last.model), rows, labels)
    assert setup.plan is not None
    return {
        "accuracy": round(accuracy, 5),
        "plan": setup.plan.hash.removeprefix("sha256:")[:16],
        "seconds": round(time.process_time() - began, 2),
    }


def of_seed(cell: Cell, best: Settings, seed: int) -> dict[str, Any]:
    return chosen(cell, best) | {"train.seed": seed, "data.validation": 0.0}


def run(results: Results) -> None:
    for cell in CELLS:
        best = searched(results, cell)["best"]
        for seed in SEEDS:
            settings = of_seed(cell, best, seed)
            key = key_of(settings)
            if key not in results.found:
                line = {
                    "key": key,
                    "study": STUDY,
                    "label": [*cell.label, CHOSEN],
                    **rate_and_clip(best),
                    "seed": seed,
                    "held_out": 0.0,
                    **measured_once(settings),
                }
                results.add(line)
                print(time.strftime("%H:%M:%S"), *cell.label, seed, line["accuracy"], flush=True)
    for cell in CELLS:
        finish(results, without_privacy(cell))
