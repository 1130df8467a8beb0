"""What a person sets on the planner page, and the command, flags and config that mean the same.

Guarantee: the page's plan is the plan of the command that it shows; both go through the flags of
`fedspend plan`. Whatever is wrong with a value is said in one line that names it.
"""

from __future__ import annotations

import shlex
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.basics.toml_text import config_text
from fedspend.configuration.config import any_config
from fedspend.configuration.plan_inputs import Flags, resolve
from fedspend.errors import FedspendError, InvalidInput, finite_number, whole_number
from fedspend.planning.plan import Plan
from fedspend.planning.policies import POLICIES
from fedspend.planning.protocol import load_any_plan
from fedspend.stored.files import PLAN

MOST_CLIENTS = 1_000_000  # on the page
MOST_GROUPS = 12
MOST_ROUNDS = 2_000
_ALIKE = 1e-3  # plans of other versions differ in their last digits
OPTIONS = ("saving_rate", "transition", "ratio", "contraction", "tail")
"""Settings that only some policies use."""
_USED: Mapping[str, tuple[str, ...]] = {
    "saving_rate": ("saving_rate",),
    "transition": ("transition",),
    "ratio": ("weights",),
    "contraction": ("contraction",),
    "tail": ("contraction",),
}
# One list of weights per round is for a file or the command line.
POLICIES_SHOWN = tuple(policy.name for policy in POLICIES if policy.name != "weights")


@dataclass(frozen=True)
class Settings:
    """Budgets by group, as (epsilon, clients), and terms. None: the default of the policy."""

    groups: tuple[tuple[float, int], ...] = ((10.0, 34), (20.0, 43), (30.0, 23))
    rounds: int = 25
    rate: float = 0.9
    delta: float = 1e-5
    policy: str = "optimal"
    saving_rate: float | None = None
    transition: int | None = None
    ratio: float | None = None
    contraction: float | None = None
    tail: int | None = None
    clip: float = 1.0
    accountant: str = AUTO
    parameters: int = 7850  # of the model: logistic regression on 28 x 28 images

    @property
    def clients(self) -> int:
        return sum(count for _, count in self.groups)

    def flags(self) -> Flags:
        return Flags(
            epsilon=self._epsilon,
            delta=self.delta,
            rounds=self.rounds,
            rate=self.rate,
            policy=self.policy,
            saving_rate=None if self.saving_rate is None else short(self.saving_rate),
            transition=None if self.transition is None else str(self.transition),
            weights=None if self.ratio is None else f"geometric:{short(self.ratio)}",
            contraction=self.contraction,
            tail=self.tail,
            clip=self.clip,
            accountant=self.accountant,
        )

    @property
    def _epsilon(self) -> str:
        return ",".join(f"{short(epsilon)}:{count}" for epsilon, count in self.groups)

    def command(self) -> str:
        """The command that makes the same plan."""
        flags = self.flags()
        given = [
            (field.name, getattr(flags, field.name))
            for field in fields(Flags)
            if getattr(flags, field.name) not in (None, False)
        ]
        words = [
            part
            for name, value in given
            if (name, value) not in (("clip", 1.0), ("accountant", AUTO))
            for part in (f"--{name.replace('_', '-')}", short(value))
        ]
        return shlex.join(["fedspend", "plan", *words])

    def config(self) -> str:
        """A config file with these settings, to which data and model are to be added."""
        groups = [{"epsilon": epsilon, "share": count} for epsilon, count in self.groups]
        privacy: dict[str, Any] = {
            "groups": groups,
            "delta": self.delta,
            "rate": self.rate,
            "policy": self.policy,
            "clip": self.clip,
            "accountant": self.accountant,
            "saving_rate": self.saving_rate,
            "transition": self.transition,
            "weights": self.ratio,
            "contraction": self.contraction,
        }
        sections = {
            "data": {"clients": self.clients},
            "privacy": {key: value for key, value in privacy.items() if value is not None},
            "train": {"rounds": self.rounds}
            | ({"tail_average": self.tail} if self.tail is not None else {}),
        }
        return (
            "# Budgets and terms. To train, add a name to [data], a [model], and steps and\n"
            "# learning rate to [train].\n\n" + config_text(sections)
        )

    def to_dict(self) -> dict[str, Any]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"groups": [list(group) for group in self.groups]}


