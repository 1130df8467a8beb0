"""Spending over time with networks that are trained from scratch, on Fashion-MNIST.

The three learning rates of `over_time` x uniform, saving and `optimal` spending. Learning rate and
clip are tuned once per network, budgets and learning-rate schedule, with uniform spending, and used
for all three; three seeds, or two. Annealed, the small CNN has four times that clip, too: one that
nobody chose for the noise.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only networks
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import over_time
from experiment import SEEDS, Arm, Choice
from over_time import SCHEDULES

STUDY = "networks"
BUDGETS = ((2, 5, 10), (10, 20, 30))
SPENDING = ("uniform", "exact", "optimal")
TOO_LARGE = 4.0
WITH_LARGE_CLIPS = "small CNN"  # the cheapest


@dataclass(frozen=True)
class Network:
    """A model and what a run of it may cost: local steps, share of the rows, size of the search,
    number of seeds.
    """

    model: str
    steps: int
    share: float
    start: Choice
    tries: int
    seeds: int


NETWORKS = {
    "small CNN": Network("small-cnn", 10, 1.0, (0.2, 0.5), 6, 3),
    "LeNet": Network("lenet", 30, 1.0, (0.1, 0.5), 4, 2),
    "the paper's CNN": Network("cnn", 10, 0.2, (0.1, 0.5), 3, 2),
}


def arm(name: str, budgets: tuple[float, ...], schedule: str, spending: str) -> Arm:
    network = NETWORKS[name]
    base = over_time.arm("fashion-mnist", budgets, schedule, spending)
    settings = {
        **base.settings,
        "model.name": network.model,
        "model.features": "none",
        "data.share": network.share,
        "train.local_steps": network.steps,
        "train.batch_size": 16,
    }
    made = replace(
        base,
        study=STUDY,
        label=(name, *base.label[1:]),
        settings=settings,
        start=network.start,
        seeds=SEEDS[: network.seeds],
        tries=network.tries,
        curve=False,
    )
    return (
        made
        if spending == "uniform"
        else replace(made, like=arm(name, budgets, schedule, "uniform"))
    )


def with_large_clip(name: str, budgets: tuple[float, ...], spending: str) -> Arm:
    """Annealed, at a clip that is too large for the noise."""
    made = arm(name, budgets, "annealed", spending)
    return replace(
        made,
        label=(*made.label, f"clip times {TOO_LARGE:g}"),
        like=arm(name, budgets, "annealed", "uniform"),
        clip_times=TOO_LARGE,
    )


def arms() -> list[Arm]:
    """The small CNN first, then the others, tight budgets before large ones."""
    small, *larger = NETWORKS
    cells = [(small, budgets) for budgets in BUDGETS]
    cells += [(name, budgets) for budgets in BUDGETS for name in larger]
    found = []
    for name, budgets in cells:
        found += [arm(name, budgets, *one) for one in itertools.product(SCHEDULES, SPENDING)]
        if name == WITH_LARGE_CLIPS:
            found += [with_large_clip(name, budgets, spending) for spending in SPENDING]
    return found
