"""Figure 8 of Liu et al. (2024): a budget for every record, on three federations under three
distributions of budgets; 15 rounds of 50 local steps.

Guarantee: learning rates are searched for every method and distribution, on training rows that are
held out, never on test rows. For MNIST this is done once, with a seed of its own; for heart, where
a test row of one seed is a training row of another, anew for every seed, within its own training
rows. An accuracy is the mean over clients of that on test rows of their own kind.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only records

A search for MNIST begins where an earlier one, on the same grid and with other seeds, ended, and
moves on until neither neighbour is better. For heart that was the first search, too; but so few
held-out rows often find neighbours exactly as good, and it then stayed where it began. So every
learning rate of a grid is tried there now, for every method. Seeds are run one after the other, so
that all cells have as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from claims import shared
from experiment import (
    SEEDS,
    STEP,
    TUNING_SEED,
    Finished,
    Results,
    Settings,
    Unfinished,
    key_of,
    prepared,
    searched,
)

if TYPE_CHECKING:
    from fedspend.data import Federation as Dealt

STUDY = "records"
DISTRIBUTIONS = ("three-levels", "bounded-pareto", "bounded-mix-gauss")
RPDP, FREE, SAVING = "rpdp", "privacy-free", "rpdp, saving 0.5"
METHODS: dict[str, Settings] = {
    RPDP: {"method.name": "rpdp", "method.rates": "exact"},
    "minimum": {"method.name": "minimum"},
    "dropout": {"method.name": "dropout"},
    FREE: {"method.name": "privacy-free", "train.batch_size": 32},
    "filter": {"method.name": "filter", "method.charge": "clip"},
    SAVING: {"method.name": "rpdp", "method.rates": "exact", "method.saving_share": 0.5},
}
COMPARED = ("minimum", "dropout")  # what the paper has rpdp ahead of
TRIES = 10
TRAINING = {
    "train.rounds": 15,
    "train.local_steps": 50,
    "train.lr_schedule": "constant",
    "train.momentum": 0.0,
    "train.server_lr": 1.0,
    "train.server_momentum": 0.0,
    "train.tail_average": 1,
}


@dataclass(frozen=True, eq=False)
class Federation:
    """Data, dealt to clients, with all settings but those of the method."""

    settings: Settings
    privacy: Settings
    held_out: Settings  # what is different when a learning rate is searched
    start: Mapping[str, float]  # of the search, by method
    methods: tuple[str, ...] = (FREE, RPDP, *COMPARED)
    by_seed: bool = False  # whether learning rates are searched for every seed
    rates: tuple[float, ...] = ()  # learning rates that are all tried; none: a search from `start`
    same_minimum: bool = False  # one noise multiplier and one strictest budget, so one run for all
    private: Settings = field(
        default_factory=lambda: {"privacy.noise": "central", "privacy.randomness": "seeded"}
    )


FEATURES = {"model.name": "logistic", "model.features": "gabor"}
MNIST: Settings = {"data.name": "mnist", "data.share": 0.66, "data.clients": 10, **FEATURES}
IID = Federation(
    {**MNIST, "data.partition": "iid"},
    {
        "privacy.delta": 1e-4,
        "privacy.rate": 0.8,
        "privacy.noise_multiplier": 4.0,
        "privacy.clip": 1.0,
    },
    {"data.share": 1.0, "data.validation": 0.34},  # as many rows to train on as without
    {RPDP: 0.4, "minimum": 0.05, "dropout": 0.1, FREE: 0.4},
    same_minimum=True,
)
FEDERATIONS = {
    "heart": Federation(
        {
            "data.name": "heart",
            "data.partition": "natural",
            "model.name": "logistic",
            "model.features": "none",
        },
        {"privacy.delta": 1e-3, "privacy.rate": 1.0, "privacy.clip": 0.5},
        {"data.validation": 0.25},
        dict.fromkeys(METHODS, 0.05),
        tuple(METHODS),
        by_seed=True,
        rates=tuple(0.05 * STEP**n for n in range(-4, 4)),
    ),
    "mnist-iid": IID,
    "mnist-niid": replace(
        IID, settings={**MNIST, "data.partition": "classes", "data.classes_per_client": 5}
    ),
}


@dataclass(frozen=True)
class Cell:
    """One method under one distribution; training without privacy has none."""

    data: str
    method: str
    drawn: str = ""

    @property
    def federation(self) -> Federation:
        return FEDERATIONS[self.data]

    @property
    def label(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.data, self.drawn, self.method)))

    def settings(self, lr: float, seed: int, *, held_out: bool) -> dict[str, Any]:
        """Every setting of a run. Heart has no noise multiplier: it is suggested by the budgets."""
        terms = self.federation
        made = {**terms.settings, **TRAINING, **METHODS[self.method]}
        if self.drawn:
            made |= {**terms.privacy, **terms.private, "privacy.preferences": self.drawn}
        made |= {"train.lr": lr, "train.seed": seed}
        return made | (dict(terms.held_out) if held_out else {})


def cell(data: str, method: str, drawn: str) -> Cell:
    """The cell of the figure; one that is the same run as another is that one."""
    if method == FREE:
        return Cell(data, method)
    same = method == "minimum" and FEDERATIONS[data].same_minimum
    return Cell(data, method, DISTRIBUTIONS[0] if same else drawn)


def arms() -> list[Cell]:
    """Every cell once."""
    return list(
        dict.fromkeys(
            cell(data, method, drawn)
            for data, terms in FEDERATIONS.items()
            for method in terms.methods
            for drawn in DISTRIBUTIONS
        )
    )


def run(results: Results) -> None:
    """One seed of every cell, then the next."""

    def finish(item: tuple[int, Cell]) -> None:
        seed, one = item
        results.read_again()
        line_of(results, one, chosen(results, one, seed), seed)

    work = list(product(SEEDS, arms()))
    shared(results.path.parent, work, lambda item: ", ".join((STUDY, *item[1].label)), finish)


def chosen(results: Results, one: Cell, seed: int) -> float:
    """The learning rate with the best accuracy on held-out training rows; of several, that which is
    nearest to the start.
    """
    terms = one.federation
    if not terms.rates:
        return first_chosen(results, one, seed)
    steps = {rate: abs(np.log2(rate / terms.start[one.method])) for rate in terms.rates}
    return max(sorted(steps, key=steps.__getitem__), key=partial(held_out, results, one, seed))


def first_chosen(results: Results, one: Cell, seed: int) -> float:
    """The learning rate by a search that ends where neither neighbour is better."""
    start = one.federation.start[one.method], 1.0
    (lr, _), _ = searched(
        lambda choice: held_out(results, one, seed, choice[0]), start, TRIES, clips=False
    )
    return lr


def held_out(results: Results, one: Cell, seed: int, lr: float) -> float:
    """Accuracy on the rows that the learning rate of this seed is chosen on."""
    tuning = seed if one.federation.by_seed else TUNING_SEED
    return float(line_of(results, one, lr, tuning, held_out=True)["accuracy"])


def undecided(results: Finished, one: Cell, seed: int) -> bool:
    """Whether another learning rate of the grid is exactly as good as the one that was chosen."""
    scores = [held_out(results, one, seed, rate) for rate in one.federation.rates]
    return scores.count(max(scores)) > 1


def line_of(
    results: Results, one: Cell, lr: float, seed: int, *, held_out: bool = False
) -> dict[str, Any]:
    """From the file, or run now."""
    settings = one.settings(lr, seed, held_out=held_out)
    key = key_of({**settings, "study": STUDY})
    if key not in results.found and isinstance(results, Finished):
        raise Unfinished(*one.label)
    if key not in results.found:
        choice = lr, settings.get("privacy.clip", 0.0)
        share = settings.get("data.validation", 0.0)
        line = results.enter(key, STUDY, one.label, choice, seed, measured(settings), share)
        print(time.strftime("%H:%M:%S"), *one.label, lr, seed, line["accuracy"], flush=True)
    return results.found[key]


Choose = Callable[[Results, Cell, int], float]  # a learning rate for a seed of a cell


def lines(results: Finished, one: Cell, choose: Choose = chosen) -> dict[int, dict[str, Any]]:
    """Its finished runs by seed, at the learning rates that were chosen."""
    found = {}
    for seed in SEEDS:
        try:
            found[seed] = line_of(results, one, choose(results, one, seed), seed)
        except Unfinished:
            continue
    return found


# --- one run --------------------------------------------------------------------------------------


def measured(settings: Settings) -> dict[str, Any]:
    """Accuracy after training, and that of always guessing the commonest class of the training
    rows; noise multiplier and noise of a step over its batch, in clips; CPU seconds.
    """
    import torch

    from fedspend.models.evaluation import scores

    began = time.process_time()
    setup, play = prepared(settings)
    *_, last = play(None)
    data = setup.federation.dataset
    model = torch.from_numpy(last.parameters.astype(np.float32))
    answers = scores(setup.module, model, torch.from_numpy(data.test_features)).argmax(dim=1)
    right = answers.numpy() == data.test_labels
    guessed = data.test_labels == np.bincount(data.labels).argmax()
    if data.client_of is None:
        mean = partial(over_clients, setup.federation)
    else:  # rows that are held out do not say whose they are
        mean = np.mean if settings.get("data.validation") else over_centres
    found: dict[str, Any] = {
        "accuracy": round(float(mean(right)), 5),
        "guess": round(float(mean(guessed)), 5),
    }
    if setup.plan is not None:
        noise = setup.plan.terms.noise_multiplier
        batch = setup.plan.expected_batch(1).mean()
        found |= {"noise": noise, "over_batch": round(float(noise / batch), 5)}
    return found | {"seconds": round(time.process_time() - began, 2)}


def over_clients(federation: Dealt, right: np.ndarray[Any, Any]) -> float:
    """Mean over clients of the share of right answers on test rows whose classes are mixed as in
    the client's training rows.
    """
    data = federation.dataset
    by_class = [right[data.test_labels == label].mean() for label in range(data.classes)]
    mixes = [
        np.bincount(data.labels[rows], minlength=data.classes) / len(rows)
        for rows in federation.shards
    ]
    return float(np.mean(mixes @ np.array(by_class)))


def over_centres(right: np.ndarray[Any, Any]) -> float:
    """Mean over the centres of heart on their own test rows, which stand in this order."""
    from fedspend.data.heart import CENTRES, TRAINED, read_centre
    from fedspend.data.sources import require

    place = require("heart")
    counts = [len(read_centre(place / f"processed.{name}.data")[1]) for name in CENTRES]
    ends = np.cumsum([count - round(TRAINED * count) for count in counts])
    assert ends[-1] == len(right)
    return float(np.mean([part.mean() for part in np.split(right, ends[:-1])]))
