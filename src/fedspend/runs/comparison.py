"""Compares methods, or values of a setting, on the same data, partitions and seeds.

Guarantee: only seeded simulations are compared, because every run on private data spends its
budget, and choosing the best of several is one more use of the data. The interval is Student's t
over seeds; the difference to the first arm is paired by seed, so effects of a seed on both cancel.

Arms that differ in name differ in what they run: a setting that no arm uses is refused, and a
method that does not use it, or cannot have it, appears without it (`distinct_arms`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import choose, near
from fedspend.basics.door import public
from fedspend.basics.progress import OnProgress
from fedspend.basics.tables import Table, frame_of_rows
from fedspend.basics.words import counted
from fedspend.configuration.config import AnyConfig, Config, any_config, listed_values
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.effects import (
    VOTES,
    policies_of,
    refuse_without_effect_in_all,
    sentence,
    without_effect,
)
from fedspend.configuration.method_name import known_method, method_of
from fedspend.configuration.plan_inputs import resolve
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.planning.policies import POLICIES, policy_for
from fedspend.report.live import counting_bar
from fedspend.runs.kept import kept_in, run_missing
from fedspend.runs.parallel import one_run
from fedspend.server.methods.table import METHODS
from fedspend.tasks.words import ACCURACY, is_share, other_metrics

if TYPE_CHECKING:
    from fedspend.report.drawing import Drawing

POLICY = "privacy.policy"
Curves = dict[str, list[float | None]]  # by metric, one number for each round
# Settings that decide nothing about a simulation in memory with one worker, by section or name.
_IDLE = ("design", "ledger", "engine.workers", "train.loggers")
# all that a method without privacy reads of [privacy]
_WITHOUT_PRIVACY = ("privacy.rate", "privacy.randomness")
# what it does not read besides: the radius of BLUR is the clip
_NEEDS_CLIP = ("shape.blur",)
# Records are sampled by their rates, and their plans know no policies.
_NOT_FOR_RECORDS = (POLICY, "train.batch_size")
# A student learns from votes, which have no length to clip, and takes no step of the server's.
_NOT_FOR_VOTES = ("train.server_optimizer", "train.server_lr", "train.server_momentum")


FEW_SEEDS = 3  # this many seeds, or fewer, cannot support an interval
DOUBT = (
    "* an interval from two or three seeds cannot be relied on: it assumes a normal distribution, "
    "which so few cannot show; use five seeds or more"
)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The metric after every round, (methods, seeds, rounds); `methods` are the names of the arms.

    If one has fewer rounds than another, the missing ones are NaN. `others` has the further metrics
    of the task, in the same shape: `comparison.of("f1")` compares by one of them.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    values: FloatArray
    metric: str = ACCURACY
    others: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric, the most important first."""
        return (self.metric, *self.others)

    @property
    def supported(self) -> bool:
        """Whether there are enough seeds for an interval to mean something."""
        return len(self.seeds) > FEW_SEEDS

    def of(self, metric: str) -> Comparison:
        """The same comparison by another metric."""
        choose("metric", metric, self.metrics)
        every = {self.metric: self.values, **self.others}
        values = every.pop(metric)
        return Comparison(self.methods, self.seeds, values, metric, every)

    @property
    def final(self) -> FloatArray:
        """The metric of the final models, (methods, seeds)."""
        return _last(self.values)

    def curves(self) -> list[list[list[float]]]:
        """The metric by method and seed, without missing rounds."""
        return [[seed[np.isfinite(seed)].tolist() for seed in method] for method in self.values]

    def twins(self) -> list[tuple[str, str]]:
        """Arms that are equal to the last digit in every round of every seed, and the first of
        their kind: what they differ in changed nothing.
        """
        found: list[tuple[str, str]] = []
        for n, name in enumerate(self.methods):
            same = (
                earlier
                for earlier, values in zip(self.methods[:n], self.values, strict=False)
                if np.array_equal(values, self.values[n], equal_nan=True)
            )
            if (first := next(same, None)) is not None:
                found.append((name, first))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Per method: final metric and paired difference to the first method, with intervals, and
        the final value of the other metrics.
        """
        final = self.final
        out: list[dict[str, Any]] = []
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
                    "interval_supported": self.supported,
                    f"{self.metric}_by_seed": final[n].tolist(),
                }
            )
            if self.others:
                out[-1]["metrics"] = {
                    other: dict(
                        zip(("mean", "interval"), interval(_last(values)[n]), strict=True),
                        by_seed=_last(values)[n].tolist(),
                    )
                    for other, values in self.others.items()
                }
        return out

    def frame(self) -> Any:
        """A tidy pandas frame: a row for each method, seed and round, a column for each metric."""
        every = {self.metric: self.values, **self.others}
        return frame_of_rows(
            [
                {"method": name, "seed": seed, "round": round + 1}
                | {metric: float(values[n, k, round]) for metric, values in every.items()}
                for n, name in enumerate(self.methods)
                for k, seed in enumerate(self.seeds)
                for round in range(self.values.shape[2])
                if np.isfinite(self.values[n, k, round])
            ]
        )

    def table(self, heading: str = "method") -> Table:
        """Every method with every metric: `comparison.table().latex()`, `.markdown()`, `.csv()`."""
        points = is_share(self.metric)
        header = [heading, self.metric, "95% interval", f"minus {self.methods[0]}", "95% interval"]
        header += [cell for other in self.others for cell in (other, "95% interval")]
        body = []
        for n, row in enumerate(self.rows()):
            mean, gap = row["mean"], row["difference"]
            cells = [row["method"], worded(self.metric, mean), self._half(row["interval"], points)]
            cells.append((f"{100 * gap:+.2f}" if points else f"{gap:+.4g}") if n else "")
            cells.append(self._half(row["difference_interval"], points) if n else "")
            for other, found in row.get("metrics", {}).items():
                cells.append(worded(other, found["mean"]))
                cells.append(self._half(found["interval"], is_share(other)))
            body.append(cells)
        return Table(header, body, "" if self.supported or len(self.seeds) < 2 else DOUBT)

    def _half(self, half: float | None, points: bool) -> str:
        """Half the width of an interval, marked where it cannot be relied on."""
        return half_width(half, points) + ("" if self.supported or half is None else "*")

    def plot(self) -> Drawing:
        """The metric by round: mean over seeds, with their range as a band."""
        from fedspend.report.drawing import drawing
        from fedspend.report.plots import metric_figure

        curves = {name: self.values[n] for n, name in enumerate(self.methods)}
        return drawing(lambda: metric_figure(curves, self.metric))

    def save(self, folder: str | Path) -> None:
        """Write comparison.json, .csv, .md and .tex, and a plot of every metric."""
        from fedspend.runs.comparison_files import write_comparison

        write_comparison(self, Path(folder))

    def __repr__(self) -> str:
        arms = ", ".join(
            f"{row['method']} {worded(self.metric, row['mean'])} "
            f"{self._half(row['interval'], is_share(self.metric))}"
            for row in self.rows()
        )
        return f"<Comparison by {self.metric}, {counted(len(self.seeds), 'seed')}: {arms}>"

    def _repr_html_(self) -> str:
        said = f"seeded simulation, {counted(len(self.seeds), 'seed')}, paired by seed"
        return self.table().html(said)


def _last(values: FloatArray) -> FloatArray:
    """The last round of each run that has a value, (methods, seeds); NaN where none has."""
    backwards = np.isfinite(values)[:, :, ::-1]
    last = values.shape[2] - 1 - backwards.argmax(axis=2)
    return np.take_along_axis(values, last[:, :, None], axis=2)[:, :, 0]


def worded(metric: str, value: float) -> str:
    """
    >>> worded("accuracy", 0.512), worded("mse", 12.3456)
    ('51.20%', '12.35')
    """
    return f"{value:.2%}" if is_share(metric) else f"{value:.4g}"


def half_width(half: float | None, points: bool) -> str:
    """Half the width of an interval, in percentage points or in the metric's own unit.

    >>> half_width(0.0123, points=True), half_width(12.345, points=False)
    ('± 1.23', '± 12.35')
    >>> half_width(None, points=True)
    'needs 2 seeds'
    """
    if half is None:
        return "needs 2 seeds"
    return f"± {100 * half:.2f}" if points else f"± {half:.4g}"


def interval(values: FloatArray, level: float = 0.95) -> tuple[float, float | None]:
    """Mean, and half the width of its confidence interval; None with a single value.

    >>> interval(np.array([1.0, 2.0, 3.0]))
    (2.0, 2.484...)
    """
    from scipy.stats import t

    if values.size < 2:
        return float(values.mean()), None
    return float(values.mean()), float(
        t.ppf((1 + level) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size)
    )


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a method with settings."""

    overrides: tuple[str, ...]  # the method first
    with_method: bool = True  # in its name

    @property
    def name(self) -> str:
        method, *settings = self.overrides
        shown = [method.partition("=")[2]] if self.with_method or not settings else []
        return ", ".join([*shown, *settings])

    def without(self, dropped: Collection[str]) -> Arm:
        """The same arm without these overrides."""
        return replace(
            self, overrides=tuple(part for part in self.overrides if part not in dropped)
        )


