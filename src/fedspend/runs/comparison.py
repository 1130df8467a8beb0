"""Compares methods, or values of a setting, on the same data, partitions and seeds.

Guarantee: only seeded simulations are compared, because every run on private data spends its
budget, and choosing the best of several is one more use of the data. The interval is Student's t
over seeds; the difference to the first arm is paired by seed, so effects of a seed on both cancel.

Arms that differ in name differ in what they run: a setting that no arm uses is refused, and a
method that does not use it, or cannot have it, appears without it (`distinct_arms`).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import Config, load_config
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.effects import (
    refuse_without_effect_in_all,
    sentence,
    without_effect,
)
from fedspend.configuration.method_name import method_of
from fedspend.errors import InvalidInput
from fedspend.planning.policies import policy_for
from fedspend.server.methods.table import METHODS
from fedspend.tasks.words import ACCURACY

POLICY = "privacy.policy"
# Settings that decide nothing about a simulation in memory with one worker, by section or name.
_IDLE = ("design", "ledger", "engine.workers", "train.tensorboard", "train.loggers")
# all that a method without privacy reads of [privacy]
_WITHOUT_PRIVACY = ("privacy.rate", "privacy.randomness")
# what it does not read besides: the radius of BLUR is the clip
_NEEDS_CLIP = ("shape.blur",)
# Records are sampled by their rates, and their plans know no policies.
_NOT_FOR_RECORDS = (POLICY, "train.batch_size")


@dataclass(frozen=True, eq=False)
class Comparison:
    """The metric after every round, (methods, seeds, rounds); `methods` are the names of the arms.

    If one has fewer rounds than another, the missing ones are NaN.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    values: FloatArray
    metric: str = ACCURACY

    @property
    def final(self) -> FloatArray:
        """The metric of the final models, (methods, seeds)."""
        last = np.isfinite(self.values).sum(axis=2, keepdims=True) - 1
        return np.take_along_axis(self.values, last, axis=2)[:, :, 0]

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
        """Per method: final metric and paired difference to the first method, with intervals."""
        final = self.final
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
                    f"{self.metric}_by_seed": final[n].tolist(),
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
    return float(values.mean()), float(
        t.ppf((1 + level) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size)
    )


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a method with settings."""

    name: str
    overrides: tuple[str, ...]  # the method first

    def without(self, dropped: Collection[str]) -> Arm:
        """The same arm without these overrides."""
        left = tuple(part for part in self.overrides if part not in dropped)
        shown = [part for part in self.name.split(", ") if part not in dropped]
        return Arm(", ".join(shown) or left[0].partition("=")[2], left)


def arms_of(methods: Sequence[str], vary: Sequence[str] = ()) -> list[Arm]:
    """Every method with every combination of the values in `vary` (`section.key=value,...`).

    >>> [arm.name for arm in arms_of(["dp-fedavg"], ["shape.lus=0,0.7"])]
    ['shape.lus=0', 'shape.lus=0.7']
    >>> [arm.name for arm in arms_of(["fedavg", "dp-fedavg"], ["train.lr=0.1"])]
    ['fedavg, train.lr=0.1', 'dp-fedavg, train.lr=0.1']
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown or len(set(methods)) != len(methods) or not methods:
        raise InvalidInput(
            f"methods must be distinct and from {', '.join(METHODS.names)}; got "
            f"{', '.join(methods) or 'none'}"
        )
    choices: list[list[str]] = []
    for text in vary:
        key, _, values = text.partition("=")
        listed = [value.strip() for value in values.split(",")]
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
        Arm(
            ", ".join([method, *settings] if named else settings),
            (f"method.name={method}", *settings),
        )
        for method, *settings in itertools.product(methods, *choices)
    ]


def compare(
    config: str | Path,
    methods: Sequence[str],
    seeds: int,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    progress: OnProgress | None = None,
    vary: Sequence[str] = (),
) -> Comparison:
    """Train every arm with every seed, in parallel over cores."""
    base = load_config(config, overrides)
    settings_of = distinct_arms(config, overrides, arms_of(methods, vary))
    arms = list(settings_of)
    for settings in settings_of.values():
        if settings.privacy.randomness == "os":
            raise InvalidInput(
                "compare runs seeded simulations only: every run on private data spends budget; "
                "drop randomness = 'os'"
            )
    with _naming_vary(arms[0], overrides):
        refuse_without_effect_in_all(base, list(settings_of.values()))
    first = base.train.seed
    jobs = [(arm, first + k) for arm in arms for k in range(seeds)]
    curves: dict[tuple[Arm, int], list[float]] = {}
    metrics: set[str] = set()
    # one thread per run and one run per core, since runs share nothing
    with ProcessPoolExecutor(
        workers or os.cpu_count() or 1, mp_context=get_context("spawn"), initializer=_one_thread
    ) as pool:
        waiting = {
            pool.submit(_curve, str(config), [*overrides, *arm.overrides], seed): (arm, seed)
            for arm, seed in jobs
        }
        for future in as_completed(waiting):
            metric, curves[waiting[future]] = future.result()
            metrics.add(metric)
            if progress is not None:
                progress(len(curves), len(jobs))
    values = np.full((len(arms), seeds, max(map(len, curves.values()))), np.nan)
    for (arm, seed), curve in curves.items():
        values[arms.index(arm), seed - first, : len(curve)] = curve
    if len(metrics) > 1:
        raise InvalidInput(
            f"arms are judged by different metrics ({', '.join(sorted(metrics))}), which cannot be "
            "compared; set task.metrics"
        )
    return Comparison(
        tuple(arm.name for arm in arms),
        tuple(first + k for k in range(seeds)),
        values,
        metrics.pop(),
    )


def distinct_arms(
    config: str | Path, overrides: Sequence[str], arms: Sequence[Arm]
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
        elif section in _IDLE or name in _IDLE:
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
        else:
            continue
        why[part] = InvalidInput(said)
    return why


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


def _settings(config: str | Path, overrides: Sequence[str], arm: Arm) -> Config:
    with _naming_vary(arm, overrides):
        return _with_its_policy(config, [*overrides, *arm.overrides])


def _with_its_policy(config: str | Path, overrides: Sequence[str]) -> Config:
    """The config of an arm. A policy in the file is that of the file's own method; another method
    brings its own, unless one is asked for.
    """
    settings = load_config(config, overrides)
    if POLICY in settings.overridden or method_of(settings) == method_of(load_config(config)):
        return settings
    return settings.without(POLICY)


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


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _curve(config: str, overrides: list[str], seed: int) -> tuple[str, list[float]]:
    """The name of the metric that models are judged by, and its value after every round."""
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config

    settings = _with_its_policy(config, [*overrides, f"train.seed={seed}", "engine.workers=1"])
    if is_real(settings):  # the default for your own data
        raise InvalidInput(
            "compare runs seeded simulations only, and runs on your own data are real by default: "
            "each would be a release that no ledger is charged for; compare on public data, or set "
            "privacy.randomness=seeded, which protects nobody"
        )
    found = run(from_config(settings), None)
    values = [line.get(found.metric) for line in found.metrics]
    return found.metric, [math.nan if value is None else value for value in values]
