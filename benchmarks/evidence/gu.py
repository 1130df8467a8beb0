"""Figures 2 to 6 of Gu et al. (2023), logistic regression and LeNet in the paper's own setting.

A figure is a window on a grid of trainings, one for every sampling rate and noise level: a training
serves every T up to its last round, so a smaller limit on rounds or noise (the paper's cases II and
III) needs no training of its own. Every training is one line of a results file, with the loss
after every round; `gu_page` finds the fronts and k in them.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only gu-logistic
    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only gu-lenet

`gu-lenet-rest` has the noise levels and rates of LeNet that `gu-lenet` leaves out: with both, every
grid is the paper's. docs/results/papers.md has a table of what differs from the paper: among others
one seed, where it has 30 (LeNet: 50), Poisson cohorts with the planned divisor q K, where it
divides by the clients of the round, and a clip, which it does not state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from claims import shared
from experiment import Results, by_section, key_of
from in_memory import in_memory

LOGISTIC, LENET, REST = "gu-logistic", "gu-lenet", "gu-lenet-rest"  # studies
ROUNDS, SEED = 200, 1
LR, CLIP = 0.01, 0.3
LEVELS = {
    "logistic": tuple(round(0.01 * n, 2) for n in range(1, 16)),
    "lenet": tuple(round(0.005 * n, 3) for n in range(2, 11)),
}
# On all data, and on a sample. The paper states them for Figures 2 and 6 alone. Its footnote 4 has
# one k whether the rate is free or not, so Figures 3 to 5 are held to that of Figure 2.
PAPER_K = {"logistic": (22.0, 25.0), "lenet": (110.0, 150.0)}
STATES_K = ("Figure 2", "Figure 6")
RATES = {
    "logistic": (0.125, 0.2, 0.375, 0.4, 0.45, 0.55, 0.625),
    "lenet": (0.125, 0.2, 0.25, 0.3, 0.375, 0.4, 0.5, 0.55, 0.625),
}
FIRST: dict[str, dict[str, Any]] = {"logistic": {}, "lenet": {"telling_levels": True}}
ABOUT_K = 62.0  # of LeNet, by case I of Figure 3
FEW_RATES = (0.125, 0.25, 0.5)
FIGURE_3: dict[str, dict[str, Any]] = {"logistic": {}, "lenet": {"clients": 40, "rates": (0.125,)}}
# Limits on rounds and noise. The paper prints 0.50 for case III of logistic regression, which by
# its own condition (k sigma^2 T <= q K) is case II; 0.05 fulfils it.
CASES = {
    "logistic": {"II": (150, 0.10), "III": (75, 0.05)},
    "lenet": {"II": (150, 0.035), "III": (75, 0.02)},
}
TEST_SHARE = {"logistic": 1.0, "lenet": 0.3}


def telling(levels: Iterable[float], in_a_round: float) -> tuple[float, ...]:
    """The levels of LeNet at which theory's curve, T = q K / (k sigma^2), ends by the last round or
    within a twentieth of it, by the number q K of clients in a round. At less noise the front is
    cut off by the end of training and says nothing of k, so these are run first.

    >>> [len(telling(LEVELS["lenet"], in_a_round)) for in_a_round in (5, 10, 20)]
    [7, 5, 3]
    """
    end = 1.05 * ROUNDS
    return tuple(level for level in levels if in_a_round <= end * ABOUT_K * level**2)


@dataclass(frozen=True)
class Training:
    """One training: every setting but its rate and noise level is that of its grid."""

    settings: dict[str, Any]
    rate: float
    level: float

    @property
    def key(self) -> str:
        return key_of({**self.settings, "measured": "test loss after every round"})


@dataclass(frozen=True)
class Grid:
    """Trainings with every rate, and with every noise level or with the telling ones."""

    model: str
    levels: tuple[float, ...]
    clients: int = 10
    steps: int = 20  # E: steps on one batch each
    share: float = 1.0  # of the training rows
    rates: tuple[float, ...] = (1.0,)
    telling_levels: bool = False

    def levels_at(self, rate: float) -> tuple[float, ...]:
        return telling(self.levels, rate * self.clients) if self.telling_levels else self.levels

    def trainings(self) -> list[Training]:
        """The most noise first, as the levels with the least are cut off by the last round."""
        pairs = [
            (rate, level)
            for rate in self.rates
            for level in sorted(self.levels_at(rate), reverse=True)
        ]
        return [Training(self.settings(*pair), *pair) for pair in pairs]

    def settings(self, rate: float, level: float) -> dict[str, Any]:
        return {
            "data.name": "mnist",
            "data.clients": self.clients,
            "data.partition": "iid",
            "data.share": self.share,
            "data.test_share": TEST_SHARE[self.model],
            "model.name": self.model,
            "model.features": "none",
            "method.name": "dp-fedsgd",
            "method.noise_level": level,
            "privacy.delta": 1e-5,
            "privacy.rate": rate,
            "privacy.clip": CLIP,
            "privacy.noise": "central",
            "privacy.clipping": "flat",
            "privacy.randomness": "seeded",
            "train.rounds": ROUNDS,
            "train.local_steps": self.steps,
            "train.batch_size": 64,
            "train.lr": LR,
            "train.lr_schedule": "constant",
            "train.momentum": 0.0,
            "train.server_lr": 1.0,
            "train.server_momentum": 0.0,
            "train.tail_average": 1,
            "train.seed": SEED,
        }


@dataclass(frozen=True)
class Panel:
    """A part of a figure: what the paper searched, through the window of its limits.

    `first` is the part of the grid that is run first. Theory takes its k from `k_of`, or from the
    panel itself.
    """

    figure: str
    title: str
    grid: Grid
    paper_k: float
    first: Grid | None = None
    rounds: int = ROUNDS
    most_noise: float | None = None
    k_of: Panel | None = None

    @property
    def states_k(self) -> bool:
        """Whether the paper states a k for this figure."""
        return self.figure in STATES_K

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The whole one, and what is shown while it is not finished."""
        return (self.grid,) if self.first is None else (self.grid, self.first)


