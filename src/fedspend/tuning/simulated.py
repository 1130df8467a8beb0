"""A tune on rows that may be looked at: every setting, with several seeds, on held-out rows.

Guarantee: only seeded simulations are run, which protect nobody; on private rows each would be a
release that nobody is charged for, so those are refused. Success is measured on rows that are held
out of the training rows, never on the test rows: these stay fresh for the one that is chosen. What
is written says how many settings were tried, because the best of many looks better than it is.
A run is a pure function of its setting and seed, so a tune that was killed goes on with the rest
and ends with the same numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import append_line, as_line, read_lines, write_whole
from fedspend.basics.progress import OnProgress
from fedspend.basics.words import counted
from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.method_name import known_method
from fedspend.configuration.plan_inputs import resolve
from fedspend.configuration.sections import PRIVATE
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput, whole_number
from fedspend.runs.comparison import interval
from fedspend.server.methods.table import METHODS
from fedspend.tuning.best_config import best_config
from fedspend.tuning.grid import Setting

DEFAULT_SEEDS = 3
DEFAULT_VALIDATION = 0.2
SETTINGS, RUNS, BEST = "grid.json", "runs.jsonl", "best.toml"


@dataclass(frozen=True, eq=False)
class Tuned:
    """Accuracy on held-out rows of every setting, (settings, seeds)."""

    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    accuracy: FloatArray
    validation: float

    @property
    def best(self) -> Setting:
        """The setting with the highest mean; of equal ones the first."""
        return self.settings[int(self.accuracy.mean(axis=1).argmax())]

    def rows(self) -> list[dict[str, Any]]:
        """Every setting, the best one first, with its paired difference to the best."""
        order = np.argsort(-self.accuracy.mean(axis=1), kind="stable")
        out = []
        for n in order.tolist():
            mean, half = interval(self.accuracy[n])
            gap, gap_half = interval(self.accuracy[n] - self.accuracy[order[0]])
            out.append(
                {
                    "setting": self.settings[n].values(),
                    "mean": mean,
                    "interval": half,
                    "difference": gap,
                    "difference_interval": gap_half,
                    "accuracy_by_seed": self.accuracy[n].tolist(),
                }
            )
        return out

    def best_toml(self) -> str:
        """The config of the best setting, which says how it was found."""
        mean = float(self.accuracy.mean(axis=1).max())
        said = (
            f"best of {counted(len(self.settings), 'setting')}, each with "
            f"{counted(len(self.seeds), 'seed')}: accuracy {mean:.2%} on a share "
            f"{self.validation:g} of the training rows, held out; the best of many looks better "
            "than it is"
        )
        return best_config(self.best, said)


def tune_simulated(
    settings: Sequence[Setting],
    seeds: int,
    validation: float,
    folder: Path | None,
    *,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Tuned:
    """Train every setting with every seed, one run per core."""
    whole_number("seeds", seeds, 1)
    if workers is not None:
        whole_number("workers", workers, 1)
    if not 0 < validation < 1:
        raise InvalidInput(f"validation must lie between 0 and 1, got {validation!r}")
    share = settings[0].config.data.validation or validation
    configs = [_held_out(setting.config, share) for setting in settings]
    for config in configs:
        _check_plan(config)
    first = configs[0].train.seed
    kept = _Kept(folder, settings, share)
    jobs = [(n, first + k) for n in range(len(settings)) for k in range(seeds)]
    missing = [job for job in jobs if kept.accuracy(*job) is None]
    if progress is not None:
        progress(len(jobs) - len(missing), len(jobs))
    with ProcessPoolExecutor(
        workers or os.cpu_count() or 1, mp_context=get_context("spawn"), initializer=_one_thread
    ) as pool:
        waiting = {pool.submit(_accuracy, configs[n], seed): (n, seed) for n, seed in missing}
        for done, future in enumerate(as_completed(waiting), 1):
            kept.add(*waiting[future], future.result())
            if progress is not None:
                progress(len(jobs) - len(missing) + done, len(jobs))
    table = [[kept.accuracy(n, first + k) for k in range(seeds)] for n in range(len(settings))]
    found = Tuned(
        tuple(settings),
        tuple(first + k for k in range(seeds)),
        np.array(table, dtype=np.float64),
        share,
    )
    if folder is not None:
        write_whole(folder / BEST, found.best_toml().encode())
    return found


def _held_out(config: Config, share: float) -> Config:
    """The config with rows held out; refuses what must not be looked at."""
    if is_real(config):
        raise InvalidInput(
            "tune runs simulations, and runs on your own data are real by default: each would be a "
            "release that nobody is charged for; add --private, tune on public data, or set "
            "privacy.randomness=seeded, which protects nobody"
        )
    if ENGINES[config.engine.name].elsewhere:
        raise InvalidInput(
            f"engine {config.engine.name!r} runs clients on other machines, and a tune runs "
            "simulations on this one; drop engine.name"
        )
    if config.evaluation.mode == PRIVATE:
        raise InvalidInput(
            'evaluation.mode = "private" is for real runs: here held-out rows are measured as they '
            "are; drop it, or add --private"
        )
    data = {**config.values.get("data", {}), "validation": share}
    return replace(config, values={**config.values, "data": data})


def _check_plan(config: Config) -> None:
    """Refuse a setting that no plan can be made for, before anything is written. The accountant
    decides nothing here, so the fastest one is asked.
    """
    if METHODS[known_method(config)].unit == "client":
        request = resolve(config, source=Source(config)).request
        replace(request, method=known_method(config), accountant="rdp").plan()


def _accuracy(config: Config, seed: int) -> float:
    """Accuracy of the final model on held-out rows."""
    from fedspend.design.trainings import train_one

    train = {**config.values.get("train", {}), "seed": seed}
    engine = {**config.values.get("engine", {}), "workers": 1}
    made = replace(config, values={**config.values, "train": train, "engine": engine})
    return train_one(made)[1][-1]


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


class _Kept:
    """The finished runs of a tune, in memory and, if there is a folder, one line each in a file."""

    def __init__(self, folder: Path | None, settings: Sequence[Setting], share: float) -> None:
        self._file = None if folder is None else folder / RUNS
        self._names = [setting.name for setting in settings]
        self._done: dict[tuple[str, int], float] = {}
        if folder is None or self._file is None:
            return
        wanted = {"settings": _shared(settings[0]), "validation": share}
        if (folder / SETTINGS).exists():
            _check_same(folder, wanted)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(
                f"{folder} is not empty and is not the folder of a tune; choose another folder"
            )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            body = json.dumps(wanted, indent=1, sort_keys=True, allow_nan=False) + "\n"
            write_whole(folder / SETTINGS, body.encode())
        lines = read_lines(self._file)
        for number, line in enumerate(lines, 1):
            self._remember(number, line)
        # drops an incomplete last line, which a kill may have left
        write_whole(self._file, b"".join(map(as_line, lines)))

    def _remember(self, number: int, line: Any) -> None:
        try:
            self._done[str(line["setting"]), int(line["seed"])] = float(line["accuracy"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                f"{self._file}:{number}: not the record of a run; remove this line or choose "
                "another folder"
            ) from None

    def accuracy(self, setting: int, seed: int) -> float | None:
        return self._done.get((self._names[setting], seed))

    def add(self, setting: int, seed: int, accuracy: float) -> None:
        line = {"setting": self._names[setting], "seed": seed, "accuracy": accuracy}
        self._done[self._names[setting], seed] = accuracy
        if self._file is not None:
            append_line(self._file, as_line(line))


def _shared(setting: Setting) -> dict[str, Any]:
    """What all settings of a tune share: a tune goes on with these only. The grid may grow."""
    varied = {*setting.values(), "train.seed", "engine.workers"}
    shared = {
        f"{section}.{key}": value
        for section, table in setting.config.values.items()
        for key, value in table.items()
        if f"{section}.{key}" not in varied
    }
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str, allow_nan=False))
    return plain


def _check_same(folder: Path, wanted: dict[str, Any]) -> None:
    try:
        stored = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        flat = {**stored["settings"], "validation": stored["validation"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(f"{folder / SETTINGS} is damaged; choose another folder") from None
    now = {**wanted["settings"], "validation": wanted["validation"]}
    for key in sorted(set(flat) | set(now)):
        if flat.get(key) != now.get(key):
            raise InvalidInput(
                f"{folder} holds another tune: {key} was {flat.get(key)!r} and is now "
                f"{now.get(key)!r}; choose another folder"
            )