def arms_of(methods: Sequence[str], vary: Sequence[str] = ()) -> list[Arm]:
    """Every method with every combination of the values in `vary` (`section.key=value,...`).

    >>> [arm.name for arm in arms_of(["dp-fedavg"], ["shape.lus=0,0.7"])]
    ['shape.lus=0', 'shape.lus=0.7']
    >>> [arm.name for arm in arms_of(["fedavg", "dp-fedavg"], ["train.lr=0.1"])]
    ['fedavg, train.lr=0.1', 'dp-fedavg, train.lr=0.1']
    """
    for name in methods:
        if name and name not in METHODS and (hint := near(name, METHODS.names, "; ")):
            raise InvalidInput(f"unknown method {name!r}{hint}")
    if twice := [name for n, name in enumerate(methods) if name and name in methods[:n]]:
        raise InvalidInput(f"method {twice[0]!r} is listed twice; remove one")
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        raise InvalidInput(
            f"methods must be from {', '.join(METHODS.names)}; got {', '.join(methods) or 'none'}"
        )
    choices: list[list[str]] = []
    for text in vary:
        key, _, values = text.partition("=")
        listed = [value.strip() for value in listed_values(values)]
        if not all(listed) or len(set(listed)) != len(listed):
            raise InvalidInput(
                f"--vary must be section.key=value,value,... with distinct values, got {text!r}"
            )
        if key.strip() in ("method.name", "train.seed"):
            raise InvalidInput(
                f"--vary cannot change {key.strip()}; use --methods and --seeds for that"
            )
        if any(one[0].startswith(f"{key.strip()}=") for one in choices):
            raise InvalidInput(
                f"--vary {key.strip()} is given twice; give all its values at once, separated by "
                "commas"
            )
        choices.append([f"{key.strip()}={value}" for value in listed])
    named = len(methods) > 1 or not choices
    return [
        Arm((f"method.name={method}", *settings), named)
        for method, *settings in itertools.product(methods, *choices)
    ]