def panels(model: str) -> list[Panel]:
    """What the figures show of a model, in the order of the figures."""
    (k, sample_k), few = PAPER_K[model], FIRST[model]

    def panel(figure: str, title: str, first: dict[str, Any] = few, **changes: Any) -> Panel:
        grid = Grid(model, LEVELS[model], **changes)
        return Panel(figure, title, grid, k, replace(grid, **first) if first else None)

    fewer = few and few | {"rates": FEW_RATES}
    case = panel("Figure 3", "case I", {}, **FIGURE_3[model])
    base = panel("Figure 4", "E = 20")
    sample = replace(panel("Figure 6", "K = 10, 10% of the data", share=0.1), paper_k=sample_k)
    real = panel("Figure 6", "K = 40, rate 0.5, all data", clients=40, rates=(0.5,))
    return [
        panel("Figure 2", "K = 40, rate free", fewer, clients=40, rates=RATES[model]),
        case,
        *(
            replace(case, title=f"case {name}", rounds=rounds, most_noise=noise, k_of=case)
            for name, (rounds, noise) in CASES[model].items()
        ),
        base,
        *(replace(panel("Figure 4", f"E = {n}", steps=n), k_of=base) for n in (10, 5)),
        replace(base, figure="Figure 5", title="K = 10"),
        replace(panel("Figure 5", "K = 5", clients=5), k_of=base),
        replace(panel("Figure 5", "K = 20", clients=20), k_of=base),
        sample,
        replace(real, paper_k=sample_k, k_of=sample),
    ]


def grids(study: str) -> list[Grid]:
    """What a study trains, in the order of the figures, but with many clients a round last."""
    found = panels("logistic" if study == LOGISTIC else "lenet")
    return sorted((one.grid if study == REST else one.grids[-1] for one in found), key=_turn)


def _turn(grid: Grid) -> tuple[bool, int]:
    """Of the grids with many clients a round, first those with the most clients: two figures share
    them.
    """
    many = grid.clients * max(grid.rates) > 10
    return many, -grid.clients if many else 0


def trainings(study: str) -> list[Training]:
    """Every training of a study once."""
    before = {one.key for one in _once(grids(LENET))} if study == REST else set()
    return [one for one in _once(grids(study)) if one.key not in before]


def _once(grids: Iterable[Grid]) -> list[Training]:
    return list({one.key: one for grid in grids for one in grid.trainings()}.values())


def losses(settings: dict[str, Any]) -> dict[str, Any]:
    """Test loss after every round of a training, as `fedspend design` trains it."""
    from fedspend.configuration.config import any_config
    from fedspend.design.trainings import train_one

    began = time.process_time()
    loss, accuracy, _ = train_one(any_config(by_section(in_memory(settings))))
    return {
        "loss": [None if value is None else round(value, 5) for value in loss],
        "accuracy": round(accuracy[-1], 5),
        "seconds": round(time.process_time() - began, 2),
    }


def run(results: Results, study: str) -> None:
    def train(one: Training) -> None:
        results.read_again()
        if one.key in results.found:
            return
        settings = one.settings
        named = [
            f"{settings[name]:g}" for name in ("data.clients", "train.local_steps", "data.share")
        ]
        label = [settings["model.name"], *named, f"{one.rate:g}", f"{one.level:g}"]
        line = results.enter(one.key, study, label, (LR, CLIP), SEED, losses(settings))
        print(time.strftime("%H:%M:%S"), *line["label"], line["loss"][-1], flush=True)

    shared(results.path.parent, trainings(study), lambda one: one.key, train)


STUDIES = {study: partial(run, study=study) for study in (LOGISTIC, LENET, REST)}
