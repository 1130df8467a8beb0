"""Refuses keys that were given but have no effect, since they would look as if they had one.

Guarantee: a key is refused only if the config itself decides that it has no effect. Keys of the
file that lose their effect through a flag, `--set` or a comparison (another method, policy,
partition, ...) are left alone, so that one config serves several methods; a key that `--set` itself
gives without effect is still refused. `[design]` is for `fedspend design`, and is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from fedspend.basics.registry import entries_with, own_keys
from fedspend.configuration.config import BUDGET_SOURCES, Config
from fedspend.configuration.method_name import method_of
from fedspend.configuration.noise_kind import is_discrete
from fedspend.configuration.sections import PRIVATE, SECTIONS
from fedspend.data.loading import DATA_SETS
from fedspend.data.partition import PARTITIONS
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput
from fedspend.planning.policies import POLICIES, policy_for, with_key
from fedspend.server.methods.planned import AE_DPFL
from fedspend.server.methods.table import METHODS, methods_for, protects_records

VOTES = AE_DPFL.name
# built-in models; their registry needs torch
MODELS = (
    "logistic",
    "linear",
    "mlp",
    "cnn",
    "lenet",
    "small-cnn",
    "resnet18",
    "lstm",
    "transformer",
    "fine-tune",
)
TOKEN_MODELS = ("lstm", "transformer")
# models that engine local runs for all clients at once, in this process
BATCHED = ("logistic", "linear", "mlp")


@dataclass(frozen=True)
class Rule:
    """When some keys have an effect, a phrase for what they need, and the settings that decide."""

    keys: tuple[str, ...]
    used: Callable[[Config], bool]
    needs: str
    deciders: tuple[str, ...]


def by_method(methods: Sequence[str], *keys: str, needs: str | None = None) -> Rule:
    """A rule for keys that only some methods use.

    An unknown method counts as using every key: the error will be about its name.
    """
    return Rule(
        keys,
        lambda config: method_of(config) in methods or method_of(config) not in METHODS,
        needs or named("method.name", methods),
        ("method.name",),
    )


def named(setting: str, names: Sequence[str]) -> str:
    """A setting and the values that a key needs it to have.

    >>> named("method.name", ["rpdp"]), named("data.name", ["csv", "npz"])
    ('method.name = "rpdp"', 'data.name csv or npz')
    """
    if len(names) == 1:
        return f'{setting} = "{names[0]}"'
    return f"{setting} {', '.join(names[:-1])} or {names[-1]}"


def of_methods() -> list[Rule]:
    """A rule for every key of [method]; the entries say which methods use it."""
    users = {
        key: [entry.name for entry in METHODS if key in entry.keys]
        for key in SECTIONS["method"]
        if key != "name"
    }
    return [by_method(names, f"method.{key}") for key, names in users.items()]


def by_model(models: Sequence[str], *keys: str) -> Rule:
    """A rule for options of some models, which may be a backbone, too."""

    def used(config: Config) -> bool:
        named = (config.model.name, config.model.backbone)
        return named[0] is None or any(
            name is not None and (name in models or (name not in MODELS and ":" not in name))
            for name in named
        )

    return Rule(
        tuple(f"model.{key}" for key in keys),
        used,
        named("model.name", models),
        ("model.name", "model.backbone"),
    )


def by_partition(kind: str, key: str) -> Rule:
    def used(config: Config) -> bool:
        chosen = config.data.partition
        return chosen is not None and key.removeprefix("data.") in PARTITIONS[chosen].keys

    return Rule((key,), used, f'data.partition = "{kind}"', ("data.partition",))


def by_source(sources: Sequence[str], *keys: str) -> Rule:
    """A rule for options of some data sets; if no data set is named, nothing is known yet."""

    def used(config: Config) -> bool:
        name = config.data.name
        # what a user's own entry takes
        asked = DATA_SETS[name].keys if name in DATA_SETS.own else ()
        return name in (None, *sources) or any(key.removeprefix("data.") in asked for key in keys)

    return Rule(keys, used, named("data.name", sources), ("data.name",))


def of_sources() -> list[Rule]:
    """A rule for every key of [data] that only some of our data sets take; the entries say which.

    `public_path` and `record` are refused where the data is read, with what to do instead.
    """
    users: dict[str, list[str]] = {}
    for key in SECTIONS["data"]:
        names = [entry.name for entry in DATA_SETS if key in entry.keys]
        if names and key not in ("public_path", "record"):
            users[key] = names
    return [by_source(names, f"data.{key}") for key, names in users.items()]


def policies_of(config: Config) -> frozenset[str]:
    """The policies that the plan may have.

    There is only one, except with a file of budgets, whose columns are not read here.
    """
    privacy = config.privacy
    if method_of(config) in methods_for(None):
        return frozenset()
    saves = privacy.saving_rate is not None or any(
        "saving_rate" in group for group in privacy.groups or ()
    )
    # a single number means geometric, if the method allows it
    ratio = privacy.policy is None and isinstance(privacy.weights, float)
    for named in ("geometric", None) if ratio else (privacy.policy,):
        try:
            return frozenset(
                policy_for(
                    config.method.name, named, saves=some, weighted=privacy.weights is not None
                )
                for some in ({saves, True} if privacy.budgets is not None else {saves})
            )
        except InvalidInput:
            continue
    return frozenset(
        POLICIES.names
    )  # a name is wrong, or two settings contradict each other: planning says which


def by_policy(what: str, *keys: str, for_records: bool = True) -> Rule:
    """A rule for keys that only some policies use; if they are also for records, which have no
    policies, record-level plans check them elsewhere.
    """
    key = keys[0].removeprefix("privacy.")
    return Rule(
        keys,
        lambda config: (
            for_records
            if protects_records(method_of(config))
            else not policies_of(config).isdisjoint(with_key(key))
        ),
        f"a policy {what} ({' or '.join(with_key(key))})",
        (
            "method.name",
            "privacy.policy",
            "privacy.saving_rate",
            "privacy.weights",
            *(f"privacy.{key}" for key in BUDGET_SOURCES),
        ),
    )


def by_engine(name: str, key: str) -> Rule:
    return Rule(
        (key,),
        lambda config: config.engine.name == name,
        f'engine.name = "{name}"',
        ("engine.name",),
    )


def asking(key: str) -> tuple[str, ...]:
    """The engines that take a key."""
    return tuple(entry.name for entry in ENGINES if key in entry.keys)


def saving(key: str) -> Rule:
    """A rule for a value that groups fall back on: no group does if each has one of its own."""
    rule = by_policy("that saves", f"privacy.{key}")

    def used(config: Config) -> bool:
        groups = config.privacy.groups
        return rule.used(config) and (groups is None or any(key not in group for group in groups))

    return replace(rule, used=used, needs=f"{rule.needs}, and no {key} of its own in every group")


def workers_work(config: Config) -> bool:
    name = config.model.name
    return (
        "workers" in ENGINES[config.engine.name].keys
        and (name not in BATCHED or config.engine.name != "local")
        and not protects_records(method_of(config))
    )


def clip_may_change(config: Config) -> bool:
    """A method without privacy has no clip; its config may serve others."""
    name = method_of(config)
    if name not in METHODS or config.privacy.clip_schedule == "constant":
        return True
    method = METHODS[name]
    return method.unit is None or (method.unit == "client" and method.clip_schedule != "constant")


RULES = (
    *of_sources(),
    by_partition("dirichlet", "data.alpha"),
    by_partition("shards", "data.shards"),
    by_partition("classes", "data.classes_per_client"),
    by_model(("mlp",), "hidden"),
    by_model(TOKEN_MODELS, "vocabulary", "width"),
    by_model(("transformer",), "layers", "heads"),
    Rule(
        ("model.backbone", "model.weights", "model.rank"),
        lambda config: config.model.name in (None, "fine-tune"),
        'model.name = "fine-tune"',
        ("model.name",),
    ),
    Rule(
        ("model.options",),
        lambda config: any(
            ":" in (name or "") for name in (config.model.name, config.model.backbone)
        ),
        'a model of your own (model.name = "package.module:function")',
        ("model.name", "model.backbone"),
    ),
    *of_methods(),
    by_method((VOTES,), *(f"votes.{key}" for key in SECTIONS["votes"])),
    by_method(
        # a method without privacy ignores budgets, which are there for other methods
        (*methods_for("record"), *methods_for(None)),
        "privacy.noise_multiplier",
        needs=f"a record-level method ({', '.join(methods_for('record'))})",
    ),
    by_policy("with weights", "privacy.weights"),
    saving("saving_rate"),
    saving("transition"),
    by_policy("with rates by client", "privacy.split", for_records=False),
    by_policy("that looks ahead", "privacy.contraction", "privacy.influence", for_records=False),
    by_method(
        (*methods_for("client"), *methods_for(None)),
        "privacy.permute_rates",
        needs="a method for whole clients: records have no saving rates",
    ),
    Rule(
        ("privacy.clip_schedule",),
        clip_may_change,
        "a method whose clients send updates, or to be 'constant': the clip of records bounds "
        "gradients, and votes have no scale",
        ("method.name",),
    ),
    Rule(
        ("privacy.bits",),
        is_discrete,
        'privacy.noise = "discrete" or "discrete-distributed"',
        ("privacy.noise",),
    ),
    Rule(
        ("evaluation.noise", "evaluation.bounds"),
        lambda config: config.evaluation.mode == PRIVATE,
        'evaluation.mode = "private"',
        ("evaluation.mode",),
    ),
    Rule(
        ("stop.metric", "stop.least", "stop.first", "stop.keep"),
        lambda config: config.stop.patience is not None,
        "stop.patience",
        ("stop.patience",),
    ),
    Rule(
        ("train.momentum",),
        lambda config: config.train.optimizer in (None, "sgd"),
        'train.optimizer = "sgd"',
        ("train.optimizer",),
    ),
    Rule(
        ("train.server_momentum",),
        lambda config: config.train.server_optimizer in (None, "sgd"),
        'train.server_optimizer = "sgd"',
        ("train.server_optimizer",),
    ),
    by_method(
        (*methods_for("client"), *methods_for(None)),
        "train.gradient_clip",
        needs="a method for whole clients: single records are clipped already",
    ),
    Rule(
        ("train.lr_end",),
        lambda config: config.train.lr_schedule != "constant",
        'train.lr_schedule = "linear" or "cosine"',
        ("train.lr_schedule",),
    ),
    Rule(
        ("engine.name",),
        # Records are always trained by the reference engine, here or at their silos.
        lambda config: (
            not protects_records(method_of(config))
            or config.engine.name == "reference"
            or ENGINES[config.engine.name].elsewhere
        ),
        "a method for whole clients, or to be 'flower': records are trained by the reference "
        "engine",
        ("method.name",),
    ),
    Rule(
        ("engine.workers",),
        workers_work,
        'engine.name = "local", a method for whole clients, and a model other than '
        f"{' and '.join(BATCHED)}",
        ("engine.name", "model.name", "method.name"),
    ),
    Rule(
        ("engine.ask",),
        # Engines of your own may not know of clients' coins, and would sample nobody out.
        lambda config: (
            "ask" in ENGINES[config.engine.name].keys and not protects_records(method_of(config))
        ),
        f"a method for whole clients, and engine {' or '.join(map(repr, asking('ask')))}",
        ("engine.name", "method.name"),
    ),
    Rule(
        ("engine.silos",),
        lambda config: (
            ENGINES[config.engine.name].elsewhere and protects_records(method_of(config))
        ),
        'engine.name = "flower" and a method for records: clients are listed with their budgets',
        ("engine.name", "method.name"),
    ),
    *(
        by_engine("flower", f"engine.{key}")
        for key in ENGINES["flower"].keys
        if key not in ("ask", "silos")
    ),
    Rule(
        tuple(f"node.{key}" for key in SECTIONS["node"]),
        lambda _config: False,
        "the config of a node, which is a file of its own (docs/how-to/flower.md)",
        (),
    ),
)


def without_effect(config: Config) -> dict[str, Rule]:
    """The keys that were given but have no effect. An unknown data set is reported first: it would
    seem to take no key at all.
    """
    if config.data.name is not None:
        try:
            DATA_SETS[config.data.name]
        except InvalidInput as error:
            raise InvalidInput(f"{config.where('data.name')}: {error}") from None
    return {
        key: rule
        for rule in (*RULES, *of_own_entries())
        for key in rule.keys
        if config.given(key) and not rule.used(config)
    }


def of_own_entries() -> list[Rule]:
    """A rule for every key that only users' own entries have."""
    return [
        of_own_key(section, key)
        for section in SECTIONS
        for key in sorted(own_keys(section).difference(SECTIONS[section]))
    ]


