"""rPDP-FL against its baselines (Liu et al. 2024, Figure 8): Fed-Heart-Disease, MNIST-IID and
MNIST-NIID; T = 15, tau = 50.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/utility/records.py run --output records.jsonl   #
    goes on where it stopped .venv/bin/python benchmarks/utility/records.py show --output
    records.jsonl

Mean over clients of the accuracy on their own kind of test rows; a seed draws deal, budgets,
samples and noise. Learning rates are chosen for each method and distribution on training rows that
are held out, never on test rows: for MNIST once, with a seed that is not among the five; for heart,
whose split belongs to the seed, anew for every seed within its own training rows.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspend.configuration.config import load_config
from fedspend.data import Dataset, Federation
from fedspend.data.heart import CENTRES, TRAINED, read_centre
from fedspend.data.sources import require
from fedspend.runs.comparison import interval
from fedspend.runs.running import run as train
from fedspend.runs.setup import from_config

EXAMPLES = Path(__file__).parents[2] / "examples" / "records"
DISTRIBUTIONS = ("three-levels", "bounded-pareto", "bounded-mix-gauss")
PAPER = ("rpdp", "minimum", "dropout")
SAVING = "rpdp, saving 0.5"
FREE = "privacy-free"
TUNING_SEED = 100


@dataclass(frozen=True)
class Study:
    """A config, and what is run with it."""

    config: str
    rates: tuple[float, ...]
    held_out: tuple[str, ...]  # how learning rates are chosen
    tuned_for_each_seed: bool = False
    methods: tuple[str, ...] = PAPER
    seeds: int = 5


MNIST_RATES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
# trains on as many rows as with data.share = 0.66
MNIST_HELD_OUT = ("data.share=1", "data.validation=0.34")
STUDIES = {
    "heart": Study(
        "heart.toml",
        (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
        ("data.validation=0.25",),
        True,
        methods=(*PAPER, "filter", SAVING),
    ),
    "mnist-iid": Study("mnist-iid.toml", MNIST_RATES, MNIST_HELD_OUT),
    "mnist-niid": Study("mnist-niid.toml", MNIST_RATES, MNIST_HELD_OUT),
}


class Results:
    """One JSON line per run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found: dict[str, dict[str, Any]] = {
            line["run"]: line for line in map(json.loads, lines)
        }

    def accuracy(
        self, study: str, distribution: str, method: str, seed: int, lr: float, tuning: bool
    ) -> float:
        """From the file, or run now."""
        key = f"{study}: {distribution}, {method}, seed {seed}, " + (
            f"tuning lr {lr}" if tuning else "test"
        )
        if key not in self.found or self.found[key]["lr"] != lr:
            began = time.process_time()
            terms = STUDIES[study]
            name = (
                ["method.name=rpdp", "method.saving_share=0.5"]
                if method == SAVING
                else [f"method.name={method}"]
            )
            drawn = [] if method == FREE else [f"privacy.preferences={distribution}"]
            held_out = terms.held_out if tuning else ()
            measured = accuracy(
                terms.config,
                [*name, *drawn, *held_out, f"train.seed={seed}", f"train.lr={lr}"],
                tuning,
            )
            seconds = round(time.process_time() - began, 1)
            self.found[key] = {"run": key, "accuracy": measured, "lr": lr, "cpu_seconds": seconds}
            with self.path.open("a") as file:
                file.write(json.dumps(self.found[key]) + "\n")
            print(f"{key}, lr {lr}: {measured:.4f}, {seconds} s", flush=True)
        return float(self.found[key]["accuracy"])

    def tested(
        self, study: str, distribution: str, method: str
    ) -> tuple[np.ndarray[Any, Any], list[float]]:
        """Accuracy in percent by seed, as far as there is any, and the learning rates that were
        chosen.
        """
        keys = [
            f"{study}: {distribution}, {method}, seed {seed}, test"
            for seed in range(STUDIES[study].seeds)
        ]
        lines = [self.found[key] for key in keys if key in self.found]
        return np.array([100 * line["accuracy"] for line in lines]), sorted(
            {line["lr"] for line in lines}
        )


