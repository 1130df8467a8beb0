"""`fedspend.sweep`: a run for every combination of the values of any keys, and every seed.

Guarantee: only seeded simulations are run, which protect nobody; on private rows each would be a
release that nobody is charged for, so those are refused. A run is a pure function of its setting
and seed, so a sweep that was killed goes on with the rest and ends with the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.door import public
from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.basics.tables import Table, first_rows, frame_of_rows
from fedspend.basics.words import counted
from fedspend.configuration.config import AnyConfig, Config
from fedspend.engines.table import ENGINES
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.report.live import counting_bar
from fedspend.runs.comparison import (
    DOUBT,
    FEW_SEEDS,
    check_plan,
    half_width,
    interval,
    refuse_real,
    worded,
)
from fedspend.runs.kept import ALL, kept_in, run_missing
from fedspend.runs.parallel import one_run
from fedspend.tasks.words import is_share, other_metrics
from fedspend.tuning.grid import Setting, settings_over, shared_by

FRAME = "sweep.csv"


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The final numbers of every run: `found[setting][seed]`, by the place of each."""

    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    found: tuple[tuple[Mapping[str, Any], ...], ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What every run was measured by, the most important first."""
        names = dict.fromkeys(name for runs in self.found for one in runs for name in one)
        return tuple(name for name in names if name not in _FACTS)

    def rows(self) -> list[dict[str, Any]]:
        """A tidy table: a row for each run, with its settings, its seed and its numbers."""
        return [
            {**setting.values(), "seed": seed, **one}
            for setting, runs in zip(self.settings, self.found, strict=True)
            for seed, one in zip(self.seeds, runs, strict=True)
        ]

    def frame(self) -> Any:
        """`rows` as a pandas frame."""
        return frame_of_rows(self.rows())

    def summary(self) -> list[dict[str, Any]]:
        """A row for each setting: mean and half the 95% interval of every metric over seeds."""
        out = []
        for setting, runs in zip(self.settings, self.found, strict=True):
            row: dict[str, Any] = setting.values()
            for name in self.metrics:
                values = np.array([_number(one.get(name)) for one in runs])
                row[name], row[f"{name}_interval"] = interval(values)
            row["interval_supported"] = len(self.seeds) > FEW_SEEDS
            out.append(row)
        return out

    def table(self) -> Table:
        """`summary` to paste: `sweep.table().latex()`, `.markdown()`, `.csv()`."""
        supported = len(self.seeds) > FEW_SEEDS
        keys = list(self.settings[0].values())
        body = []
        for row in self.summary():
            cells = [str(row[key]) for key in keys]
            for name in self.metrics:
                half = row[f"{name}_interval"]
                cells.append(worded(name, row[name]))
                doubt = "" if supported or half is None else "*"
                cells.append(half_width(half, is_share(name)) + doubt)
            body.append(cells)
        header = [*keys, *(cell for name in self.metrics for cell in (name, "95% interval"))]
        return Table(header, body, "" if supported or len(self.seeds) < 2 else DOUBT)

    def csv(self) -> str:
        """`rows` as CSV."""
        names = list(dict.fromkeys(name for row in self.rows() for name in row))
        return Table(names, [[row.get(name) for name in names] for row in self.rows()]).csv()

    def __repr__(self) -> str:
        keys = ", ".join(self.settings[0].values())
        return (
            f"<Sweep over {keys}: {counted(len(self.settings), 'setting')}, "
            f"{counted(len(self.seeds), 'seed')}, measured by {', '.join(self.metrics)}>"
        )

    def _repr_html_(self) -> str:
        table = self.table()
        shown = replace(table, rows=first_rows(table.rows, 50))
        return shown.html(repr(self).strip("<>"))


_FACTS = ("rounds", "epsilon")


@public
def sweep(
    config: AnyConfig,
    over: Sequence[str] | Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    output: str | Path | None = None,
    workers: int | None = None,
    progress: OnProgress | bool | None = None,
) -> Sweep:
    """Run every combination of the values of any keys, with every seed, as seeded simulations.

    Arguments:
        config: a TOML file or a dict of sections, for simulations.
        over: the values of each key: `{"train.lr": [0.1, 0.3], "method.name": ["dp-fedavg",
            "time-adaptive"]}`, or as on the command line: `["train.lr=0.1,0.3", ...]`.
        seeds: runs of each combination, with seeds counting up from train.seed.
        overrides: `["train.rounds=10", ...]`, for all of them.
        output: a folder where finished runs are kept, with sweep.csv at the end: another call goes
            on with the rest, and the values of `over` may grow.
        workers: runs at the same time. Default: one for each core.
        progress: a bar, or a function of (done, total). Default: a bar if somebody is watching.

    Returns:
        A `Sweep`: `.frame()` has a row for each run, `.summary()` and `.table()` one for each
        combination.

    Raises:
        InvalidInput: a key or value is wrong, no plan can be made for a combination, or the runs
            would be real ones; nothing was run.

    `sweep("quickstart.toml", {"privacy.clip": [0.1, 1.0]}, seeds=5, output="sweeps/clip").frame()`
    """
    seeds = whole_number("seeds", seeds, 1)
    settings = settings_over(config, overrides, over)
    for setting in settings:
        _check(setting)
    first = settings[0].config.train.seed
    all_seeds = tuple(range(first, first + seeds))
    folder = None if output is None else Path(output)
    configs = {setting.name: setting.config for setting in settings}
    with (
        kept_in(folder, "sweep", configs, {ALL: shared_by(settings)}) as kept,
        counting_bar("training", progress) as told,
    ):
        runs = run_missing(final_numbers, configs, all_seeds, kept, workers, told)
        found = Sweep(settings, all_seeds, tuple(map(tuple, runs)))
        if folder is not None:
            write_whole(folder / FRAME, found.csv().encode())
    return found


def _check(setting: Setting) -> None:
    """Refuse what must not be run, and what cannot be planned, before anything runs."""
    refuse_real(setting.config, "sweep")
    if ENGINES[setting.config.engine.name].elsewhere:
        raise InvalidInput(
            f"engine {setting.config.engine.name!r} runs clients on other machines, and a sweep "
            "runs simulations on this one; drop engine.name"
        )
    check_plan(setting.config, setting.name)


def final_numbers(config: Config, seed: int) -> dict[str, Any]:
    """Metrics and loss of the final model, and the largest epsilon spent."""
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config
    from fedspend.server.early_stopping import of_kept

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)  # said once, when the plan was checked
        result = run(from_config(one_run(config, seed)), None)
    last, left = result.metrics[-1], of_kept(result.metrics)
    numbers: dict[str, Any] = {name: left.get(name) for name in (result.metric, "loss")}
    numbers |= {name: left.get(name) for name in other_metrics(last)}
    spent = list(last["epsilon"].values())
    return {**numbers, "epsilon": max(spent) if spent else None, "rounds": last["round"]}


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
