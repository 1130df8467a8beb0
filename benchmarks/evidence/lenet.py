"""Figures 3 to 6 of Gu et al. (2023) for LeNet in the paper's own setting, with one seed of its 50.

A search over noise levels (examples/design/mnist-lenet.toml) for each of its variants: local steps,
clients, a tenth of the data. The searches resume in FOLDER/lenet; one line each in lenet.jsonl.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only lenet
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from experiment import Results, key_of

STUDY = "lenet"
CONFIG = Path(__file__).parents[2] / "examples" / "design" / "mnist-lenet.toml"
COMMON = ("design.seeds=1", "engine.workers=1")
VARIANTS = {
    "K = 10, E = 20": (),
    "10% of the data": ("data.share=0.1",),
    "K = 5": ("data.clients=5",),
    "K = 20": ("data.clients=20",),
    "E = 10": ("train.local_steps=10",),
    "E = 5": ("train.local_steps=5",),
}


def key(overrides: tuple[str, ...]) -> str:
    return key_of({"config": CONFIG.name, "overrides": [*COMMON, *overrides]})


def finite(value: float) -> float | None:
    """The number, or None where there is none, as with a single noise level."""
    return value if math.isfinite(value) else None


def run(results: Results) -> None:
    from fedspend.design.searching import run_search

    for name, overrides in VARIANTS.items():
        if key(overrides) in results.found:
            continue
        began = time.process_time()
        folder = results.path.parent / STUDY / key(overrides)
        found = run_search(CONFIG, folder, overrides=(*COMMON, *overrides), workers=1).findings
        estimate, gap = found.k, found.gap
        results.add(
            {
                "key": key(overrides),
                "study": STUDY,
                "label": [name],
                "lr": 0.01,
                "clip": 0.5,
                "seed": 1,
                "held_out": 0.0,
                "k": estimate
                and [finite(one) for one in (estimate.k, estimate.low, estimate.high)],
                "slope": estimate and finite(estimate.exponent),
                "gap": None if gap is None else [gap.mean, gap.largest],
                # of this process: a search that was resumed took longer
                "seconds": round(time.process_time() - began, 2),
            }
        )
