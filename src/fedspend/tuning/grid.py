"""The settings that a tune chooses among: every combination of the values of some config keys.

Guarantee: the settings differ in what they train, never in who takes part, with which rows, which
budgets or which measure of success: those keys are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.configuration.config import Config, any_config
from fedspend.configuration.effects import refuse_without_effect_in_all, sentence, without_effect
from fedspend.errors import InvalidInput

MOST_SETTINGS = 1000
AnyConfig = str | Path | Mapping[str, Any]

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
    "train.tensorboard",
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


def settings_of(
    config: AnyConfig, overrides: Sequence[str], grid: Sequence[str]
) -> tuple[Setting, ...]:
    """Every combination of the values in `grid`, each written `section.key=value,value,...`."""
    choices = [_choice(text) for text in grid]
    names = [one[0].partition("=")[0] for one in choices]
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
    count = 1
    for one in choices:
        count *= len(one)
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
    _refuse_idle(any_config(config, overrides), found)
    return found


def _choice(text: str) -> list[str]:
    """The overrides that one `--grid` stands for."""
    name, equals, listed = text.partition("=")
    name, values = name.strip(), [value.strip() for value in _split(listed)]
    if not (equals and "." in name and all(values)) or len(set(values)) != len(values):
        raise InvalidInput(
            "--grid must be section.key=value,value,... with distinct values, got " + repr(text)
        )
    if name in _SHARED or name.partition(".")[0] in _SHARED_SECTIONS:
        raise InvalidInput(
            f"--grid {name}: all settings share rows, budgets, accounts and measure, so {name} "
            "cannot be chosen; set it with --set, for all of them"
        )
    return [f"{name}={value}" for value in values]


def _split(listed: str) -> list[str]:
    """The values between commas; a list in brackets is one value.

    >>> _split("1,2"), _split("[1,2],[3,4]")
    (['1', '2'], ['[1,2]', '[3,4]'])
    """
    parts, depth = [""], 0
    for letter in listed:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _config(config: AnyConfig, overrides: list[str], point: tuple[str, ...]) -> Config:
    """The config of a setting; errors about a value from `--grid` name it."""
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


def _refuse_idle(base: Config, settings: Sequence[Setting]) -> None:
    """Refuse keys that change nothing, of the grid in any setting, and of the config in all."""
    for setting in settings:
        rules = without_effect(setting.config)
        for name in setting.values():
            if name in rules:
                said = sentence(setting.config, name, rules[name])
                raise InvalidInput(said.replace("--set", "--grid", 1))
    refuse_without_effect_in_all(base, [setting.config for setting in settings])
