"""Figure 8 of Liu et al. (2024) with the paper's CNN: MNIST-IID, three-levels, one cell.

`rpdp` against `minimum`, two seeds, in the setting of examples/records/mnist-iid.toml with the CNN
in place of fixed features. The learning rate of `minimum`, 7 CPU minutes a run, is tuned; that of
`rpdp`, half an hour a run, is not.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only records-cnn
"""

from __future__ import annotations

from experiment import SEEDS, Arm
from record_budgets import TRAINING

STUDY = "records-cnn"
SETTINGS = {
    "data.name": "mnist",
    "data.share": 0.66,
    "data.clients": 10,
    "data.partition": "iid",
    "model.name": "cnn",
    "model.features": "none",
    "privacy.preferences": "three-levels",
    "privacy.delta": 1e-4,
    "privacy.rate": 0.8,
    "privacy.noise_multiplier": 4.0,
    "privacy.noise": "central",
    "privacy.randomness": "seeded",
    **TRAINING,
}


def arms() -> list[Arm]:
    return [
        Arm(
            STUDY,
            ("mnist-iid", "three-levels", method),
            {**SETTINGS, "method.name": method},
            start,
            "last",
            SEEDS[:2],
            tries=tries,
            clips=False,
        )
        for method, start, tries in (("minimum", (0.05, 1.0), 6), ("rpdp", (0.1, 1.0), 1))
    ]