@public
def compare(
    config: AnyConfig,
    methods: Sequence[str] = (),
    seeds: int = 5,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    progress: OnProgress | bool | None = None,
    vary: Sequence[str] = (),
    output: str | Path | None = None,
) -> Comparison:
    """Train every method, with every value of some settings, on the same data and seeds.

    Arguments:
        config: a TOML file or a dict of sections, for simulations. Its policy, with the weights or
            saving rates that this policy uses, is for its own method; other methods use their own.
            Every metric in its `task.metrics` is compared.
        methods: names of methods; differences are to the first. Default: the config's own.
        seeds: runs of each, with seeds counting up from train.seed.
        overrides: `["privacy.rate=0.5", ...]`, for all of them.
        workers: runs at the same time. Default: one for each core.
        progress: a bar, or a function of (done, total). Default: a bar if somebody is watching.
        vary: `["shape.lus=0,0.3", ...]`: every value is compared. A method that does not use the
            setting appears once, without it.
        output: a folder where finished runs are kept, with the tables and plots at the end:
            another call goes on with the rest, and methods, values and seeds may be added.

    Returns:
        A `Comparison`: `.rows()`, `.frame()`, `.table()` (as CSV, Markdown, LaTeX), `.plot()`.

    Raises:
        InvalidInput: an argument is wrong, the runs would be real ones, or `output` holds runs of
            another config, of other data or of other code.

    `compare("quickstart.toml", ["idp-fedavg", "time-adaptive"], seeds=5).table().latex()`
    """
    base = any_config(config, overrides)
    whole_number("seeds", seeds, 1)
    settings_of = distinct_arms(config, overrides, arms_of(methods or [method_of(base)], vary))
    arms = list(settings_of)
    for settings in settings_of.values():
        if settings.privacy.randomness == "os":
            raise InvalidInput(
                "compare runs seeded simulations only: every run on private data spends budget; "
                "drop randomness = 'os'"
            )
    with _naming_vary(arms[0], overrides):
        refuse_without_effect_in_all(base, list(settings_of.values()))
    for arm, settings in settings_of.items():
        refuse_real(settings, "compare")
        check_plan(settings, arm.name)
    first = base.train.seed
    all_seeds = tuple(range(first, first + seeds))
    folder = None if output is None else Path(output)
    configs = {", ".join(arm.overrides): settings for arm, settings in settings_of.items()}
    fixed = {name: _deciding(settings) for name, settings in configs.items()}
    with (
        kept_in(folder, "comparison", configs, fixed) as kept,
        counting_bar("training", progress) as told,
    ):
        runs = run_missing(curves_of_run, configs, all_seeds, kept, workers, told)
        found = _compared(tuple(arm.name for arm in arms), all_seeds, runs)
        if folder is not None:
            found.save(folder)
    return found


