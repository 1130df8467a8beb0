"""BLUR and LUS (Cheng et al. 2022) on FEMNIST by writer and MNIST by writer, fixed features.

DP-FedAvg plain, and with both, the pull lambda times the learning rate being 0.006, 0.012 (the
paper's) or 0.04; three seeds. Learning rate and clip of every arm are tuned; then, at epsilon 4,
the learning rate alone, at clips from 0.03 to 1, because BLUR acts at small ones. Its Figure 1,
BLUR without LUS at epsilon 6, is at the same clips. Then the sparsities of its Table 3, at the
plain arm's choice, and its Table 2: CIFAR-10 by how unlike the clients are.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only shaping
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from experiment import SEEDS, Arm

STUDY = "shaping"
EPSILONS = (2.0, 4.0, 6.0, 8.0)
PULLS = (0.006, 0.012, 0.04)
CLIPS = (0.03, 0.1, 0.3, 1.0)
SMALL_CLIP = 0.03  # the paper's on EMNIST
SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
# clients, rate and rounds; delta is just below 1 / clients, as in the paper
DATA: dict[str, dict[str, Any]] = {
    "femnist": {"privacy.delta": 3.3e-3, "privacy.rate": 0.2, "train.rounds": 60},
    "mnist-writers": {"privacy.delta": 1.85e-3, "privacy.rate": 0.1, "train.rounds": 40},
}
ALPHAS = (0.1, 1.0, 10.0, 100.0)
COMMON: dict[str, Any] = {
    "model.name": "logistic",
    "model.features": "gabor",
    "method.name": "dp-fedavg",
    "privacy.accountant": "rdp",
    "privacy.noise": "central",
    "privacy.clipping": "flat",
    "privacy.clip_schedule": "constant",
    "privacy.randomness": "seeded",
    "train.lr_schedule": "constant",
    "train.local_steps": 30,
    "train.batch_size": 32,
    "train.momentum": 0.0,
    "train.server_lr": 1.0,
    "train.server_momentum": 0.0,
    "train.tail_average": 1,
}


def arm(data: str, epsilon: float, pull: float, sparsity: float) -> Arm:
    settings = {
        **COMMON,
        **DATA[data],
        "data.partition": "natural",
        "data.name": data,
        "privacy.epsilon": epsilon,
        "shape.lus": sparsity,
    }
    over_lr = {"shape.blur": pull} if pull else {}
    if not pull:
        settings["shape.blur"] = 0.0
    label = (data, f"epsilon {epsilon:g}", f"pull {pull:g}", f"sparsity {sparsity:g}")
    return Arm(STUDY, label, settings, (0.1, 0.4), "last", SEEDS[:3], over_lr=over_lr)


def by_clip(data: str, clip: float, pull: float) -> Arm:
    """At a clip that is given; only the learning rate is tuned."""
    base = arm(data, 4.0, pull, 0.7 if pull else 0.0)
    label = (*base.label, f"clip {clip:g}")
    return replace(base, label=label, start=(0.1, clip), clips=False, tries=6)


def blur_alone(data: str, clip: float, pull: float) -> Arm:
    """Figure 1: BLUR without LUS, at epsilon 6 and a clip that is given."""
    base = arm(data, 6.0, pull, 0.0)
    label = (*base.label, f"clip {clip:g}")
    return replace(base, label=label, start=(0.1, clip), clips=False, tries=6)


def ablation(data: str) -> list[Arm]:
    """Table 3: by sparsity, with and without BLUR, at epsilon 6 and the plain arm's choice."""
    plain = arm(data, 6.0, 0.0, 0.0)
    pairs = itertools.product((0.0, 0.012), (0.0, *SPARSITIES))
    shaped = [arm(data, 6.0, pull, sparsity) for pull, sparsity in pairs if pull or sparsity]
    return [replace(one, label=(*one.label, "chosen for plain"), like=plain) for one in shaped]


def by_alpha(alpha: float, pull: float) -> Arm:
    """Table 2: CIFAR-10 with the paper's rate, batch and local steps, fixed features and 60 rounds.
    Its text states neither the number of clients nor epsilon: 500 and 8 here.
    """
    settings = {
        **COMMON,
        "data.name": "cifar10",
        "data.clients": 500,
        "data.partition": "dirichlet",
        "data.alpha": alpha,
        "privacy.epsilon": 8.0,
        "privacy.delta": 1.9e-3,
        "privacy.rate": 0.06,
        "train.rounds": 60,
        "train.batch_size": 50,
        "shape.lus": 0.7 if pull else 0.0,
    }
    over_lr = {"shape.blur": pull} if pull else {}
    if not pull:
        settings["shape.blur"] = 0.0
    label = ("cifar10", f"alpha {alpha:g}", f"pull {pull:g}")
    return Arm(STUDY, label, settings, (0.1, 0.3), "last", SEEDS[:3], over_lr=over_lr)


def arms() -> list[Arm]:
    """In the order in which they are run: a line of every kind first; of FEMNIST, whose runs are
    long, what a table or figure of the paper waits for, and its other pulls and clips last.
    """

    def lines(data: str, *epsilons: float) -> list[Arm]:
        return [
            arm(data, epsilon, pull, 0.7 if pull else 0.0)
            for epsilon in epsilons
            for pull in (0.0, *PULLS)
        ]

    def clipped(data: str) -> list[Arm]:
        return [by_clip(data, clip, pull) for clip in CLIPS for pull in (0.0, *PULLS)]

    return [
        *clipped("mnist-writers"),
        *lines("mnist-writers", 4.0, 2.0, 8.0, 6.0),
        *(
            blur_alone("mnist-writers", clip, pull)
            for clip, pull in itertools.product(CLIPS, (0.0, *PULLS))
        ),
        *ablation("mnist-writers"),
        *lines("femnist", 4.0),
        *(by_alpha(alpha, pull) for alpha in ALPHAS for pull in (0.0, 0.04)),
        *ablation("femnist"),
        *(blur_alone("femnist", SMALL_CLIP, pull) for pull in (0.0, *PULLS)),
        *lines("femnist", 6.0, 2.0, 8.0),
        *clipped("femnist"),
    ]
