"""The policy `optimal` with measured influence, where uniform spending and saving are compared.

What `fedspend design influence` measures in runs without noise, with a seed of its own, is what the
plan is made for. Fashion-MNIST and MNIST, (2, 5, 10), the three learning rates of `over_time`; the
learning rate and clip of examples/papers, and those that were chosen for uniform spending.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only by-influence

Influence is measured on the training rows themselves, which are public here; a consortium would
measure it on public rows that resemble its own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import over_time
from experiment import (
    SEEDS,
    TUNING_SEED,
    Arm,
    Choice,
    Finished,
    Outcome,
    Results,
    Unfinished,
    by_section,
    key_of,
    measured,
    tuned,
)
from in_memory import in_memory
from over_time import AS_SHIPPED, SHIPPED

STUDY = "by-influence"
TUNED = "tuned for uniform"


@dataclass(frozen=True)
class Cell:
    """One data set and learning rate; `uniform` is the arm that its learning rate and clip are
    from.
    """

    data: str
    schedule: str
    chosen: str

    @property
    def uniform(self) -> Arm:
        if self.chosen == AS_SHIPPED:
            return over_time.as_shipped(self.data, self.schedule, "uniform")
        return over_time.arm(self.data, over_time.TIGHT, self.schedule, "uniform")

    def influence(self, choice: Choice) -> str:
        """The key of its measurement."""
        return key_of({**self.uniform.at(choice, TUNING_SEED), "measured": "influence"})

    def settings(self, choice: Choice, seed: int) -> dict[str, Any]:
        """Every setting of a run; its influence by the key."""
        plain = self.uniform.at(choice, seed)
        optimal = over_time.SPENDING["optimal"]
        return {**plain, **optimal, "privacy.influence": self.influence(choice)}


def arms() -> list[Cell]:
    """The paper's way of training first."""
    return [
        Cell(data, schedule, chosen)
        for schedule in over_time.SCHEDULES
        for chosen in (AS_SHIPPED, TUNED)
        for data in SHIPPED
    ]


def run(results: Results) -> None:
    for cell in arms():
        choice, _ = tuned(results, cell.uniform)
        if cell.influence(choice) not in results.found:
            _add(results, cell, choice, TUNING_SEED, cell.influence(choice), _measure(cell, choice))
        for seed in SEEDS:
            settings = cell.settings(choice, seed)
            if key_of(settings) not in results.found:
                document = results.found[cell.influence(choice)]["document"]
                _add(results, cell, choice, seed, key_of(settings), _trained(settings, document))


def _add(
    results: Results, cell: Cell, choice: Choice, seed: int, key: str, found: Mapping[str, Any]
) -> None:
    label = (cell.data, cell.schedule, cell.chosen)
    results.enter(key, STUDY, label, choice, seed, found)
    told = f"{found['last']:.4f}" if "last" in found else "influence"
    print(time.strftime("%H:%M:%S"), *label, seed, told, flush=True)


def _measure(cell: Cell, choice: Choice) -> dict[str, Any]:
    """What `fedspend design influence` would write for uniform spending."""
    from fedspend.configuration.config import any_config
    from fedspend.design.influence import measure_influence

    began = time.process_time()
    settings = in_memory(cell.uniform.at(choice, TUNING_SEED))
    document = measure_influence(any_config(by_section(settings))).document()
    return {"document": document, "seconds": round(time.process_time() - began, 2)}


def _trained(settings: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "influence.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return measured({**settings, "privacy.influence": str(path)})


def outcome(results: Finished, cell: Cell) -> Outcome | None:
    """What the file says of a cell; None if a part of it has not been run."""
    try:
        choice, tried = tuned(results, cell.uniform)
    except Unfinished:
        return None
    keys = [key_of(cell.settings(choice, seed)) for seed in SEEDS]
    if not all(key in results.found for key in keys):
        return None
    return Outcome(cell.uniform, choice, tried, tuple(results.found[key] for key in keys))
