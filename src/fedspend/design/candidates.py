"""The settings that a search trains, from a config's `[design]` section, each with the plan that
accounts for it.

Guarantee: a search is a seeded simulation on public data. Every candidate uses the data once more,
and so does the choice among them; no budget covers that, so private data and real randomness are
refused before anything is read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.configuration.config import BUDGET_SOURCES, Config, needed
from fedspend.configuration.data_inputs import Source
from fedspend.configuration.plan_inputs import Flags, resolve
from fedspend.configuration.sections import SECTIONS
from fedspend.data.loading import OWN
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.plan import Plan
from fedspend.server.methods import dp_fedsgd

TUNING = (
    "Tuning data must be public: this search trained on its data many times without a budget. "
    "Tuning on private data would itself cost privacy, which nothing here accounts for."
)
# keys of [privacy] that the candidate replaces
_REPLACED = ("policy", "saving_rate", "transition", "weights", "permute_rates", *BUDGET_SOURCES)


@dataclass(frozen=True)
class Candidate:
    """One setting: a rate with a noise level."""

    rate: float
    noise_level: float

    @property
    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def key(self) -> str:
        """The same text for the same setting, in every search that contains it."""
        return json.dumps(self.fields, sort_keys=True)

    def values(self) -> dict[str, Any]:
        """The config values that it sets."""
        return {
            "method.name": dp_fedsgd.NAME,
            "method.noise_level": self.noise_level,
            "privacy.rate": self.rate,
        }


@dataclass(frozen=True)
class Search:
    """The candidates, the seeds and the config that a search uses."""

    base: Config
    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]

    @property
    def rounds(self) -> int:
        return needed(self.base.train.rounds, "train.rounds")

    @property
    def clients(self) -> int:
        return needed(self.base.data.clients, "data.clients")

    @property
    def delta(self) -> float:
        return needed(self.base.privacy.delta, "privacy.delta")

    @property
    def clip(self) -> float:
        return self.base.privacy.clip

    def config(self, candidate: Candidate, seed: int | None = None) -> Config:
        """The config of one training."""
        always = {"privacy.randomness": "seeded", "engine.workers": 1}
        seeded = {} if seed is None else {"train.seed": seed}
        return altered(self.base, candidate.values() | always | seeded)

    def settings(self) -> dict[str, Any]:
        """What all trainings share; it must be the same for results to be combined."""
        own = {
            "privacy.rate",
            "method.name",
            "method.noise_level",
            "train.seed",
            "engine.workers",
            "train.loggers",
        }
        names = [
            f"{section}.{key}"
            for section, keys in SECTIONS.items()
            if section != "design"
            for key in keys
        ]
        common = [
            name
            for name in names
            if name not in own and name not in {f"privacy.{key}" for key in _REPLACED}
        ]
        values = {name: self.base.value(name) for name in common} | {
            "data.partition": Source(self.base).partition
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        # Names do not matter here, and the data may not be there yet.
        numbers = Flags(clients=self.clients)
        return tuple(
            resolve(self.config(candidate), numbers).request.plan() for candidate in self.candidates
        )


def altered(config: Config, changes: dict[str, Any]) -> Config:
    """The config with the candidate's values in place of its own budgets and policy."""
    for key in _REPLACED:
        config = config.without(f"privacy.{key}")
    values = {section: dict(table) for section, table in config.values.items()}
    for name, value in changes.items():
        section, key = name.split(".")
        values.setdefault(section, {})[key] = value
    return replace(
        config, values=values, origins=dict(config.origins) | dict.fromkeys(changes, "[design]")
    )


def proxy_by_round(made: Plan) -> FloatArray:
    """f2 after each round, `sqrt(sum_t q_t / sigma_t^2)`: for a constant schedule
    `sqrt(q T) / sigma`.

    A schedule's noise level is `sigma_t = z_t c / sqrt(q_t K)`, with z_t its noise multiplier.
    """
    rate, multiplier = made.schedules.sampling_rate[:, 0], made.schedules.noise_multiplier[:, 0]
    level = multiplier * made.clip / np.sqrt(rate * len(made.clients))
    proxy: FloatArray = np.sqrt(np.cumsum(rate / level**2))
    return proxy


def read_search(config: Config) -> Search:
    """The search that a config describes; refuses private data and real randomness."""
    name = config.data.name
    if name in OWN:
        raise Refused(
            "a search trains on its data once per setting and seed, and no budget covers that: "
            f"data {name!r} counts as private; search on a public data set that resembles it, "
            "then train on yours once"
        )
    if config.privacy.randomness == "os":
        raise Refused(
            "a search is a seeded simulation: remove randomness = 'os', which is for the final run"
        )
    needed(config.train.rounds, "train.rounds", "--set train.rounds=T")
    needed(config.data.clients, "data.clients", "--set data.clients=K")
    needed(config.privacy.delta, "privacy.delta", "--set ...")
    levels = needed(config.design.noise_levels, "design.noise_levels")
    rates = config.design.rates or [
        needed(config.privacy.rate, "privacy.rate", "--set privacy.rate=Q")
    ]
    candidates = _grid(config, rates, levels)
    first, count = config.train.seed, config.design.seeds or 3
    return Search(config, tuple(candidates), tuple(range(first, first + count)))


def _grid(config: Config, rates: list[float], levels: list[float]) -> list[Candidate]:
    """One candidate per rate and noise level.

    One training serves every T up to its last round, so nothing in it may depend on which round is
    the last.
    """
    for name, plain in (("train.lr_schedule", "constant"), ("train.tail_average", 1)):
        if config.value(name) != plain:
            raise InvalidInput(
                f"{config.where(name)}: a search over noise_levels uses one training for every T, "
                f"so {name.partition('.')[2]} must be {plain!r}, got {config.value(name)!r}"
            )
    return [Candidate(rate, noise_level=level) for rate in rates for level in sorted(levels)]
