"""What `design choose` chooses from: axes, their values, and the config that a choice makes.

Guarantee: the config of a candidate is complete and valid on its own. It is the user's config with
the candidate's values in place of its own; keys that have no effect under them are left out, so
that `fedspend train` takes it as it is. Budgets, delta and clients are never changed.

An axis is a key of the config (`train.rounds`), or one of two that set several keys at once:

- `policy`: how a budget is spread over rounds and clients, for example `uniform`, `optimal`,
  `geometric:1.05` (its ratio), `spend-as-you-go:0.5` (saves at that share of the rate, in the first
  half), `individual-rates:rates` (its split); `config` is the config's own, with its own keys;
- `schedule`: learning rate and clip by round: `constant`, `linear/lr` (the clip follows),
  `linear/constant` (it stays), and the same with `cosine`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedspend.budgets.population import number
from fedspend.configuration.config import BUDGET_SOURCES, Config, needed, read_table, shown
from fedspend.configuration.config import Place as Named
from fedspend.configuration.effects import without_effect
from fedspend.configuration.method_name import known_method
from fedspend.configuration.sections import SECTIONS
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.policies import POLICIES
from fedspend.server.methods.table import METHODS

ROUNDS, RATE, TAIL = "train.rounds", "privacy.rate", "train.tail_average"
POLICY, SCHEDULE = "policy", "schedule"
OWN_POLICY = "config"
LR, CLIP = "train.lr", "privacy.clip"
SHAPES = ("linear", "cosine")
FOLLOWS, STAYS = "lr", "constant"
SAVING = 0.5  # of the rate, where spend-as-you-go does not say
# what a policy's axis sets, so that nothing is left of the config's own policy
_OF_POLICY = ("policy", "saving_rate", "transition", "weights", "split", "permute_rates")
_FIXED = ("data", "evaluation", "ledger", "design", "node")  # sections that are not chosen
_NOT_CHOSEN = {
    *(f"privacy.{key}" for key in (*BUDGET_SOURCES, "delta", "randomness", *_OF_POLICY)),
    "privacy.clip_schedule",
    "train.lr_schedule",
    "train.seed",
    "train.tensorboard",
    "train.loggers",
    "method.name",
    "engine.name",
    "engine.workers",
}
_INSTEAD = {
    **{f"privacy.{key}": POLICY for key in _OF_POLICY},
    "method.name": POLICY,
    "privacy.clip_schedule": SCHEDULE,
    "train.lr_schedule": SCHEDULE,
}

Value = Any  # a number or a word
Axes = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Candidate:
    """One value for every axis, in the order of the axes."""

    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Candidate:
        return cls(tuple(values.items()))

    def __getitem__(self, axis: str) -> Value:
        return self.fields[axis]

    @property
    def fields(self) -> dict[str, Value]:
        return dict(self.values)

    @property
    def key(self) -> str:
        """The same text for the same choice."""
        return json.dumps(self.fields, sort_keys=True)

    def with_(self, axis: str, value: Value) -> Candidate:
        return Candidate(tuple((name, value if name == axis else v) for name, v in self.values))

    def differs_in(self, other: Candidate) -> tuple[str, ...]:
        return tuple(
            name for (name, a), (_, b) in zip(self.values, other.values, strict=True) if a != b
        )

    def in_words(self) -> str:
        return ", ".join(f"{short(axis)} {said(value)}" for axis, value in self.values)


def short(axis: str) -> str:
    """The name of an axis in a table.

    >>> short("train.tail_average"), short("train.local_steps"), short("policy")
    ('tail', 'local steps', 'policy')
    """
    return axis.rpartition(".")[2].removesuffix("_average").replace("_", " ")


def said(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- the config of a candidate --------------------------------------------------------------------


def config_of_candidate(base: Config, candidate: Candidate) -> Config:
    """The config that a candidate makes of `base`, without keys that have no effect in it."""
    fields = candidate.fields
    changes = {axis: value for axis, value in fields.items() if axis not in (POLICY, SCHEDULE)}
    rounds = fields.get(ROUNDS, base.train.rounds)
    if SCHEDULE in fields:
        base = base.without("privacy.clip_schedule")
        changes |= of_schedule(fields[SCHEDULE])
    if fields.get(POLICY, OWN_POLICY) != OWN_POLICY:
        rate = fields.get(RATE, base.privacy.rate)
        for key in _OF_POLICY:
            base = base.without(f"privacy.{key}")
        base = without_group_saving(base)
        changes |= of_policy(fields[POLICY], known_method(base), rate, rounds)
    if fields.get(TAIL, base.train.tail_average) > (rounds or math.inf):
        changes[TAIL] = rounds
    return pruned(changed(base, changes))


def changed(config: Config, changes: Mapping[str, Value]) -> Config:
    """The config with other values, each read as if it were written in the file."""
    values = {section: dict(table) for section, table in config.values.items()}
    for name, value in changes.items():
        section, key = name.split(".")
        values.setdefault(section, {})[key] = read_value(name, value)
    origins = dict(config.origins) | dict.fromkeys(changes, "design choose")
    return replace(config, values=values, origins=origins)


def read_value(name: str, value: Value) -> Value:
    section, key = name.split(".")
    return read_table(
        {key: value}, SECTIONS[section], f"[{section}]", Named(f"vary {name}", {}), (section,)
    )[key]


def pruned(config: Config) -> Config:
    """Without what has no effect; dropping one key may leave another without."""
    while dead := without_effect(config):
        for key in dead:
            config = config.without(key)
    return config


def without_group_saving(config: Config) -> Config:
    """Saving rates and transitions of groups belong to the config's own policy."""
    groups = config.privacy.groups
    if groups is None:
        return config
    kept = [
        {key: value for key, value in group.items() if key not in ("saving_rate", "transition")}
        for group in groups
    ]
    privacy = {**config.values["privacy"], "groups": kept}
    return replace(config, values={**config.values, "privacy": privacy})


