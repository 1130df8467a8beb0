"""What votes on public rows (AE-DPFL) are worth beside DP-FedAvg at equal epsilon: MNIST by writer,
logistic regression on Gabor.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/votes.py run --output votes.jsonl   # goes
    on where it stopped .venv/bin/python benchmarks/utility/votes.py show --output votes.jsonl

Both arms have the same federation: a fifth of the training rows is set aside as public, and only
the voting arm uses it, without labels. Both are tuned over equally many cells, with a seed of their
own, by accuracy on training rows that are held out; nothing is chosen on the test set. Then every
cell runs with the same seeds, so that differences are paired.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
from shape import Results

from fedspend.runs.comparison import interval

CONFIG = "writers-votes.toml"
METHODS = ("dp-fedavg", "ae-dpfl")
EPSILONS = (0.5, 2, 4, 6, 8)
SEEDS = 3
# As many trainings of clients either way: many rounds of few clients, or few rounds of all.
FEW, ALL = ("privacy.rate=0.1", "train.rounds=40"), ("privacy.rate=1", "train.rounds=4")
LAYOUTS = {"dp-fedavg": (FEW, ALL), "ae-dpfl": ((*FEW, "votes.queries=300"), ALL)}
STEPS = {
    "dp-fedavg": ("privacy.clip=0.3", "privacy.clip=1.0"),
    "ae-dpfl": ("votes.lr=0.02", "votes.lr=0.1"),
}
RATES = ("train.lr=0.1", "train.lr=0.2")


def tuned(results: Results, method: str) -> list[str]:
    """The settings with the best accuracy on held-out training rows, at epsilon 4 and seed 100."""
    cells = {}
    for layout, step, lr in itertools.product(LAYOUTS[method], STEPS[method], RATES):
        choice = (*layout, step, lr)
        held_out = ["data.validation=0.05", "train.seed=100", "privacy.epsilon=4"]
        cell = f"tune {method}, {' '.join(choice)}"
        cells[choice] = results.accuracy("gabor", CONFIG, cell, [*choice, *held_out], 1, method)[0]
    return list(max(cells, key=lambda choice: cells[choice]))


def run(results: Results) -> None:
    chosen = {method: tuned(results, method) for method in METHODS}
    print("chosen:", chosen, flush=True)
    for epsilon, method in itertools.product(EPSILONS, METHODS):
        overrides = [*chosen[method], f"privacy.epsilon={epsilon}"]
        results.accuracy("gabor", CONFIG, f"epsilon {epsilon}, {method}", overrides, SEEDS, method)


def show(results: Results) -> None:
    """Means in percent with their 95% intervals; differences are paired by seed."""
    for epsilon in EPSILONS:
        names = [f"gabor: epsilon {epsilon}, {method}" for method in METHODS]
        if all(name in results.found for name in names):
            updates, votes = (100 * np.array(results.found[name]["accuracy"]) for name in names)
            numbers = [interval(values) for values in (updates, votes, votes - updates)]
            print(
                f"epsilon {epsilon}  "
                + "  ".join(f"{mean:6.2f} +- {half:.2f}" for mean, half in numbers)
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument(
        "--output", type=Path, required=True, help="file with one JSON line per cell"
    )
    args = parser.parse_args()
    results = Results(args.output)
    if args.action == "run":
        run(results)
    show(results)


if __name__ == "__main__":
    main()
