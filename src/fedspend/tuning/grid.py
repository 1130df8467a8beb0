"""The settings that a tune tries: every combination of the values of some config keys.

Guarantee: the settings of a tune differ in what they train, never in who takes part, with which
rows, which budgets or which measure of success: those keys are refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedspend.configuration.config import AnyConfig, Config, any_config, listed_values
from fedspend.configuration.effects import refuse_without_effect_in_all, sentence, without_effect
from fedspend.configuration.task_inputs import metrics_of
from fedspend.errors import InvalidInput
from fedspend.tasks.words import ACCURACY

MOST_SETTINGS = 1000

# what all settings share: the rows, the accounts, the machines, and how success is measured
_SHARED_SECTIONS = ("data", "evaluation", "ledger", "engine", "design", "node")
_SHARED = (
    "privacy.epsilon",
    "privacy.groups",
    "privacy.budgets",
    "privacy.preferences",
    "privacy.delta",
    "privacy.randomness",
    "privacy.accountant",
    "train.seed",
    "train.loggers",
)


@dataclass(frozen=True)
class Setting:
    """One point of the grid, and the config that it makes."""

    overrides: tuple[str, ...]
    config: Config

    @property
    def name(self) -> str:
        return ", ".join(self.overrides)

    def values(self) -> dict[str, Any]:
        """The values of the grid's keys, by name."""
        names = (one.partition("=")[0] for one in self.overrides)
        return {name: self.config.value(name) for name in names}


def shared_by(settings: Sequence[Setting]) -> dict[str, Any]:
    """What all settings share, and what must stay the same when their runs go on. The grid may
    grow.
    """
    varied = {*settings[0].values(), "train.seed", "engine.workers"}
    return {
        f"{section}.{key}": value
        for section, table in settings[0].config.values.items()
        for key, value in table.items()
        if f"{section}.{key}" not in varied
    }


def settings_of(
    config: AnyConfig, overrides: Sequence[str], grid: Sequence[str]
) -> tuple[Setting, ...]:
    """Every combination of the values in `grid`, each written `section.key=value,value,...`: what a
    tune chooses among.
    """
    choices = [_choice(text) for text in grid]
    for name in _names(choices):
        if name in _SHARED or name.partition(".")[0] in _SHARED_SECTIONS:
            raise InvalidInput(
                f"--grid {name}: all settings share rows, budgets, accounts and measure, so {name} "
                "cannot be chosen; set it with --set, for all of them"
            )
    found = _combined(config, overrides, choices)
    for setting in found:
        _refuse_idle(setting)
    refuse_without_effect_in_all(any_config(config, overrides), [one.config for one in found])
    return found


def _combined(
    config: AnyConfig, overrides: Sequence[str], choices: Sequence[Sequence[str]]
) -> tuple[Setting, ...]:
    names = _names(choices)
    if not choices:
        raise InvalidInput(
            "there is nothing to choose among: give --grid section.key=value,value,..., for "
            "example --grid train.lr=0.05,0.1,0.2"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(
            f"--grid {twice} is given twice; give all its values at once, separated by commas"
        )
    count = math.prod(len(one) for one in choices)
    if count > MOST_SETTINGS:
        raise InvalidInput(
            f"the grid has {count:,} settings, and at most {MOST_SETTINGS:,} can be tried; list "
            "fewer values"
        )
    found = tuple(
        Setting(point, _config(config, [*overrides, *point], point))
        for point in itertools.product(*choices)
    )
    _refuse_equal(found)
    return found


def _names(choices: Sequence[Sequence[str]]) -> list[str]:
    return [one[0].partition("=")[0] for one in choices]


def _choice(text: str) -> list[str]:
    """The overrides that one `--grid` stands for."""
    name, equals, listed = text.partition("=")
    name, values = name.strip(), [value.strip() for value in listed_values(listed)]
    if not (equals and "." in name and all(values)) or len(set(values)) != len(values):
        raise InvalidInput(
            f"--grid must be section.key=value,value,... with distinct values, got {text!r}"
        )
    return [f"{name}={value}" for value in values]


def _config(config: AnyConfig, overrides: list[str], point: tuple[str, ...]) -> Config:
    """The config of a setting; errors about a value from the grid name it."""
    try:
        return any_config(config, overrides)
    except InvalidInput as error:
        for text in point:
            if str(error).startswith(f"--set {text}:"):
                raise InvalidInput(str(error).replace("--set", "--grid", 1)) from None
        raise


def _refuse_equal(settings: Sequence[Setting]) -> None:
    """Refuse two spellings of one value, such as 0.1 and 0.10: they would count as two settings."""
    seen: dict[tuple[str, str], str] = {}
    for setting in settings:
        for text in setting.overrides:
            name, _, value = text.partition("=")
            first = seen.setdefault((name, repr(setting.config.value(name))), value)
            if first != value:
                raise InvalidInput(
                    f"--grid {name} lists the same value twice, as {first} and {value}; remove one"
                )


def check_metric(config: Config) -> None:
    """Refuse a metric that a tune does not choose by."""
    names = metrics_of(config)
    if names[:1] != (ACCURACY,):
        raise InvalidInput(
            "a tune compares accuracy, and the first metric here is "
            f"{names[0] if names else 'none'!r}; put accuracy first in task.metrics, or try the "
            "settings with compare, which shows every metric"
        )


def _refuse_idle(setting: Setting) -> None:
    """Refuse a key of the grid that changes nothing in this setting."""
    rules = without_effect(setting.config)
    for name in setting.values():
        if name in rules:
            said = sentence(setting.config, name, rules[name])
            raise InvalidInput(said.replace("--set", "--grid", 1))
