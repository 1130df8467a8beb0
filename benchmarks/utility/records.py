"""rPDP-FL against its baselines on Fed-Heart-Disease (Liu et al. 2024, Figure 8): T = 15, tau = 50, lambda = 1, delta = 1e-3.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/records.py -o results.json

Mean test accuracy over the four centres, five seeds; a seed draws split, budgets, samples and noise. Each method's learning rate
is chosen for each distribution on a sixth seed that is not among the five. The clip is 0.5 throughout; each method's noise
multiplier is the one that `suggest_noise` finds for the budgets of rpdp.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch

import fedspend
from fedspend import data
from fedspend.comparison import interval
from fedspend.data.heart import CENTRES, TRAINED, read_centre
from fedspend.data.sources import require

METHODS = ("rpdp", "minimum", "dropout", "filter", "rpdp-saving")
DISTRIBUTIONS = ("three-levels", "bounded-pareto", "bounded-mix-gauss")
RATES, CHOOSING_SEED = (0.5, 0.1, 0.02), 100


def config(method: str, distribution: str, seed: int, lr: float, rounds: int) -> dict[str, Any]:
    private = method != "privacy-free"
    return {
        "data": {"name": "heart", "partition": "natural"},
        "model": {"name": "logistic"},
        "method": {"name": method.removesuffix("-saving")} | ({"saving_share": 0.5} if method.endswith("-saving") else {}),
        "privacy": {"delta": 1e-3, "clip": 0.5} | ({"preferences": distribution} if private else {}),
        "train": {"rounds": rounds, "local_steps": 50, "lr": lr, "seed": seed, "batch_size": 32},
    }


def centre_sizes() -> list[int]:
    """How many test rows each centre has; they stand in this order."""
    counts = [len(read_centre(require("heart") / f"processed.{centre}.data")[1]) for centre in CENTRES]
    return [count - round(TRAINED * count) for count in counts]


def accuracy(settings: dict[str, Any]) -> float:
    """Mean over centres of the final model's accuracy on their test rows."""
    result = fedspend.train(settings)
    held = data.load("heart", seed=settings["train"]["seed"])
    with torch.no_grad():
        right = (result.model(torch.from_numpy(held.test_features)).argmax(dim=1).numpy() == held.test_labels).astype(float)
    return float(np.mean([part.mean() for part in np.split(right, np.cumsum(centre_sizes())[:-1])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells: dict[str, Any] = {}
    for distribution in DISTRIBUTIONS:
        for method in (*METHODS, *(("privacy-free",) if distribution == DISTRIBUTIONS[0] else ())):
            begun = time.time()
            tried = {lr: accuracy(config(method, distribution, CHOOSING_SEED, lr, args.rounds)) for lr in RATES}
            lr = max(tried, key=lambda value: tried[value])
            found = np.array([accuracy(config(method, distribution, seed, lr, args.rounds)) for seed in range(args.seeds)])
            mean, half = interval(found)
            cell = {"mean": mean, "interval": half, "lr": lr, "by_seed": found.tolist()}
            if method not in ("rpdp", "privacy-free"):
                over = np.array(cells[f"{distribution}/rpdp"]["by_seed"]) - found
                cell["rpdp_minus_this"], cell["difference_interval"] = interval(over)
            cells[f"{distribution}/{method}"] = cell
            print(distribution, method, json.dumps(cell), f"{time.time() - begun:.0f} s", file=sys.stderr, flush=True)
    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(cells, file, indent=1)


if __name__ == "__main__":
    main()
