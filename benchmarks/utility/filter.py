"""The Rényi filter against rPDP on pooled data (Liu et al. 2024, Table 2 and Figure 7): one client,
private gradient descent.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/filter.py heart -o filter-heart.json
    --plot filter.png

Three budget levels (70, 20 and 10% of the records), noise and clip as in the table; the paper names
neither the number of steps nor delta here, so delta is that of its other experiments. For heart,
number of steps and learning rate are chosen for each method on seeds that are not among the five. A
seed draws split, budgets, samples and noise. Time is CPU time of training per step, evaluation of
ten models included, median over seeds.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedspend
from fedspend import data
from fedspend.records import ThreeLevels
from fedspend.runs.comparison import interval

METHODS: dict[str, dict[str, Any]] = {
    "filter by norm": {"name": "filter", "charge": "norm"},
    "filter by clip": {"name": "filter", "common_rate": 1.0},
    "rpdp, exact rates": {"name": "rpdp"},
    "rpdp, scf-clamped": {"name": "rpdp", "rates": "scf-clamped"},
    "no privacy": {"name": "privacy-free"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "heart": {
        "data": {"name": "heart", "partition": "iid", "clients": 1},
        "model": {"name": "logistic"},
        "privacy": {"delta": 1e-3, "noise_multiplier": 10.0, "clip": 1.0},
        "levels": (0.9, 1.8, 4.2),
        "steps": (30, 100, 300),
        "lr": (0.1, 0.5, 2.0),
        "choosing": (100, 101, 102),
    },
    "mnist": {
        "data": {"name": "mnist", "partition": "iid", "clients": 1},
        "model": {"name": "logistic", "features": "gabor"},
        "privacy": {"delta": 1e-4, "noise_multiplier": 20.0, "clip": 5.0},
        "levels": (2.0, 4.7, 11.8),
        "steps": (150,),
        "lr": (0.5,),  # a step takes half a second: nothing is tuned
    },
}
ROUNDS = 10


def run(
    task: dict[str, Any], method: str, seed: int, steps: int, lr: float, folder: Path
) -> tuple[float, float, list[int]]:
    """Test accuracy, CPU seconds a step, and how many records took part in each step."""
    rows = len(data.load(task["data"]["name"], seed=seed).labels)
    budgets = ThreeLevels(levels=task["levels"]).draw(rows, np.random.default_rng(seed))
    place = folder / "budgets.csv"
    place.write_text(
        "record,epsilon\n"
        + "".join(f"{n},{epsilon}\n" for n, epsilon in enumerate(budgets.tolist()))
    )
    private = method != "no privacy"
    config = {
        "data": task["data"],
        "model": task["model"],
        "method": METHODS[method],
        "privacy": task["privacy"] | {"budgets": str(place)} if private else {},
        "train": {
            "rounds": ROUNDS,
            "local_steps": steps // ROUNDS,
            "lr": lr,
            "seed": seed,
            "batch_size": rows,
        },
    }
    marks: list[float] = []
    result = fedspend.train(
        config, on_round=lambda _record, _rounds: marks.append(time.process_time())
    )
    assert not private or bool((result.plan.epsilon <= result.plan.budget).all())
    active = [count for record in result.metrics for count in record.get("active", [])]
    return result.accuracy, (marks[-1] - marks[0]) / (steps - steps // ROUNDS), active


def choose(task: dict[str, Any], method: str, folder: Path) -> dict[str, Any]:
    """Number of steps and learning rate with the best mean accuracy over the choosing seeds."""
    pairs = list(itertools.product(task["steps"], task["lr"]))
    if len(pairs) == 1:
        return {"steps": pairs[0][0], "lr": pairs[0][1]}
    tried = {
        pair: float(
            np.mean([run(task, method, seed, *pair, folder)[0] for seed in task["choosing"]])
        )
        for pair in pairs
    }
    steps, lr = max(tried, key=lambda pair: tried[pair])
    return {
        "steps": steps,
        "lr": lr,
        "tried": [{"steps": k, "lr": eta, "accuracy": found} for (k, eta), found in tried.items()],
    }


def measure(task: dict[str, Any], seeds: int, folder: Path) -> dict[str, Any]:
    """Every method on every seed, side by side."""
    cells = {
        method: choose(task, method, folder) | {"by_seed": [], "seconds": []} for method in METHODS
    }
    for seed in range(seeds):
        for method, cell in cells.items():
            accuracy, seconds, _ = run(task, method, seed, cell["steps"], cell["lr"], folder)
            cell["by_seed"].append(accuracy)
            cell["seconds"].append(seconds)
            print(
                f"seed {seed}, {method}: {accuracy:.4f}, {seconds:.5f} s a step",
                file=sys.stderr,
                flush=True,
            )
    for cell in cells.values():
        cell["mean"], cell["interval"] = interval(np.array(cell["by_seed"]))
        cell["seconds_per_step"] = float(np.median(cell["seconds"]))
    return cells


def longest(task: dict[str, Any], cells: dict[str, Any], folder: Path) -> dict[str, list[int]]:
    """Active records by step of one long run of either filter, at its learning rate: Figure 7."""
    filters = [method for method in METHODS if method.startswith("filter")]
    return {
        method: run(task, method, 0, max(task["steps"]), cells[method]["lr"], folder)[2]
        for method in filters
    }


def plot(path: str, shown: dict[str, list[int]], task: dict[str, Any], name: str) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from fedspend.report.plots import LOOK

    with rc_context(LOOK):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        for (method, counts), colour in zip(shown.items(), ("#0072B2", "#D55E00"), strict=True):
            axes.plot(
                range(1, len(counts) + 1),
                counts,
                color=colour,
                linewidth=2,
                drawstyle="steps-mid",
                label=method,
            )
        planned = np.array(shown["filter by clip"])
        for last, level in zip(np.flatnonzero(np.diff(planned)) + 1, task["levels"], strict=False):
            axes.plot(last, planned[last - 1], "o", color="#222222", markersize=5)
            axes.annotate(
                f"ε {level:g}",
                (last, planned[last - 1]),
                xytext=(7, -2),
                textcoords="offset points",
                color="#222222",
            )
        axes.set_xlabel("step")
        axes.set_ylabel("records that take part")
        axes.set_ylim(0, None)
        axes.legend(frameon=False)
        levels = ", ".join(f"{level:g}" for level in task["levels"])
        axes.set_title(
            f"Active records: {name}, ε {levels}",
            loc="left",
            fontsize=13,
            fontweight="bold",
            color="#222222",
            pad=10,
        )
        figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=tuple(SETTINGS))
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plot")
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = SETTINGS[args.data]
    with tempfile.TemporaryDirectory() as folder:
        cells = measure(task, args.seeds, Path(folder))
        shown = longest(task, cells, Path(folder))
    if args.plot:
        plot(args.plot, shown, task, args.data)
    Path(args.output).write_text(
        json.dumps({"cells": cells, "active": shown}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