def _deciding(config: Config) -> dict[str, Any]:
    """What decides the runs of an arm, beside their seeds."""
    return {
        f"{section}.{key}": value
        for section, table in config.values.items()
        for key, value in table.items()
        if not is_idle(f"{section}.{key}") and f"{section}.{key}" != "train.seed"
    }


def _compared(
    arms: tuple[str, ...], seeds: tuple[int, ...], runs: Sequence[Sequence[Curves]]
) -> Comparison:
    """The comparison of what every arm found with every seed."""
    every = [found for each in runs for found in each]
    judged = {next(iter(found)) for found in every}
    if len(judged) > 1:
        raise InvalidInput(
            f"arms are judged by different metrics ({', '.join(sorted(judged))}), which cannot be "
            "compared; set task.metrics"
        )
    length = max(len(next(iter(found.values()))) for found in every)
    # in the order of the config, without those that an arm does not have
    names = [name for name in every[0] if all(name in found for found in every)]
    tables = {name: np.full((len(arms), len(seeds), length), np.nan) for name in names}
    for name, table in tables.items():
        for n, each in enumerate(runs):
            for k, found in enumerate(each):
                table[n, k, : len(found[name])] = np.array(found[name], np.float64)
    metric = judged.pop()
    values = tables.pop(metric)
    return Comparison(arms, seeds, values, metric, tables)


def distinct_arms(
    config: AnyConfig, overrides: Sequence[str], arms: Sequence[Arm]
) -> dict[Arm, Config]:
    """The arms that differ in what they run, with their settings.

    A varied setting is dropped from an arm that does not use it; arms that are equal then are one.
    An arm whose method cannot have its policy is left out. Refuses a setting that is dropped from
    every arm, a method or a policy that is in no arm, and a value that is listed twice.
    """
    found: dict[Arm, Config] = {}
    # why a setting is not in an arm: the arm does not use it, or the whole arm was left out
    unused: dict[str, InvalidInput] = {}
    contradicted: dict[str, InvalidInput] = {}
    for arm in arms:
        settings = _settings(config, overrides, arm)
        try:
            _check_policy(settings)
        except InvalidInput as error:
            contradicted |= dict.fromkeys(arm.overrides, error)
            continue
        here = _without_effect(settings, arm)
        unused |= here
        kept = arm.without(here)
        if kept not in found:
            found[kept] = _settings(config, overrides, kept)
    kept_parts = {part for arm in found for part in arm.overrides}
    for part in (part for arm in arms for part in arm.overrides if part not in kept_parts):
        raise (unused | contradicted)[part]
    _refuse_equal_values(found)
    return found


def _check_policy(settings: Config) -> None:
    """Refuse a policy that the arm's method cannot have, before anything is trained."""
    if settings.given(POLICY) and METHODS[method_of(settings)].policies:
        policy_for(settings.method.name, settings.privacy.policy, saves=False)


def _without_effect(settings: Config, arm: Arm) -> dict[str, InvalidInput]:
    """The varied settings (`section.key=value`) that this arm does not use, and what says so."""
    rules = without_effect(settings)
    entry = METHODS[method_of(settings)]
    why: dict[str, InvalidInput] = {}
    for part in arm.overrides[1:]:  # the first names the method
        name = part.partition("=")[0]
        section, key = name.split(".")
        nothing = f"--vary {part}: {key} in [{section}] has no effect"
        if name in rules:
            said = sentence(settings, name, rules[name]).replace("--set", "--vary", 1)
        elif is_idle(name):
            said = f"{nothing} on a comparison; drop it"
        elif entry.unit is None and _unused_without_privacy(name):
            said = (
                f"{nothing} under method {entry.name!r}, which is not private; drop it, or compare "
                "a private method"
            )
        elif entry.unit == "record" and name in _NOT_FOR_RECORDS:
            said = (
                f"{nothing} under method {entry.name!r}, which plans records; drop it, or compare "
                "a method for whole clients"
            )
        elif entry.name == VOTES and (name in _NOT_FOR_VOTES or _only_clips(settings, name)):
            said = (
                f"{nothing} under method {entry.name!r}, whose clients vote; drop it, or compare a "
                "method whose clients send updates"
            )
        else:
            continue
        why[part] = InvalidInput(said)
    return why