def of_own_key(section: str, key: str) -> Rule:
    users = [entry.name for entry in entries_with(section, key)]
    # a config names entries in these places
    deciders = tuple(
        f"{section}.{place}" for place in ("name", "partition", "policy", "accountant")
    )
    known = [name for name in deciders if name.partition(".")[2] in SECTIONS[section]]
    return Rule(
        (f"{section}.{key}",),
        lambda config: any(config.value(name) in users for name in known),
        f"one of your own entries that use it ({', '.join(users)})",
        tuple(known),
    )


def left_alone(config: Config, key: str, rule: Rule, changed: Collection[str] = ()) -> bool:
    """Whether a key may have lost its effect only because `--set` or a flag changed another one.

    `changed` names the settings that flags have overridden, which the config does not know.
    """
    by_set = key not in config.overridden and not config.overridden.isdisjoint(rule.deciders)
    return by_set or any(name in rule.deciders for name in changed)


def refuse_without_effect(config: Config, changed: Collection[str] = ()) -> None:
    """Refuse a key without effect; `changed` names the settings that flags have overridden."""
    for key, rule in without_effect(config).items():
        if not left_alone(config, key, rule, changed):
            raise InvalidInput(sentence(config, key, rule))


def refuse_without_effect_in_all(config: Config, arms: Sequence[Config]) -> None:
    """Refuse a key without effect in every arm of a comparison and in the config itself."""
    alone = without_effect(config)
    dead = [without_effect(arm) for arm in arms]
    for key, rule in dead[0].items():
        by_itself = not config.given(key) or (key in alone and not left_alone(config, key, rule))
        if by_itself and all(key in one for one in dead):
            raise InvalidInput(sentence(arms[0], key, rule))


def sentence(config: Config, name: str, rule: Rule) -> str:
    section, key = name.split(".")
    return (
        f"{config.where(name)}: {key} in [{section}] has no effect; it needs {rule.needs}; drop "
        "it, or set that"
    )