def accuracy(config: str, overrides: list[str], tuning: bool) -> float:
    setup = from_config(load_config(EXAMPLES / config, overrides))
    model, dataset = train(setup, None).model, setup.federation.dataset
    with torch.no_grad():
        right = (
            model(torch.from_numpy(dataset.test_features)).argmax(dim=1).numpy()
            == dataset.test_labels
        ).astype(float)
    if dataset.name != "heart":
        return over_clients(setup.federation, right)
    return float(right.mean()) if tuning else over_centres(right)


def over_clients(federation: Federation, right: np.ndarray[Any, Any]) -> float:
    """Mean over clients of the accuracy on test rows whose classes are mixed as in the client's
    training rows.
    """
    data: Dataset = federation.dataset
    by_class = [right[data.test_labels == label].mean() for label in range(data.classes)]
    mixes = [
        np.bincount(data.labels[rows], minlength=data.classes) / len(rows)
        for rows in federation.shards
    ]
    return float(np.mean(mixes @ np.array(by_class)))


def over_centres(right: np.ndarray[Any, Any]) -> float:
    """Mean over centres of the accuracy on their own test rows, which stand in this order."""
    counts = [
        len(read_centre(require("heart") / f"processed.{centre}.data")[1]) for centre in CENTRES
    ]
    ends = np.cumsum([count - round(TRAINED * count) for count in counts])
    return float(np.mean([part.mean() for part in np.split(right, ends[:-1])]))


def cells(study: str) -> list[tuple[str, str]]:
    """Distributions and methods; training without privacy once."""
    terms = STUDIES[study]
    return [
        (FREE, FREE),
        *((distribution, method) for method in terms.methods for distribution in DISTRIBUTIONS),
    ]


def run(study: str, results: Results) -> None:
    for distribution, method in cells(study):
        for seed in range(STUDIES[study].seeds):
            results.accuracy(
                study,
                distribution,
                method,
                seed,
                chosen_rate(study, distribution, method, seed, results),
                tuning=False,
            )


def chosen_rate(study: str, distribution: str, method: str, seed: int, results: Results) -> float:
    """The learning rate that is better than its neighbours on the grid on held-out rows, uphill
    from the middle.
    """
    terms = STUDIES[study]
    tuning_seed = seed if terms.tuned_for_each_seed else TUNING_SEED

    def held_out(number: int) -> float:
        return results.accuracy(
            study, distribution, method, tuning_seed, terms.rates[number], tuning=True
        )

    at = len(terms.rates) // 2
    while True:
        best = max((n for n in (at - 1, at, at + 1) if 0 <= n < len(terms.rates)), key=held_out)
        if best == at:
            return terms.rates[at]
        at = best


def show(study: str, results: Results) -> None:
    """A table in Markdown: percent with its 95% interval, and in brackets rpdp minus the method,
    paired by seed.
    """
    print(f"\n| {study} | {' | '.join(DISTRIBUTIONS)} |\n|---|---|---|---|")
    for method in STUDIES[study].methods:
        print(
            f"| {method} | "
            f"{' | '.join(cell(results, study, drawn, method) for drawn in DISTRIBUTIONS)} |"
        )
    print(f"| {FREE} | {cell(results, study, FREE, FREE)} | | |")


def cell(results: Results, study: str, distribution: str, method: str) -> str:
    found, rates = results.tested(study, distribution, method)
    if not found.size:
        return "not run"
    ours, _ = results.tested(study, distribution, "rpdp")
    behind = (
        ""
        if method in ("rpdp", FREE) or found.size != ours.size
        else f" ({shown(ours - found, '+')})"
    )
    return f"{shown(found)}{behind}, lr {' '.join(f'{lr:g}' for lr in rates)}"


def shown(values: np.ndarray[Any, Any], sign: str = "") -> str:
    mean, half = interval(values)
    return f"{mean:{sign}.1f} ± {half:.1f}" if half is not None else f"{mean:{sign}.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("--only", choices=STUDIES, action="append", help="default: everything")
    parser.add_argument(
        "--output", type=Path, required=True, help="file with one JSON line per run"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.output)
    for study in args.only or STUDIES:
        if args.action == "run":
            run(study, results)
        show(study, results)


if __name__ == "__main__":
    main()
