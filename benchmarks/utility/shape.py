"""What BLUR and LUS are worth at equal epsilon: MNIST by writer, epsilon 2 to 8, and the ablation
over both strengths.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/shape.py run --output shape.jsonl   # goes
    on where it stopped .venv/bin/python benchmarks/utility/shape.py show --output shape.jsonl

Clip and learning rate are chosen for both arms alike, from the same grid, with a seed of their own
and by accuracy on training rows that are held out; nothing is chosen on the test set. Then every
cell runs with the same seeds, so that differences to the plain arm are paired.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.runs.comparison import compare, interval

EXAMPLES = Path(__file__).parents[2] / "examples" / "shape"
ARMS = {"plain": ("shape.blur=0", "shape.lus=0"), "blur + lus": ("shape.blur=0.4", "shape.lus=0.7")}
EPSILONS = (2, 4, 6, 8)
BLURS, SPARSITIES = (0, 0.05, 0.1, 0.2, 0.4, 0.8), (0, 0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Study:
    """A config, the grid of its tuning, and how many seeds it gets."""

    config: str
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    ablation: bool


STUDIES = {
    "cnn": Study("writers.toml", clips=(0.2, 0.6), rates=(0.1, 0.2), seeds=3, ablation=False),
    "gabor": Study(
        "writers-gabor.toml",
        clips=(0.1, 0.3, 1.0, 3.0),
        rates=(0.05, 0.1, 0.2, 0.4),
        seeds=5,
        ablation=True,
    ),
}


class Results:
    """One JSON line per cell that has been run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found: dict[str, dict[str, Any]] = {
            line["cell"]: line for line in map(json.loads, lines)
        }

    def accuracy(
        self,
        study: str,
        config: str,
        cell: str,
        overrides: list[str],
        seeds: int,
        method: str = "dp-fedavg",
    ) -> list[float]:
        """Final accuracy by seed: from the file, or run now."""
        key = f"{study}: {cell}"
        if key not in self.found:
            began = time.time()
            made = compare(EXAMPLES / config, [method], seeds, overrides, workers=1)
            self.found[key] = {
                "cell": key,
                "accuracy": made.final[0].tolist(),
                "overrides": overrides,
                "minutes": round((time.time() - began) / 60, 2),
            }
            with self.path.open("a") as file:
                file.write(json.dumps(self.found[key]) + "\n")
            print(
                key,
                np.round(self.found[key]["accuracy"], 4).tolist(),
                self.found[key]["minutes"],
                "min",
                flush=True,
            )
        return list(self.found[key]["accuracy"])


def tuned(results: Results, study: str, arm: str) -> list[str]:
    """Clip and learning rate with the best accuracy on held-out training rows, at epsilon 4 and
    seed 100.
    """
    grid = STUDIES[study]
    cells = {}
    for clip, lr in itertools.product(grid.clips, grid.rates):
        choice = [f"privacy.clip={clip}", f"train.lr={lr}"]
        held_out = ["data.validation=0.05", "train.seed=100", "privacy.epsilon=4"]
        overrides = [*ARMS[arm], *choice, *held_out]
        cells[tuple(choice)] = results.accuracy(
            study, grid.config, f"tune {arm}, clip {clip}, lr {lr}", overrides, 1
        )[0]
    return list(max(cells, key=lambda choice: cells[choice]))


def run(study: str, results: Results) -> None:
    chosen = {arm: tuned(results, study, arm) for arm in ARMS}
    print(study, "chosen:", chosen, flush=True)
    seeds, config = STUDIES[study].seeds, STUDIES[study].config
    for epsilon, (arm, shape) in itertools.product(EPSILONS, ARMS.items()):
        overrides = [*shape, *chosen[arm], f"privacy.epsilon={epsilon}"]
        results.accuracy(study, config, f"epsilon {epsilon}, {arm}", overrides, seeds)
    if not STUDIES[study].ablation:
        return
    for blur in BLURS:
        overrides = [f"shape.blur={blur}", "shape.lus=0", *chosen["plain"], "privacy.epsilon=4"]
        results.accuracy(study, config, f"ablation, blur {blur}, lus 0", overrides, seeds)
    for blur, lus in itertools.product((0, 0.4), SPARSITIES[1:]):
        overrides = [
            f"shape.blur={blur}",
            f"shape.lus={lus}",
            *chosen["plain"],
            "privacy.epsilon=4",
        ]
        results.accuracy(study, config, f"ablation, blur {blur}, lus {lus}", overrides, seeds)


def show(results: Results) -> None:
    """Means in percent; differences to the plain arm are paired by seed,
    with their 95% interval.
    """
    for study in STUDIES:
        found = {
            key.split(": ", 1)[1]: line
            for key, line in results.found.items()
            if key.startswith(f"{study}: ")
        }
        pairs = [(f"epsilon {e}, blur + lus", f"epsilon {e}, plain") for e in EPSILONS]
        pairs += [
            (cell, "ablation, blur 0, lus 0") for cell in found if cell.startswith("ablation")
        ]
        for cell, base in pairs:
            if cell in found and base in found:
                ours, plain = (100 * np.array(found[name]["accuracy"]) for name in (cell, base))
                mean, half = interval(ours - plain)
                print(
                    f"{study:6} {cell:32} {ours.mean():6.2f}  plain {plain.mean():6.2f}  "
                    f"difference {mean:+.2f} +- {half:.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("--only", choices=STUDIES, action="append", help="default: everything")
    parser.add_argument(
        "--output", type=Path, required=True, help="file with one JSON line per cell"
    )
    args = parser.parse_args()
    results = Results(args.output)
    if args.action == "run":
        for study in args.only or STUDIES:
            run(study, results)
    show(results)


if __name__ == "__main__":
    main()
