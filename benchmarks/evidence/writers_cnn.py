"""BLUR and LUS (Cheng et al. 2022) with a small CNN, trained from scratch, on MNIST by writer.

The setting of examples/shape/writers.toml: 20,490 parameters, rate 0.05, 20 rounds of 10 steps of
16 digits. Plain DP-FedAvg, and with BLUR and LUS at the paper's lambda lr and sparsity, LUS by the
last batch. Learning rate and clip are tuned for each of the two at epsilon 4, by six tries at most,
and used at the other epsilons; three seeds. At epsilon 4 also with sparsity, then lambda chosen on
held-out rows, and LUS at the final local model.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only writers-cnn
"""

from __future__ import annotations

from dataclasses import replace

import cheng
import shaping
from experiment import Arm

STUDY = "writers-cnn"
TUNED_AT = 4.0
SETTINGS = {
    "model.name": "small-cnn",
    "model.features": "none",
    "privacy.rate": 0.05,
    "train.rounds": 20,
    "train.local_steps": 10,
    "train.batch_size": 16,
}


def arm(epsilon: float, *, shaped: bool) -> Arm:
    pull, sparsity = (cheng.PULL_BY_WRITER, cheng.SPARSITY) if shaped else (0.0, 0.0)
    base = shaping.arm("mnist-writers", epsilon, pull, sparsity)
    made = replace(
        base,
        study=STUDY,
        label=(*base.label, "small CNN"),
        settings={**base.settings, **SETTINGS},
        start=(0.2, 0.6),
        tries=6,
    )
    return made if epsilon == TUNED_AT else replace(made, like=arm(TUNED_AT, shaped=shaped))


def chosen() -> Arm:
    """With sparsity and lambda chosen, at the epsilon at which the others are tuned."""
    made = cheng.with_chosen(arm(TUNED_AT, shaped=True), arm(TUNED_AT, shaped=False))
    return replace(made, study=STUDY)


def arms() -> list[Arm]:
    epsilons = sorted(shaping.EPSILONS, key=lambda one: abs(one - TUNED_AT))
    found = [arm(epsilon, shaped=shaped) for epsilon in epsilons for shaped in (False, True)]
    return [*found, chosen()]