def of_policy(word: str, method: str, rate: float | None, rounds: int | None) -> dict[str, Value]:
    """The keys that a policy's word stands for."""
    name, option = split_word(word)
    keys: dict[str, Value] = {"privacy.policy": name, "method.name": method_for(name, method)}
    if name == "geometric":
        keys["privacy.weights"] = number("the ratio of policy geometric", option or "1.05")
    elif POLICIES[name].saves:
        share = number(f"the saving share of policy {name}", option or str(SAVING))
        if not 0 < share <= 1:
            raise InvalidInput(
                f"the saving share of policy {name} must lie in (0, 1], got {option}"
            )
        keys["privacy.saving_rate"] = share * needed(rate, RATE)
        keys["privacy.transition"] = needed(rounds, ROUNDS) // 2 + 1
    elif name == "individual-rates":
        keys["privacy.split"] = option or "best"
    elif option:
        raise InvalidInput(f"policy {name!r} takes no option, got {word!r}")
    return keys


def split_word(word: str) -> tuple[str, str]:
    """A policy and its option.

    >>> split_word("geometric:1.05"), split_word("uniform")
    (('geometric', '1.05'), ('uniform', ''))
    """
    name, _, option = str(word).partition(":")
    if name not in POLICIES:
        raise InvalidInput(f"policy must be one of {', '.join(POLICIES.names)}; got {word!r}")
    if POLICIES[name].keys == ("weights",) and name == "weights":
        raise InvalidInput("policy 'weights' has no words for its weights; use geometric:RATIO")
    return name, option


def method_for(policy: str, method: str) -> str:
    """The config's method if it allows the policy, else one that only follows its plan."""
    for name in (method, "idp-fedavg", "time-adaptive", "dp-fedavg"):
        entry = METHODS[name]
        if policy in entry.policies or (entry.own_policies and policy in POLICIES.own):
            return name
    raise InvalidInput(f"no method follows policy {policy!r}")


def of_schedule(word: str) -> dict[str, Value]:
    """The keys that a schedule's word stands for."""
    shape, slash, clip = str(word).partition("/")
    if shape == "constant" and not slash:
        return {"train.lr_schedule": "constant"}
    clip = clip if slash else FOLLOWS
    if shape not in SHAPES or clip not in (FOLLOWS, STAYS):
        raise InvalidInput(
            "schedule must be constant, or linear or cosine with the clip: linear/lr (it follows), "
            f"linear/constant (it stays); got {word!r}"
        )
    return {"train.lr_schedule": shape, "privacy.clip_schedule": clip}


# --- the axes -------------------------------------------------------------------------------------


def own_candidate(config: Config, axes: Axes) -> Candidate:
    """What the config itself says about every axis."""
    return Candidate.of({axis: own_value(config, axis) for axis in axes})


def own_value(config: Config, axis: str) -> Value:
    if axis == POLICY:
        return policy_word(config)
    if axis == SCHEDULE:
        return schedule_word(config)
    value = config.value(axis)
    if value is None:
        raise InvalidInput(f"{axis} is not in the config; set it there, as the place to start from")
    return value


def policy_word(config: Config) -> str:
    """The word of the config's policy, or `config` for one whose keys no word stands for."""
    from fedspend.configuration.effects import policies_of

    names = policies_of(config)
    name = next(iter(names)) if len(names) == 1 else OWN_POLICY
    if name == "geometric":
        weights = config.privacy.weights
        return f"geometric:{1.05 if weights is None else weights:g}"
    if name == "individual-rates":
        return f"individual-rates:{config.privacy.split or 'best'}"
    plain = name in POLICIES and not (POLICIES[name].saves or POLICIES[name].weighs)
    return name if plain and name not in POLICIES.own else OWN_POLICY


