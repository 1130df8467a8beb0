"""The rest of Cheng et al. (2022): what it compares with, its Figures 3 and 4, and its CNN.

Beside DP-FedAvg with BLUR and LUS (`shaping`, whose learning rates and clips are used here):
the distributed discrete Gaussian (DDGauss) and one-shot votes on public rows (AE-DPFL), LUS with
the gradient at the final local model, CIFAR-10 by local steps and by participation, and a CNN of
1.0 million parameters.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only cheng

Differences from the paper: fixed features with logistic regression where it has a CNN; DDGauss has
the exact discrete noise of fedspend, added in parts by the clients, and no secure aggregation;
AE-DPFL votes on a fifth of the training rows, which nobody then trains on, in one round of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lus_final
import shaping
from experiment import SEEDS, Arm

STUDY = "cheng"
PULL, SPARSITY = 0.04, 0.7
STEPS = (10, 20, 30, 40)  # Figure 3
RATES = (0.02, 0.06, 0.1, 0.2)  # Figure 4
ALPHA = 1.0
EPSILONS = (4.0, 8.0, 2.0, 6.0)
CNN = "cheng:cnn"  # model.name


def named(arm: Arm, *words: str, **changes: Any) -> Arm:
    """The arm with other settings, named after them."""
    return replace(arm, study=STUDY, label=(*arm.label, *words), **changes)


def ddgauss(data: str, epsilon: float) -> Arm:
    """Plain DP-FedAvg whose clients add discrete noise, at the plain arm's choice."""
    plain = shaping.arm(data, epsilon, 0.0, 0.0)
    settings = {**plain.settings, "privacy.noise": "discrete-distributed", "privacy.bits": 32}
    return named(plain, "ddgauss", settings=settings, like=plain)


def one_shot(data: str, epsilon: float) -> Arm:
    """AE-DPFL: every client votes once on public rows, and a student learns from the votes."""
    plain = shaping.arm(data, epsilon, 0.0, 0.0)
    settings = {
        name: value
        for name, value in plain.settings.items()
        if not name.startswith("shape.")
        and name
        not in (
            "privacy.clipping",
            "privacy.clip_schedule",
            "train.server_lr",
            "train.server_momentum",
        )
    } | {
        "method.name": "ae-dpfl",
        "data.public_share": 0.2,
        "privacy.rate": 1.0,
        "train.rounds": 1,
        "votes.queries": 1000,
        "votes.epochs": 20,
        "votes.lr": 0.02,
    }
    return named(plain, "one-shot votes", settings=settings, start=(0.1, 1.0), clips=False, tries=4)


def final_gradient(data: str, epsilon: float, pull: float) -> Arm:
    """LUS at the final local model, at the choice of the last-batch form."""
    last_batch = shaping.arm(data, epsilon, pull, SPARSITY)
    settings = {**last_batch.settings, "engine.name": lus_final.NAME}
    return named(last_batch, "final gradient", settings=settings, like=last_batch, seeds=SEEDS[:3])


def by_steps(steps: int, pull: float) -> Arm:
    base = shaping.by_alpha(ALPHA, pull)
    settings = {**base.settings, "train.local_steps": steps}
    return named(base, f"{steps} steps", settings=settings, like=base, seeds=SEEDS[:3])


def by_rate(rate: float, pull: float) -> Arm:
    base = shaping.by_alpha(ALPHA, pull)
    settings = {**base.settings, "privacy.rate": rate}
    return named(base, f"rate {rate:g}", settings=settings, like=base, seeds=SEEDS[:3])


def with_cnn(data: str, epsilon: float, pull: float) -> Arm:
    base = shaping.arm(data, epsilon, pull, SPARSITY if pull else 0.0)
    settings = {**base.settings, "model.name": CNN, "model.features": "none"}
    return named(base, "CNN of 1.0M", settings=settings, start=(0.1, 0.3), tries=4, seeds=SEEDS[:2])


def arms() -> list[Arm]:
    """Cheap ones first."""
    data = tuple(shaping.DATA)
    found = [one_shot(name, epsilon) for name in data for epsilon in EPSILONS]
    found += [ddgauss(name, epsilon) for name in data for epsilon in EPSILONS]
    found += [by_steps(steps, pull) for steps in STEPS for pull in (0.0, PULL)]
    found += [by_rate(rate, pull) for rate in RATES for pull in (0.0, PULL)]
    found += [final_gradient(name, 4.0, PULL) for name in data]
    return found + [with_cnn("femnist", 4.0, pull) for pull in (0.0, PULL)]


def cnn(shape: tuple[int, ...], classes: int) -> Any:
    """Two 5x5 convolutions without padding and two linear layers: 1.0 million parameters for
    28x28 images and 62 classes.

    >>> sum(one.numel() for one in cnn((1, 28, 28), 62).parameters())
    1001109
    """
    from torch import nn

    channels, height, width = shape
    inner = 64 * ((height - 4) // 2 // 2 - 2) * ((width - 4) // 2 // 2 - 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(inner, 873),
        nn.ReLU(),
        nn.Linear(873, classes),
    )
