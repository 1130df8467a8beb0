"""Several methods on the same data, partitions and seeds, with honest statistics.

Only seeded simulations are compared: every run on private data spends its budget, and choosing the best of several is one
more use of the data. The interval is Student's t over seeds; the difference to the first method is paired by seed, so what
a seed does to both cancels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.arrays import FloatArray
from fedspend.config import load_config
from fedspend.errors import InvalidInput
from fedspend.setup import ALL_METHODS


@dataclass(frozen=True, eq=False)
class Comparison:
    """Accuracy after every round, (methods, seeds, rounds)."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    accuracy: FloatArray

    def rows(self) -> list[dict[str, Any]]:
        """Per method: mean and interval of the final accuracy, and the paired difference to the first method."""
        final = self.accuracy[:, :, -1]
        out = []
        for n, name in enumerate(self.methods):
            mean, half = interval(final[n])
            difference, difference_half = interval(final[n] - final[0]) if n else (0.0, 0.0)
            out.append(
                {
                    "method": name,
                    "mean": mean,
                    "interval": half,
                    "difference": difference,
                    "difference_interval": difference_half,
                    "accuracy_by_seed": final[n].tolist(),
                }
            )
        return out


def interval(values: FloatArray, level: float = 0.95) -> tuple[float, float | None]:
    """Mean, and half the width of its confidence interval; None with a single value.

    >>> interval(np.array([1.0, 2.0, 3.0]))
    (2.0, 2.484...)
    """
    from scipy.stats import t

    if values.size < 2:
        return float(values.mean()), None
    return float(values.mean()), float(t.ppf((1 + level) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))


def compare(
    config: str | Path,
    methods: Sequence[str],
    seeds: int,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Train every method with every seed, in parallel over cores."""
    unknown = [name for name in methods if name not in ALL_METHODS]
    if unknown or len(set(methods)) != len(methods) or not methods:
        raise InvalidInput(f"methods must be different ones of {', '.join(ALL_METHODS)}; got {', '.join(methods) or 'none'}")
    settings = load_config(config, overrides)
    if settings.get("privacy.randomness") == "os":
        raise InvalidInput("compare runs seeded simulations only: every run on private data spends budget; drop randomness = 'os'")
    first = int(settings.get("train.seed"))
    jobs = [(name, first + k) for name in methods for k in range(seeds)]
    curves: dict[tuple[str, int], list[float]] = {}
    # One thread per run and one run per core: runs do not share anything.
    with ProcessPoolExecutor(workers or os.cpu_count() or 1, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        waiting = {pool.submit(_accuracies, str(config), list(overrides), name, seed): (name, seed) for name, seed in jobs}
        for future in as_completed(waiting):
            curves[waiting[future]] = future.result()
            if progress is not None:
                progress(len(curves), len(jobs))
    accuracy = np.array([[curves[name, first + k] for k in range(seeds)] for name in methods])
    return Comparison(tuple(methods), tuple(first + k for k in range(seeds)), accuracy)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _accuracies(config: str, overrides: list[str], method: str, seed: int) -> list[float]:
    from fedspend.setup import from_config
    from fedspend.training import run

    settings = load_config(config, [*overrides, f"method.name={method}", f"train.seed={seed}", "engine.workers=1"])
    # The config may name the policy of its own method; another method brings its own.
    return [line["accuracy"] for line in run(from_config(settings.without("privacy.policy")), None).metrics]