def schedule_word(config: Config) -> str:
    shape = config.train.lr_schedule
    if shape == "constant":
        return "constant"
    asked = config.privacy.clip_schedule
    return f"{shape}/{STAYS if asked == STAYS else FOLLOWS}"


def default_axes(config: Config, *, simulated: bool) -> dict[str, tuple[Value, ...]]:
    """What is compared if nothing else is asked for, around what the config says."""
    rounds = needed(config.train.rounds, ROUNDS)
    rate = needed(config.privacy.rate, RATE)
    policies = (
        "uniform",
        "optimal",
        "geometric:1.05",
        "geometric:0.95",
        f"spend-as-you-go:{SAVING:g}",
        "individual-rates:best",
        "individual-rates:rates",
    )
    axes: dict[str, tuple[Value, ...]] = {
        ROUNDS: (-(-rounds // 8), -(-rounds // 4), -(-rounds // 2), rounds, 2 * rounds),
        RATE: (rate / 4, rate / 2, rate, 1.0),
        SCHEDULE: ("constant", "linear/lr", "linear/constant"),
        TAIL: (1, 2, 4, 8),
        POLICY: policies,
        CLIP: tuple(config.privacy.clip * 2.0**k for k in (-2, -1, 0, 1, 2)),
    }
    if simulated:
        lr = needed(config.train.lr, LR)
        axes[LR] = tuple(lr * 2.0**k for k in (-2, -1, 0, 1, 2))
    return axes


def checked_axes(
    config: Config, vary: Mapping[str, Sequence[Value]] | None, *, simulated: bool
) -> dict[str, tuple[Value, ...]]:
    """The axes: the usual ones, with those of `vary` in their place or beside them.

    An axis with one value stays as it is. The config's own value is one of each axis.
    """
    asked = {axis: checked_values(axis, values) for axis, values in (vary or {}).items()}
    for axis, values in asked.items():
        if not values:
            raise InvalidInput(f"vary {axis} has no values; give at least one")
    usual = default_axes(config, simulated=simulated)
    axes = asked | {axis: values for axis, values in usual.items() if axis not in asked}
    result = {}
    for axis, values in axes.items():
        fixed = vary is not None and axis in vary and len(values) == 1
        own = () if fixed else (own_value(config, axis),)
        result[axis] = in_order((*values, *own))
    return result


def checked_values(axis: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values of an axis, each read as the config would."""
    if isinstance(values, str) or not all(isinstance(one, str | int | float) for one in values):
        raise InvalidInput(f"vary {axis} must be a list of numbers or words, got {shown(values)}")
    if axis == POLICY:
        words = tuple(str(word) for word in values)
        for word in words:
            if word != OWN_POLICY:
                of_policy(word, "idp-fedavg", 1.0, 2)
        return words
    if axis == SCHEDULE:
        words = tuple(str(word) for word in values)
        for word in words:
            of_schedule(word)
        return words
    section, dot, key = axis.partition(".")
    if axis in _NOT_CHOSEN or section in _FIXED:
        hint = f"; vary {_INSTEAD[axis]} instead" if axis in _INSTEAD else ""
        raise InvalidInput(f"{axis} is not something to choose{hint}")
    if not dot or section not in SECTIONS or key not in SECTIONS[section]:
        raise InvalidInput(
            f"vary {shown(axis)}: not a key of a config, written section.key, nor policy, nor "
            "schedule"
        )
    return tuple(read_value(axis, value) for value in values)


def in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    """Without repetitions; numbers ascending, words as they came."""
    unique = list(dict.fromkeys(values))
    ordered = all(isinstance(one, int | float) for one in unique)
    return tuple(sorted(unique) if ordered else unique)


def neighbours(
    axes: Axes, candidate: Candidate, axis: str, *, near: bool = True
) -> list[Candidate]:
    """The candidates that differ in this axis alone; `near`: among many numbers, the next ones."""
    values, own = axes[axis], candidate[axis]
    if near and len(values) > 3 and all(isinstance(one, int | float) for one in values):
        at = values.index(own)
        values = tuple(values[n] for n in (at - 1, at + 1) if 0 <= n < len(values))
    return [candidate.with_(axis, value) for value in values if value != own]


def refuse_private(config: Config, what: str) -> None:
    """Refuse rows that someone's budget should cover."""
    from fedspend.data.loading import OWN

    name = config.data.name
    if name in OWN:
        raise Refused(
            f"{what} trains on its data again and again, and no budget covers that: data {name!r} "
            "counts as private; use a public data set that resembles it, or theory alone"
        )
    if config.privacy.randomness == "os":
        raise Refused(
            f"{what} is a seeded simulation: remove randomness = 'os', which is for the final run"
        )
