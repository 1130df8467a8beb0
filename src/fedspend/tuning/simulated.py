"""A tune on rows that may be looked at: every setting, with several seeds, on held-out rows.

Guarantee: only seeded simulations are run, which protect nobody; on private rows each would be a
release that nobody is charged for, so those are refused. Success is measured on rows that are held
out of the training rows, never on the test rows: these stay fresh for the one that is chosen. What
is written says how many settings were tried, because the best of many looks better than it is.
A run is a pure function of its setting and seed, so a tune that was killed goes on with the rest
and ends with the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.basics.tables import Table, first_rows
from fedspend.basics.words import counted
from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.sections import PRIVATE
from fedspend.engines.table import ENGINES
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.runs.comparison import (
    DOUBT,
    FEW_SEEDS,
    check_plan,
    half_width,
    interval,
    worded,
)
from fedspend.runs.kept import ALL, kept_in, run_missing
from fedspend.runs.parallel import one_run
from fedspend.tasks.words import ACCURACY
from fedspend.tuning.best_config import best_config
from fedspend.tuning.grid import Setting, check_metric, shared_by

DEFAULT_SEEDS = 3
DEFAULT_VALIDATION = 0.2
BEST = "best.toml"


@dataclass(frozen=True, eq=False, repr=False)
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

    def table(self) -> Table:
        """`rows` to paste: `tuned.table().latex()`, `.markdown()`, `.csv()`."""
        supported = len(self.seeds) > FEW_SEEDS
        body = []
        for n, row in enumerate(self.rows()):
            half = row["interval"]
            doubt = "" if supported or half is None else "*"
            cells = [*map(str, row["setting"].values()), worded(ACCURACY, row["mean"])]
            cells.append(half_width(half, True) + doubt)
            cells.append(f"{100 * row['difference']:+.2f}" if n else "")
            body.append(cells)
        header = [*self.settings[0].values(), "held-out accuracy", "95% interval", "minus the best"]
        return Table(header, body, "" if supported or len(self.seeds) < 2 else DOUBT)

    def __repr__(self) -> str:
        return (
            f"<Tuned: {counted(len(self.settings), 'setting')}, "
            f"{counted(len(self.seeds), 'seed')} each; best {self.best.name} with "
            f"{worded(ACCURACY, self.rows()[0]['mean'])} on held-out rows>"
        )

    def _repr_html_(self) -> str:
        table = self.table()
        shown = replace(table, rows=first_rows(table.rows, 50))
        return shown.html(repr(self).strip("<>"))

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
    configs = {setting.name: _held_out(setting.config, share) for setting in settings}
    for config in configs.values():
        check_plan(config)
    first = settings[0].config.train.seed
    all_seeds = tuple(range(first, first + seeds))
    fixed = {ALL: shared_by(settings) | {"validation": share}}
    with kept_in(folder, "tune", configs, fixed) as kept:
        runs = run_missing(_accuracy, configs, all_seeds, kept, workers, progress)
        table = np.array([[one.get("accuracy") for one in each] for each in runs], np.float64)
        found = Tuned(tuple(settings), all_seeds, table, share)
        if folder is not None:
            write_whole(folder / BEST, found.best_toml().encode())
    return found


def _held_out(config: Config, share: float) -> Config:
    """The config with rows held out; refuses what must not be looked at."""
    check_metric(config)
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


def _accuracy(config: Config, seed: int) -> dict[str, Any]:
    """Accuracy on held-out rows of the model that the same run would leave."""
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config
    from fedspend.server.early_stopping import of_kept

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)  # said once, when the plan was checked
        result = run(from_config(one_run(config, seed)), None)
    return {ACCURACY: of_kept(result.metrics)[ACCURACY]}
