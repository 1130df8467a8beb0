"""What Kiani et al. (2025) print, taken at its word: its CNN with a clip of 250.

Fashion-MNIST, N = 100, q = 0.9, T = 25, budgets (10, 20, 30), uniform spending. The noise of one
round is a hundred times the weights, so it does not matter how long clients train: each takes one
step on a batch of 32, which keeps a run short.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only as-printed
"""

from __future__ import annotations

from dataclasses import replace

import kiani
from experiment import SEEDS, Arm

STUDY = "as-printed"
CLIP, LR = 250.0, 0.001
SHORT = {
    "model.name": "cnn",
    "model.features": "none",
    "data.share": 0.1,
    "train.local_steps": 1,
    "train.batch_size": 32,
}


def arms() -> list[Arm]:
    base = kiani.private("fashion-mnist", (10, 20, 30), "uniform", changes=SHORT)
    return [
        replace(base, study=STUDY, label=("clip 250",), start=(LR, CLIP), tries=1, seeds=SEEDS[:3])
    ]