def used_by(policy: str) -> tuple[str, ...]:
    """The optional settings that a policy uses."""
    keys = POLICIES[policy].keys
    return tuple(name for name in OPTIONS if any(key in keys for key in _USED[name]))


# --- from a page ----------------------------------------------------------------------------------


def read_settings(given: Mapping[str, Any]) -> Settings:
    """What a page sent. Options that the policy does not use are left out."""
    known = {field.name for field in fields(Settings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidInput(f"unknown setting {unknown[0]!r}; the settings are {', '.join(known)}")
    policy = given.get("policy", Settings.policy)
    if policy not in POLICIES_SHOWN:
        raise InvalidInput(f"policy must be one of {', '.join(POLICIES_SHOWN)}; got {policy!r}")
    unused = set(OPTIONS) - set(used_by(policy))
    read = {
        name: _READERS[name](value)
        for name, value in given.items()
        if name not in unused and value is not None
    }
    return Settings(**read)


def _groups(value: Any) -> tuple[tuple[float, int], ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_GROUPS:
        raise InvalidInput(f"the planner takes 1 to {MOST_GROUPS} groups of clients")
    found = []
    for one in value:
        if not isinstance(one, list) or len(one) != 2:
            raise InvalidInput("a group is an epsilon and a number of clients")
        epsilon = finite_number("epsilon", one[0])
        found.append((epsilon, _at_most("clients of a group", one[1], MOST_CLIENTS)))
    if len({epsilon for epsilon, _ in found}) < len(found):
        raise InvalidInput("two groups have the same epsilon; make them one group")
    return tuple(found)


def _text(name: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInput(f"{name} must be text, got {value!r}")
        return value

    return read


def _number(name: str) -> Callable[[Any], float]:
    return lambda value: finite_number(name, value)


def _whole(name: str, most: int) -> Callable[[Any], int]:
    return lambda value: _at_most(name, value, most)


def _at_most(name: str, value: Any, most: int) -> int:
    found = whole_number(name, value, 1)
    if not found <= most:
        raise InvalidInput(f"{name} must be at most {most:,} on this page, got {found:,}")
    return found


_READERS: dict[str, Callable[[Any], Any]] = {
    "groups": _groups,
    "rounds": _whole("rounds", MOST_ROUNDS),
    "rate": _number("rate"),
    "delta": _number("delta"),
    "policy": _text("policy"),
    "saving_rate": _number("saving rate"),
    "transition": _whole("transition", MOST_ROUNDS),
    "ratio": _number("ratio"),
    "contraction": _number("contraction"),
    "tail": _whole("tail", MOST_ROUNDS),
    "clip": _number("clip"),
    "accountant": _text("accountant"),
    "parameters": _whole("parameters of the model", 10**12),
}


# --- from a file ----------------------------------------------------------------------------------


def settings_of(text: str, name: str = "the file") -> Settings:
    """The settings in a plan file or a config, as far as the page can show them."""
    if text.lstrip().startswith("{"):
        return _of_plan(text, name)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{name} is neither a plan nor a config: {error}") from None
    return _of_config(tables, name)


def _of_config(tables: dict[str, Any], name: str) -> Settings:
    """Only budgets and terms count: no data is read."""
    kept = {key: tables[key] for key in ("method", "privacy", "train") if key in tables}
    clients = tables.get("data", {}).get("clients")
    privacy = kept.get("privacy")
    if not isinstance(privacy, dict) or not ({"groups", "epsilon"} & set(privacy)):
        raise InvalidInput(
            f"{name} has no privacy.groups and no privacy.epsilon; the planner needs budgets by "
            "group"
        )
    if not {"preferences", "noise_multiplier"}.isdisjoint(privacy):
        raise InvalidInput(f"{name} plans records; the planner is for plans of clients")
    if not clients:
        raise InvalidInput(
            f"{name} does not say how many clients there are, and the planner reads no rows; set "
            "data.clients, or, where the rows name clients, open their plan: fedspend plan "
            f"{name} -o plan.json"
        )
    config = any_config(kept | {"data": {"clients": clients}})
    request = resolve(config, Flags()).request
    plan_like = replace(request, accountant="rdp")
    found = Settings(
        groups=_counted(plan_like.epsilons),
        rounds=request.rounds,
        rate=request.rate,
        delta=request.delta,
        policy=_shown(request.policy or plan_like.plan().policy, name),
        clip=request.clip,
        accountant=request.accountant,
    )
    uses = used_by(found.policy)
    options = {
        "saving_rate": _one(request.saving_rate, "saving rate", name),
        "transition": _one(request.transition, "transition", name),
        "ratio": request.weights if isinstance(request.weights, float) else None,
        "contraction": request.contraction,
        "tail": request.tail,
    }
    found = replace(found, **{key: value for key, value in options.items() if key in uses})
    _refuse_other(found, plan_like.plan(), name)
    return found


def _of_plan(text: str, name: str) -> Settings:
    """Terms are read from the schedules, so that they are those that the plan really has."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PLAN.name)
        path.write_text(text, encoding="utf-8")
        try:
            found = load_any_plan(path)
        except FedspendError as error:
            raise type(error)(str(error).replace(str(path), name)) from None
    plan = Plan.expect(found, f"{name} plans records; the planner is for plans of clients")
    policy, table = _shown(plan.policy, name), plan.schedules
    first, last = table.sampling_rate[0], float(table.sampling_rate.max())
    switch = (table.sampling_rate >= last).argmax(axis=0) + 1
    expected = plan.parameters.get("expected") or {}
    weights = plan.parameters.get("weights") or [1.0, 1.0]
    options: dict[str, Any] = {
        "saving_rate": _one(first, "saving rate", name) if "saving_rate" in used_by(policy) else 0,
        "transition": _one(switch, "transition", name) if "transition" in used_by(policy) else 0,
        "ratio": weights[1] / weights[0] if len(weights) > 1 else 1.0,
        "contraction": expected.get("contraction"),
        "tail": expected.get("tail"),
    }
    settings = Settings(
        groups=_counted(plan.budget),
        rounds=plan.rounds + plan.dropped_rounds,
        rate=float(plan.parameters.get("rate", last)),  # from which rates by budget are made
        delta=plan.delta,
        policy=policy,
        clip=plan.clip,
        accountant=plan.accountant,
        **{key: value for key, value in options.items() if key in used_by(policy)},
    )
    _refuse_other(settings, plan, name)
    return settings


def _refuse_other(found: Settings, plan: Plan, name: str) -> None:
    """Refuse a file whose plan is not the one that the page would show."""
    flags = replace(found.flags(), accountant=plan.accountant)
    shown = resolve(any_config({}), flags).request.plan()
    same = shown.rounds == plan.rounds and all(
        np.allclose(ours, theirs, rtol=_ALIKE, atol=0)
        for ours, theirs in (
            (shown.round_noise, plan.round_noise),
            (shown.round_rate, plan.round_rate),
            (shown.round_deviation, plan.round_deviation),
        )
    )
    if not same:
        raise InvalidInput(
            f"{name} has more than the planner shows (its learning rate or clip changes, it has "
            "server momentum, a split of rates, influence, or noise for bits or a metric), so the "
            "page would show another plan; drop that, or read the plan: fedspend plan, explain"
        )


def _counted(epsilons: Any) -> tuple[tuple[float, int], ...]:
    values, counts = np.unique(np.asarray(epsilons, dtype=np.float64), return_counts=True)
    if values.size > MOST_GROUPS:
        raise InvalidInput(
            f"there are {values.size:,} different budgets; the planner shows up to {MOST_GROUPS}"
        )
    return tuple(zip(values.tolist(), map(int, counts.tolist()), strict=True))


def _shown(policy: str, name: str) -> str:
    if policy not in POLICIES_SHOWN:
        raise InvalidInput(
            f"{name} has policy {policy!r}; the planner shows {', '.join(POLICIES_SHOWN)}"
        )
    return policy


def _one(value: Any, what: str, name: str) -> Any:
    """A setting that is the same for everyone."""
    if value is None or not isinstance(value, np.ndarray):
        return value
    distinct = np.unique(value)
    if distinct.size > 1:
        raise InvalidInput(f"{name} has a {what} for each group; the planner takes one for all")
    return distinct[0].item()


def short(value: float | int | str) -> str:
    """A number as short as it can be without becoming another.

    >>> short(10.0), short(1e-05), short(0.1 + 0.2), short(7), short("rdp")
    ('10', '1e-05', '0.30000000000000004', '7', 'rdp')
    """
    if not isinstance(value, float):
        return str(value)
    brief = f"{value:g}"
    return brief if float(brief) == value else repr(value)
