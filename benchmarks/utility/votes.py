"""What votes on public rows (AE-DPFL) are worth beside DP-FedAvg at equal epsilon: MNIST by writer, a small model and a large one.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/votes.py run --output votes.jsonl   # goes on where it stopped
    .venv/bin/python benchmarks/utility/votes.py show --output votes.jsonl

Both arms have the same federation: a fifth of the training rows is set aside as public, and only the voting arm uses it, without
labels. Both are tuned over equally many cells, with a seed of their own, by accuracy on training rows that are held out; nothing
is chosen on the test set. Then every cell runs with the same seeds, so that differences are paired.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shape import Results

from fedspend.comparison import interval

CONFIG = "writers-votes.toml"
SEEDS = 3
# As many trainings of clients either way: many rounds of few clients, or few rounds of all.
FEW, ALL = ("privacy.rate=0.1", "train.rounds=40"), ("privacy.rate=1", "train.rounds=4")


@dataclass(frozen=True)
class Study:
    """A model, the epsilons it is run at, and for each method the settings that tuning may choose: one of each list."""

    model: tuple[str, ...]
    epsilons: tuple[int, ...]
    grids: dict[str, tuple[tuple[tuple[str, ...], ...], ...]]


def one_of(key: str, *values: float) -> tuple[tuple[str, ...], ...]:
    return tuple((f"{key}={value}",) for value in values)


STUDIES = {
    "gabor": Study(
        model=(),
        epsilons=(2, 4, 6, 8),
        grids={
            "dp-fedavg": ((FEW, ALL), one_of("privacy.clip", 0.3, 1.0), one_of("train.lr", 0.1, 0.2)),
            "ae-dpfl": (((*FEW, "votes.queries=300"), ALL), one_of("votes.lr", 0.02, 0.1), one_of("train.lr", 0.1, 0.2)),
        },
    ),
    "mlp": Study(
        model=("model.features=none", "model.name=mlp", "model.hidden=[200]"),
        epsilons=(2, 8),
        grids={
            "dp-fedavg": ((FEW,), one_of("privacy.clip", 0.3, 1.0), one_of("train.lr", 0.2, 0.4)),
            "ae-dpfl": ((ALL,), one_of("votes.queries", 300, 1000), one_of("train.lr", 0.2, 0.4)),
        },
    ),
}


def tuned(results: Results, study: str, method: str) -> list[str]:
    """The settings with the best accuracy on held-out training rows, at epsilon 4 and seed 100."""
    cells = {}
    for choice in itertools.product(*STUDIES[study].grids[method]):
        settings = list(itertools.chain(*choice))
        overrides = [*STUDIES[study].model, *settings, "data.validation=0.05", "train.seed=100", "privacy.epsilon=4"]
        cell = f"tune {method}, {' '.join(settings)}"
        cells[tuple(settings)] = results.accuracy(study, CONFIG, cell, overrides, 1, method)[0]
    return list(max(cells, key=lambda choice: cells[choice]))


def run(study: str, results: Results) -> None:
    methods = tuple(STUDIES[study].grids)
    chosen = {method: tuned(results, study, method) for method in methods}
    print(study, "chosen:", chosen, flush=True)
    for epsilon, method in itertools.product(STUDIES[study].epsilons, methods):
        overrides = [*STUDIES[study].model, *chosen[method], f"privacy.epsilon={epsilon}"]
        results.accuracy(study, CONFIG, f"epsilon {epsilon}, {method}", overrides, SEEDS, method)


def show(results: Results) -> None:
    """Means in percent with their 95% intervals; differences are paired by seed."""
    for study, terms in STUDIES.items():
        for epsilon in terms.epsilons:
            names = [f"{study}: epsilon {epsilon}, {method}" for method in ("dp-fedavg", "ae-dpfl")]
            if all(name in results.found for name in names):
                updates, votes = (100 * np.array(results.found[name]["accuracy"]) for name in names)
                numbers = [interval(values) for values in (updates, votes, votes - updates)]
                print(f"{study:6} epsilon {epsilon}  " + "  ".join(f"{mean:6.2f} +- {half:.2f}" for mean, half in numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("--only", choices=STUDIES, action="append", help="default: everything")
    parser.add_argument("--output", type=Path, required=True, help="file with one JSON line per cell")
    args = parser.parse_args()
    results = Results(args.output)
    if args.action == "run":
        for study in args.only or STUDIES:
            run(study, results)
    show(results)


if __name__ == "__main__":
    main()
