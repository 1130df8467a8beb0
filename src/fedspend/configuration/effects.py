"""Which settings do something: a key that was given and has no effect is refused, since it would
look as if it had one.

Guarantee: a key is refused only where the config itself says all that decides about it. What a
flag, `--set` or a comparison has changed (another method, policy, partition, ...) leaves keys of
the file alone, so that one config serves several methods; a key that `--set` gives without effect
is refused all the same. `[design]` is for `fedspend design` and stands beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fedspend.configuration.config import BUDGET_SOURCES, Config
from fedspend.configuration.sections import SECTIONS
from fedspend.data.loading import DATA_SETS, FILES
from fedspend.data.partition import PARTITIONS
from fedspend.data.sources import BUNDLED, SOURCES
from fedspend.errors import InvalidInput
from fedspend.planning.policies import POLICIES, SAVING, WEIGHTED, policy_for
from fedspend.records.policies import METHODS as RECORD_METHODS

VOTES = "ae-dpfl"
# nothing is private, so budgets are there for other methods only
WITHOUT_PLAN = ("fedavg", "privacy-free")
CLIENT_METHODS = (
    "fedavg",
    "dp-fedavg",
    "idp-fedavg",
    "time-adaptive",
    "adaptive-clip",
    "dp-fedsgd",
    VOTES,
)
METHODS = (*CLIENT_METHODS, *RECORD_METHODS, "privacy-free")
# ours; their registry needs torch
MODELS = ("logistic", "mlp", "cnn", "lenet", "small-cnn", "resnet18")
# models that engine local runs for all clients at once, in this process
BATCHED = ("logistic", "mlp")
ALL_POLICIES = frozenset(POLICIES)
OURS = frozenset((*BUNDLED, *SOURCES, *FILES))  # data sets


@dataclass(frozen=True)
class Rule:
    """When some keys have an effect, what they need in words, and the settings that decide it."""

    keys: tuple[str, ...]
    used: Callable[[Config], bool]
    needs: str
    deciders: tuple[str, ...]


def method_of(config: Config) -> str:
    return config.method.name or "dp-fedavg"


def by_method(needs: str, methods: Sequence[str], *keys: str) -> Rule:
    """Keys of some methods. An unknown method uses everything: the complaint will be about its
    name.
    """
    return Rule(
        keys,
        lambda config: method_of(config) in methods or method_of(config) not in METHODS,
        needs,
        ("method.name",),
    )


def by_partition(kind: str, key: str) -> Rule:
    def used(config: Config) -> bool:
        chosen = config.data.partition
        return chosen is not None and key.removeprefix("data.") in PARTITIONS[chosen].keys

    return Rule((key,), used, f'data.partition = "{kind}"', ("data.partition",))


def by_source(sources: Sequence[str], *keys: str) -> Rule:
    """Options of some kinds of data; without a name of data nothing is known yet."""
    needs = (
        f"data.name {', '.join(sources[:-1])} or {sources[-1]}"
        if len(sources) > 1
        else f'data.name = "{sources[0]}"'
    )

    def used(config: Config) -> bool:
        name = config.data.name
        # by an entry of one's own
        asked = () if name is None or name not in DATA_SETS else DATA_SETS[name].keys
        return name in (None, *sources) or (
            name not in OURS and any(key.removeprefix("data.") in asked for key in keys)
        )

    return Rule(keys, used, needs, ("data.name",))


def policies_of(config: Config) -> frozenset[str]:
    """The policies that the plan may have: one, but for a file of budgets, whose columns are not
    read here.
    """
    privacy = config.privacy
    if method_of(config) in WITHOUT_PLAN:
        return frozenset()
    saves = privacy.saving_rate is not None or any(
        "saving_rate" in group for group in privacy.groups or ()
    )
    # means geometric, where the method allows it
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
    return ALL_POLICIES  # a name is wrong, or two contradict each other: planning says which


def by_policy(needs: str, policies: Sequence[str], *keys: str) -> Rule:
    """Keys of some policies. What records make of them is said where records are planned."""
    return Rule(
        keys,
        lambda config: (
            method_of(config) in RECORD_METHODS or not policies_of(config).isdisjoint(policies)
        ),
        needs,
        (
            "method.name",
            "privacy.policy",
            "privacy.saving_rate",
            "privacy.weights",
            *(f"privacy.{key}" for key in BUDGET_SOURCES),
        ),
    )


def workers_work(config: Config) -> bool:
    name = config.model.name
    return (
        config.engine.name == "local"
        and name not in BATCHED
        and method_of(config) not in RECORD_METHODS
    )


RULES = (
    by_source(("synthetic",), "data.examples", "data.features"),
    by_source(("synthetic", "csv", "npz"), "data.classes"),
    by_source(("csv", "npz"), "data.path", "data.label", "data.client", "data.bounds"),
    by_source(("csv",), "data.test_path", "data.split"),
    by_partition("dirichlet", "data.alpha"),
    by_partition("shards", "data.shards"),
    by_partition("classes", "data.classes_per_client"),
    Rule(
        ("model.hidden",),
        lambda config: config.model.name in (None, "mlp") or config.model.name not in MODELS,
        'model.name = "mlp"',
        ("model.name",),
    ),
    by_method(
        'method.name = "adaptive-clip"',
        ("adaptive-clip",),
        "method.target_quantile",
        "method.clip_lr",
        "method.bit_noise",
    ),
    by_method('method.name = "dp-fedsgd"', ("dp-fedsgd",), "method.noise_level"),
    by_method(
        "method.name rpdp, minimum or dropout", ("rpdp", "minimum", "dropout"), "method.rates"
    ),
    by_method('method.name = "rpdp"', ("rpdp",), "method.saving_share"),
    by_method('method.name = "filter"', ("filter",), "method.common_rate", "method.charge"),
    by_method(f'method.name = "{VOTES}"', (VOTES,), *(f"votes.{key}" for key in SECTIONS["votes"])),
    by_method(
        f"a record-level method ({', '.join(RECORD_METHODS)})",
        (*RECORD_METHODS, *WITHOUT_PLAN),
        "privacy.noise_multiplier",
    ),
    by_policy(f"a policy with weights ({' or '.join(WEIGHTED)})", WEIGHTED, "privacy.weights"),
    by_policy(
        f"a policy that saves ({' or '.join(SAVING)})",
        SAVING,
        "privacy.saving_rate",
        "privacy.transition",
    ),
    Rule(
        ("privacy.bits",),
        lambda config: config.privacy.noise.startswith("discrete"),
        'privacy.noise = "discrete" or "discrete-distributed"',
        ("privacy.noise",),
    ),
    Rule(
        ("train.lr_end",),
        lambda config: config.train.lr_schedule != "constant",
        'train.lr_schedule = "linear" or "cosine"',
        ("train.lr_schedule",),
    ),
    Rule(
        ("engine.name",),
        # Records are trained by the reference engine whatever is said, so whoever says that is
        # right.
        lambda config: method_of(config) not in RECORD_METHODS or config.engine.name == "reference",
        "a method for whole clients: records are trained by the reference engine",
        ("method.name",),
    ),
    Rule(
        ("engine.workers",),
        workers_work,
        'engine.name = "local", a method for whole clients, and a model other than '
        f"{' and '.join(BATCHED)}",
        ("engine.name", "model.name", "method.name"),
    ),
)


def without_effect(config: Config) -> dict[str, Rule]:
    """The keys that were given and do nothing."""
    return {
        key: rule
        for rule in RULES
        for key in rule.keys
        if config.given(key) and not rule.used(config)
    }


def left_alone(config: Config, key: str, rule: Rule, changed: Collection[str] = ()) -> bool:
    """Whether a key may do nothing only because something else was changed from outside; the config
    cannot tell after a flag.
    """
    by_set = key not in config.overridden and not config.overridden.isdisjoint(rule.deciders)
    return by_set or any(name in rule.deciders for name in changed)


def refuse_without_effect(config: Config, changed: Collection[str] = ()) -> None:
    """Refuse a key that does nothing; `changed` names settings that flags have taken the
    place of.
    """
    for key, rule in without_effect(config).items():
        if not left_alone(config, key, rule, changed):
            raise InvalidInput(sentence(config, key, rule))


def refuse_without_effect_in_all(config: Config, arms: Sequence[Config]) -> None:
    """Refuse a key that does nothing in any of the arms of a comparison, nor in the config by
    itself.
    """
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