def _only_clips(settings: Config, name: str) -> bool:
    """The clip is also the radius of BLUR, which is for the training of voters, too."""
    return name == "privacy.clip" and settings.shape.blur == 0


def is_idle(name: str) -> bool:
    return name in _IDLE or name.partition(".")[0] in _IDLE


def _unused_without_privacy(name: str) -> bool:
    private = name.startswith("privacy.") and name not in _WITHOUT_PRIVACY
    return private or name in _NEEDS_CLIP


def _refuse_equal_values(found: dict[Arm, Config]) -> None:
    """Refuse two spellings of one value, such as 0.1 and 0.10: their arms would be equal."""
    seen: dict[tuple[str, str], str] = {}
    for arm, settings in found.items():
        for part in arm.overrides[1:]:
            name, _, text = part.partition("=")
            first = seen.setdefault((name, repr(settings.value(name))), text)
            if first != text:
                raise InvalidInput(
                    f"--vary {name} lists the same value twice, as {first} and {text}; remove one"
                )


def _settings(config: AnyConfig, overrides: Sequence[str], arm: Arm) -> Config:
    with _naming_vary(arm, overrides):
        return _with_its_policy(config, [*overrides, *arm.overrides])


def _with_its_policy(config: AnyConfig, overrides: Sequence[str]) -> Config:
    """The config of an arm. A policy in the file is that of the file's own method; another method
    brings its own, unless one is asked for.
    """
    settings = any_config(config, overrides)
    file = any_config(config)
    if POLICY in settings.overridden or method_of(settings) == method_of(file):
        return settings
    left, own = settings.without(POLICY), METHODS[method_of(settings)].policies
    # what the file says for its own policy, as weights or saving rates, is not for another one
    theirs = {key for policy in policies_of(file) for key in POLICIES[policy].keys}
    asked = any(f"privacy.{key}" in settings.overridden for key in theirs)
    implied = {key for policy in policies_of(left) for key in POLICIES[policy].keys}
    if not own or asked or not theirs & implied:
        return left
    privacy = {**left.values["privacy"], "policy": own[0]}
    return replace(left, values={**left.values, "privacy": privacy})


@contextmanager
def _naming_vary(arm: Arm, overrides: Sequence[str]) -> Iterator[None]:
    """Errors about a value from `--vary` name `--vary`, not the `--set` that it becomes."""
    try:
        yield
    except InvalidInput as error:
        for text in arm.overrides:
            if str(error).startswith(f"--set {text}:") and text not in overrides:
                raise InvalidInput(str(error).replace("--set", "--vary", 1)) from None
        raise


def curves_of_run(config: Config, seed: int) -> Curves:
    """What one run says of its model after every round, up to the one whose model it leaves: what
    it is judged by comes first.
    """
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)  # said once, when the plan was checked
        found = run(from_config(one_run(config, seed)), None)
    names = [found.metric, *other_metrics(found.metrics[-1])]
    rounds = found.metrics[: found.kept_round]
    return {name: [line.get(name) for line in rounds] for name in names}


def check_plan(config: Config, name: str | None = None) -> None:
    """Refuse a setting that no plan can be made for, before anything is run or written. The
    accountant decides nothing here, so the fastest one is asked.
    """
    if METHODS[known_method(config)].unit != "client":
        return
    try:
        request = resolve(config, source=Source(config)).request
        replace(request, accountant="rdp").plan()
    except InvalidInput as error:
        raise error if name is None else InvalidInput(f"{name}: {error}") from None


def refuse_real(settings: Config, what: str) -> None:
    """Refuse a run on private rows, which nobody asked for: it is the default for your own data."""
    if is_real(settings):
        raise InvalidInput(
            f"{what} runs seeded simulations only, and runs on your own data are real by default: "
            f"each would be a release that no ledger is charged for; {what} on public data, or set "
            "privacy.randomness=seeded, which protects nobody"
        )
