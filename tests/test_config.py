"""Config files: what is read, and that everything else is refused with FILE:LINE."""

from __future__ import annotations

import re
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend import train
from fedspend.cli.main import main
from fedspend.configuration import effects, sections
from fedspend.configuration.config import config_of, load_config, needed
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.keys import GROUP, KEY, GroupTable
from fedspend.configuration.sections import SECTIONS
from fedspend.configuration.toml_lines import value_lines
from fedspend.errors import InvalidInput

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"


def config_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_quickstart_reads():
    config = load_config(QUICKSTART)
    assert config.data.clients == 100
    assert [group["epsilon"] for group in config.privacy.groups] == [10, 20, 30]
    assert config.method.name == "time-adaptive"
    assert config.privacy.clipping == "flat"
    assert not config.given("privacy.clipping")
    line = QUICKSTART.read_text().splitlines().index("rounds = 25") + 1
    assert config.where("train.rounds") == f"{QUICKSTART}:{line}"


def test_every_key_is_explained_and_its_default_is_good():
    for keys in SECTIONS.values():
        for key in keys.values():
            assert key.help
            assert key.wanted
            assert key.default is None or key.read(key.default) == key.default


# A good value of every key, as TOML gives it; the default is another one, or None.
GOOD = {
    "data": {
        "name": "digits",
        "clients": 10,
        "partition": "iid",
        "leave_out": ["a"],
        "alpha": 0.5,
        "shards": 3,
        "classes_per_client": 2,
        "validation": 0.1,
        "share": 0.5,
        "test_share": 0.5,
        "path": "/x.csv",
        "test_path": "/x.csv",
        "label": "y",
        "labels": ["no", "yes"],
        "label_bounds": [0, 10],
        "client": "who",
        "record": "id",
        "split": "part",
        "columns": ["age", "blood"],
        "bounds": [0, 255],
        "categories": {"blood": ["A", "B"]},
        "other": ["blood"],
        "missing": {"age": 40, "blood": "A"},
        "indicators": ["age"],
        "missing_marks": ["-"],
        "vocabulary": "abc",
        "max_length": 8,
        "image_size": [1, 28, 28],
        "separator": ";",
        "decimal": ",",
        "examples": 100,
        "features": 4,
        "classes": 3,
        "budget": "epsilon",
        "public_share": 0.1,
        "public_path": "/x.csv",
        "text": "line",
    },
    "model": {
        "name": "mlp",
        "features": "gabor",
        "hidden": [8],
        "vocabulary": 28,
        "width": 8,
        "layers": 1,
        "heads": 1,
        "backbone": "cnn",
        "weights": "/w.safetensors",
        "rank": 2,
        "options": {"width": 3},
    },
    "task": {"loss": "squared", "metrics": ["mse", "r2"]},
    "method": {
        "name": "rpdp",
        "target_quantile": 0.4,
        "clip_lr": 0.1,
        "bit_noise": 1,
        "noise_level": 0.1,
        "rates": "search",
        "saving_share": 0.5,
        "common_rate": 0.5,
        "charge": "norm",
    },
    "privacy": {
        "epsilon": 1,
        "groups": [{"epsilon": 1, "share": 1, "saving_rate": 0.5, "transition": 2}],
        "budgets": "/b.csv",
        "preferences": "three-levels",
        "noise_multiplier": 2,
        "delta": 1e-5,
        "rate": 0.5,
        "clip": 2,
        "clip_schedule": [1, 0.5],
        "policy": "uniform",
        "contraction": 0.9,
        "split": "rates",
        "influence": "/h.json",
        "saving_rate": 0.5,
        "transition": 2,
        "permute_rates": True,
        "weights": [1, 2],
        "accountant": "pld",
        "noise": "discrete",
        "bits": 16,
        "clipping": "per-layer",
        "randomness": "os",
    },
    "train": {
        "rounds": 5,
        "local_steps": 2,
        "local_epochs": 1,
        "batch_size": 8,
        "lr": 1,
        "lr_schedule": "cosine",
        "lr_end": 0,
        "momentum": 0.5,
        "optimizer": "adam",
        "weight_decay": 0.1,
        "proximal": 0.1,
        "gradient_clip": 1,
        "server_optimizer": "yogi",
        "server_lr": 2,
        "server_momentum": 0.5,
        "tail_average": 2,
        "seed": 3,
        "loggers": ["mlflow"],
    },
    "evaluation": {"mode": "private", "noise": 4.0, "bounds": [0, 1]},
    "stop": {"patience": 5, "metric": "loss", "least": 0.01, "first": 3, "keep": "last"},
    "ledger": {
        "location": "/l.db",
        "project": "clinics",
        "spend": "remaining",
        "exhausted": "leave-out",
    },
    "design": {
        "rates": [0.5],
        "noise_levels": [0.1],
        "seeds": 2,
    },
    "shape": {"blur": 0.4, "lus": 0.5},
    "votes": {"queries": 3, "epochs": 2, "lr": 1, "batch_size": 4},
    "engine": {
        "name": "reference",
        "workers": 2,
        "ask": "everyone",
        "deadline": 30,
        "retries": 0,
        "quorum": 1,
        "without_quorum": "release",
        "keys": "keys.csv",
        "slices": "slices",
        "silos": ["north", "south"],
    },
    "node": {
        "client": "north",
        "state": "state",
        "budget": 8,
        "delta": 1e-3,
        "key": "node.key",
        "unit": "record",
        "batch": 32,
        "sampling": "ignored",
    },
}
NAMES = [f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys]


def fits(value: object, hint: object) -> bool:
    """Whether a value is of the type that a field says,
    with lists and tuples by their kind alone.
    """
    kinds = (
        [getattr(part, "__origin__", part) for part in getattr(hint, "__args__", [hint])]
        if "|" in str(hint)
        else [hint]
    )
    return any(type(value) is getattr(kind, "__origin__", kind) for kind in kinds)


def test_the_sections_are_the_fields_of_the_settings():
    assert list(SECTIONS) == [one.name for one in fields(sections.Settings)]
    assert {section: list(keys) for section, keys in SECTIONS.items()} == {
        section: list(values) for section, values in GOOD.items()
    }, "every key has a good value here"


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_read_into_its_type(name):
    section, key = name.split(".")
    field = next(
        one
        for one in fields(getattr(sections, f"{section.capitalize()}Settings"))
        if one.name == key
    )
    hint = get_type_hints(getattr(sections, f"{section.capitalize()}Settings"))[key]
    assert field.metadata[KEY] is SECTIONS[section][key]
    assert field.metadata[KEY].help
    assert field.default == SECTIONS[section][key].default
    assert fits(field.default, hint)
    given = config_of({section: {key: GOOD[section][key]}})
    value = getattr(getattr(given, section), key)
    assert value is not None
    assert value != field.default
    assert fits(value, hint), "also whole numbers that stand for real ones"
    assert given.value(name) == value
    assert given.given(name)
    assert config_of({}).value(name) == field.default
    assert not config_of({}).given(name)
    with pytest.raises(FrozenInstanceError):
        setattr(getattr(given, section), key, value)


def test_tables_inside_lists_have_the_keys_of_their_types():
    assert list(GroupTable.__annotations__) == list(GROUP)
    assert all(key.help for key in GROUP.values())


def test_what_is_needed_is_asked_for_by_its_own_name():
    source = Path(sections.__file__).parents[1]
    asked = [
        found
        for path in source.rglob("*.py")
        for found in re.findall(
            r"needed\((?:either\([\w.]+, )?[\w.]*?\.(\w+\.\w+)\)?, \"(\w+\.\w+)\"", path.read_text()
        )
    ]
    assert len(asked) > 20
    assert [pair for pair in asked if pair[0] != pair[1]] == []
    assert needed(3, "train.rounds") == 3
    with pytest.raises(
        InvalidInput,
        match=(
            r"rounds is missing: set rounds under \[train\] in the config, or give --set "
            r"train.rounds"
        ),
    ):
        needed(None, "train.rounds")
    with pytest.raises(
        InvalidInput, match=r"rounds is missing: give --rounds, or rounds under \[train\]"
    ):
        needed(None, "train.rounds", "--rounds")


def test_only_engines_that_exist_are_offered(tmp_path):
    message = refusal(config_file(tmp_path, "[engine]\nname = 'ray'\n"))
    assert message.endswith(
        'name in [engine] must be one of "local", "reference", "flower", got \'ray\''
    )


# --- keys without effect --------------------------------------------------------------------------

PLAIN = {
    "data": {"name": "digits", "clients": 10, "partition": "iid"},
    "model": {"name": "logistic"},
    "method": {"name": "dp-fedavg"},
    "privacy": {"epsilon": 5, "delta": 1e-3, "rate": 0.5},
    "train": {"rounds": 2, "local_steps": 1, "batch_size": 8, "lr": 0.1},
}
# (a key without effect, other settings that go with it, what gives it one)
IDLE = [
    ("data.examples=100", (), "data.name=synthetic"),
    ("data.features=4", (), "data.name=synthetic"),
    ("data.classes=4", (), "data.name=csv"),
    ("data.path='/x.csv'", (), "data.name=csv"),
    ("data.label='y'", (), "data.name=npz"),
    ("data.client='who'", (), "data.name=csv"),
    ("data.bounds=[0, 1]", (), "data.name=csv"),
    ("data.test_path='/x.csv'", (), "data.name=csv"),
    ("data.split='part'", ("data.name='npz'",), "data.name=csv"),
    ("data.alpha=0.1", (), "data.partition=dirichlet"),
    ("data.shards=2", (), "data.partition=shards"),
    ("data.classes_per_client=2", (), "data.partition=classes"),
    ("model.hidden=[8]", (), "model.name=mlp"),
    ("method.target_quantile=0.5", (), "method.name=adaptive-clip"),
    ("method.clip_lr=0.2", (), "method.name=adaptive-clip"),
    ("method.bit_noise=1", (), "method.name=adaptive-clip"),
    ("method.noise_level=0.1", (), "method.name=dp-fedsgd"),
    ("method.rates='exact'", (), "method.name=rpdp"),
    ("method.rates='exact'", ("method.name='filter'",), "method.name=minimum"),
    ("method.saving_share=0.5", (), "method.name=rpdp"),
    ("method.saving_share=0.5", ("method.name='minimum'",), "method.name=rpdp"),
    ("method.common_rate=0.5", (), "method.name=filter"),
    ("method.charge='norm'", (), "method.name=filter"),
    ("method.charge='norm'", ("method.name='rpdp'",), "method.name=filter"),
    ("votes.queries=3", (), "method.name=ae-dpfl"),
    ("votes.epochs=3", (), "method.name=ae-dpfl"),
    ("votes.lr=0.3", (), "method.name=ae-dpfl"),
    ("votes.batch_size=3", (), "method.name=ae-dpfl"),
    ("privacy.noise_multiplier=2", (), "method.name=rpdp"),
    ("privacy.weights=1.1", (), "method.name=time-adaptive"),
    (
        "privacy.weights=[1, 2]",
        ("method.name='time-adaptive'", "privacy.saving_rate=0.3"),
        "privacy.policy=weights",
    ),
    ("privacy.saving_rate=0.3", (), "method.name=time-adaptive"),
    (
        "privacy.transition=2",
        ("method.name='time-adaptive'",),
        "privacy.policy=spend-as-you-go",
    ),
    ("privacy.bits=16", (), "privacy.noise=discrete"),
    (
        "privacy.contraction=0.9",
        ("method.name='time-adaptive'", "privacy.saving_rate=0.3"),
        "privacy.policy=optimal",
    ),
    ("privacy.split='rates'", ("method.name='idp-fedavg'",), "privacy.policy=individual-rates"),
    (
        "privacy.influence='/h.json'",
        ("method.name='time-adaptive'", "privacy.saving_rate=0.3"),
        "privacy.policy=optimal",
    ),
    ("privacy.clip_schedule='lr'", ("method.name='ae-dpfl'",), "method.name=dp-fedavg"),
    ("privacy.clip_schedule='lr'", ("method.name='rpdp'",), "method.name=adaptive-clip"),
    ("train.lr_end=0.5", (), "train.lr_schedule=linear"),
    ("engine.workers=2", (), "model.name=small-cnn"),
    (
        "engine.workers=2",
        ("model.name='small-cnn'", "engine.name='reference'"),
        "engine.name=local",
    ),
    ("engine.workers=2", ("model.name='small-cnn'", "method.name='rpdp'"), "method.name=fedavg"),
    ("engine.name='local'", ("method.name='rpdp'",), "method.name=dp-fedavg"),
    ("engine.name='local'", ("method.name='filter'",), "engine.name=reference"),
]


def with_values(texts: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """The plain config with more values, as a file would have them."""
    document = {section: dict(table) for section, table in PLAIN.items()}
    for text in texts:
        name, _, value = text.partition("=")
        section, key = name.split(".")
        document.setdefault(section, {})[key] = tomllib.loads(f"x = {value}")["x"]
    return document


def written(tmp_path: Path, document: dict[str, dict[str, object]]) -> Path:
    lines = []
    for section, table in document.items():
        lines += [f"[{section}]", *(f"{key} = {value!r}" for key, value in table.items())]
    return config_file(tmp_path, "\n".join(lines) + "\n")


@pytest.mark.parametrize(("idle", "others", "cure"), IDLE)
def test_a_key_without_effect_is_refused(idle, others, cure, tmp_path, capsys):
    name = idle.partition("=")[0]
    section, key = name.split(".")
    document = with_values((*others, idle))
    path = written(tmp_path, document)
    line = path.read_text().splitlines().index(f"{key} = {document[section][key]!r}") + 1
    start = f"{path}:{line}: {key} in [{section}] has no effect; it needs "
    with pytest.raises(InvalidInput) as caught:
        train(path)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)
    assert main(["plan", str(path)]) == 2
    assert capsys.readouterr().err == f"fedspend: {caught.value}\n"
    decider, _, value = cure.partition("=")
    refuse_without_effect(load_config(path, [cure]))  # it has an effect now
    with_cure = written(tmp_path, with_values((*others, idle, f"{decider}={value!r}")))
    assert name not in effects.without_effect(load_config(with_cure))
    bare = written(tmp_path, with_values(others))
    with pytest.raises(InvalidInput, match="has no effect") as typed:
        refuse_without_effect(load_config(bare, [idle]))
    assert str(typed.value).startswith(f"--set {idle}: {key} in [{section}]"), "typed for nothing"


def test_what_an_override_or_a_flag_changes_leaves_the_file_alone(tmp_path, capsys):
    saving = written(
        tmp_path,
        with_values(
            (
                "method.name='time-adaptive'",
                "privacy.saving_rate=0.3",
                "data.partition='dirichlet'",
                "data.alpha=1.0",
            )
        ),
    )
    refuse_without_effect(load_config(saving))
    refuse_without_effect(load_config(saving, ["method.name=dp-fedavg", "data.partition=iid"]))
    for flags in (
        ["--method", "dp-fedavg"],
        ["--policy", "uniform"],
        ["--compare", "uniform,strictest"],
        ["--set", "method.name=idp-fedavg"],
    ):
        assert main(["plan", str(saving), "--quiet", *flags]) == 0, capsys.readouterr().err
    idle = written(tmp_path, with_values(("privacy.saving_rate=0.3", "data.alpha=1.0")))
    assert main(["plan", str(idle), "--quiet", "--policy", "uniform"]) == 2
    assert "alpha in [data] has no effect" in capsys.readouterr().err, (
        "a policy has nothing to do with alpha"
    )


def test_design_stands_beside_the_rest_and_groups_may_serve_other_methods():
    refuse_without_effect(config_of(PLAIN | {"design": {"noise_levels": [0.1]}}))
    groups = [{"epsilon": 1, "saving_rate": 0.3}, {"epsilon": 2, "saving_rate": 0.4}]
    document = PLAIN | {"privacy": {"groups": groups, "delta": 1e-3, "rate": 0.5}}
    refuse_without_effect(config_of(document))
    timed = document | {
        "method": {"name": "time-adaptive"},
        "privacy": document["privacy"] | {"transition": 2},
    }
    refuse_without_effect(config_of(timed))


def test_an_unknown_name_is_told_by_who_knows_names():
    for text in ("method.name='ae-dplf'", "privacy.policy='uniforn'"):
        refuse_without_effect(
            config_of(
                with_values(
                    (text, "votes.queries=3")
                    if "method" in text
                    else (text, "privacy.saving_rate=0.3")
                )
            )
        )


class Begun(Exception):
    pass


@pytest.fixture
def arms(monkeypatch):
    """A comparison that stops where it would train."""
    from fedspend.runs import comparison

    def begin(*_args, **_named):
        raise Begun

    monkeypatch.setattr(comparison, "run_missing", begin)
    return comparison.compare


def test_a_comparison_refuses_what_no_arm_uses(arms, tmp_path):
    path = written(tmp_path, with_values(("privacy.saving_rate=0.3",)))
    with pytest.raises(Begun):
        arms(path, ["dp-fedavg", "time-adaptive"], 2)
    with pytest.raises(
        InvalidInput,
        match=(
            r"run.toml:\d+: saving_rate in \[privacy\] has no effect; it needs a policy that saves"
        ),
    ):
        arms(path, ["dp-fedavg", "idp-fedavg"], 2)
    path = written(tmp_path, with_values(("data.alpha=0.1",)))
    with pytest.raises(InvalidInput, match=r"alpha in \[data\] has no effect"):
        arms(path, ["dp-fedavg", "idp-fedavg"], 2)
    with pytest.raises(Begun):
        arms(path, ["dp-fedavg"], 2, vary=["data.partition=iid,dirichlet"])
    dealt = written(tmp_path, with_values(("data.partition='dirichlet'", "data.alpha=0.1")))
    with pytest.raises(Begun):
        arms(dealt, ["dp-fedavg"], 2, overrides=["data.partition=iid"])
    path = written(tmp_path, PLAIN)
    with pytest.raises(
        InvalidInput, match=r"^vary 'votes.epochs=1': epochs in \[votes\] has no effect"
    ):
        arms(path, ["dp-fedavg"], 2, vary=["votes.epochs=1,2"])
    with pytest.raises(Begun):
        arms(path, ["dp-fedavg", "ae-dpfl"], 2, vary=["votes.epochs=1,2"])


def test_a_comparison_leaves_alone_what_the_config_uses_by_itself(arms, tmp_path):
    saving = (
        "method.name='time-adaptive'",
        "privacy.policy='spend-as-you-go'",
        "privacy.saving_rate=0.3",
    )
    with pytest.raises(Begun):
        arms(written(tmp_path, with_values(saving)), ["fedavg", "dp-fedavg"], 2)


def test_a_fallback_that_no_group_falls_back_on_is_refused():
    groups = [{"epsilon": 1, "saving_rate": 0.3}, {"epsilon": 2, "saving_rate": 0.4}]
    privacy = {"groups": groups, "delta": 1e-3, "rate": 0.5, "saving_rate": 0.2}
    document = PLAIN | {"method": {"name": "time-adaptive"}, "privacy": privacy}
    with pytest.raises(
        InvalidInput,
        match=r"saving_rate in \[privacy\] has no effect; .* no saving_rate of its own in every",
    ):
        refuse_without_effect(config_of(document))
    del groups[1]["saving_rate"]
    refuse_without_effect(config_of(document))


@pytest.fixture
def chosen(tmp_path):
    """The arms of a comparison, by name, with their settings."""
    from fedspend.runs.comparison import arms_of, distinct_arms

    def arms(values, methods, vary, overrides=()):
        path = written(tmp_path, with_values(values))
        made = distinct_arms(path, overrides, arms_of(methods, vary))
        return {arm.name: settings for arm, settings in made.items()}

    return arms


SAVING = ("privacy.saving_rate=0.3",)


def test_a_varied_policy_is_the_policy_that_is_planned(chosen):
    from fedspend.configuration.plan_inputs import resolve

    found = chosen(
        SAVING,
        ["time-adaptive"],
        ["privacy.policy=spend-as-you-go,spend-as-you-go-literal,geometric"],
    )
    planned = [resolve(settings).request.plan() for settings in found.values()]
    assert [plan.policy for plan in planned] == [
        "spend-as-you-go",
        "spend-as-you-go-literal",
        "geometric",
    ]
    assert len({plan.hash for plan in planned}) == 3


def test_policies_are_compared_under_the_methods_that_can_have_them(chosen):
    vary = ["privacy.policy=uniform,geometric", "privacy.weights=1.05,1.1"]
    assert list(chosen((), ["fedavg", "idp-fedavg", "time-adaptive"], vary)) == [
        "fedavg",
        "idp-fedavg, privacy.policy=uniform",
        "time-adaptive, privacy.policy=geometric, privacy.weights=1.05",
        "time-adaptive, privacy.policy=geometric, privacy.weights=1.1",
    ]


def test_the_policy_of_the_file_is_for_its_own_method(chosen):
    file = ("method.name='time-adaptive'", "privacy.policy='geometric'")
    found = chosen(file, ["time-adaptive", "idp-fedavg", "adaptive-clip"], [])
    assert [settings.privacy.policy for settings in found.values()] == ["geometric", None, None]
    found = chosen(file, ["adaptive-clip"], [], ["privacy.policy=uniform"])
    assert [settings.privacy.policy for settings in found.values()] == ["uniform"]


@pytest.mark.parametrize(
    ("methods", "vary", "told"),
    [
        ("time-adaptive", "privacy.policy=geometric,uniform", "'uniform' contradicts method"),
        ("fedavg,idp-fedavg", "privacy.policy=uniform,geometric", "'geometric' contradicts method"),
        ("fedavg", "privacy.policy=uniform,geometric", "under method 'fedavg', which is not priv"),
        ("fedavg", "privacy.clip=1,2", "--vary privacy.clip=1: clip in [privacy] has no effect"),
        ("fedavg", "shape.blur=0,0.4", "--vary shape.blur=0: blur in [shape] has no effect under"),
        ("rpdp", "privacy.policy=uniform,geometric", "which plans records"),
        (
            "rpdp",
            "train.batch_size=8,16",
            "batch_size in [train] has no effect under method 'rpdp'",
        ),
        ("dp-fedavg", "privacy.policy=strictest,geometic", "policy must be one of"),
        ("dp-fedavg", "engine.workers=1,2", "workers in [engine] has no effect"),
        (
            "dp-fedavg",
            'train.loggers=["mlflow"],["wandb"]',
            "has no effect on a comparison",
        ),
        ("dp-fedavg", "ledger.exhausted=refuse,leave-out", "has no effect on a comparison"),
        ("dp-fedavg", "design.seeds=1,2", "has no effect on a comparison"),
        ("dp-fedavg", "train.lr=0.1,0.10", "lists the same value twice, as 0.1 and 0.10"),
        ("idp-fedavg", "privacy.saving_rate=0.2,0.3", "has no effect; it needs a policy that"),
        ("rpdp", "privacy.contraction=0.5,0.9", "contraction in [privacy] has no effect; it needs"),
        ("rpdp", "privacy.influence=a.json,b.json", "influence in [privacy] has no effect; it"),
        ("rpdp", "privacy.split=best,rates", "split in [privacy] has no effect; it needs"),
        ("filter", "privacy.permute_rates=true,false", "records have no saving rates"),
        ("dp-fedavg", "data.budget=a,b", "budget in [data] has no effect; it needs data.name csv"),
        ("ae-dpfl", "privacy.clip=1,2", "has no effect under method 'ae-dpfl', whose clients vote"),
        ("ae-dpfl", "train.server_lr=1,2", "has no effect under method 'ae-dpfl', whose clients"),
        ("ae-dpfl", "train.server_momentum=0,0.5", "server_momentum in [train] has no effect und"),
        ("ae-dpfl", "train.server_optimizer=sgd,adam", "server_optimizer in [train] has no eff"),
    ],
)
def test_a_varied_setting_has_an_effect_or_is_refused(chosen, methods, vary, told):
    with pytest.raises(InvalidInput) as refusal:
        chosen((), methods.split(","), [vary])
    assert told in str(refusal.value)


def test_the_clip_of_voters_is_the_radius_of_blur(chosen):
    found = chosen(("shape.blur=0.4",), ["ae-dpfl"], ["privacy.clip=1,2"])
    assert [settings.privacy.clip for settings in found.values()] == [1, 2]


def test_varied_values_may_be_lists_and_tables(chosen):
    found = chosen(
        ("model.name='mlp'",),
        ["dp-fedavg", "fedavg"],
        ["model.hidden=[8, 4],[16]", "privacy.clip_schedule=constant,[1, 0.5]"],
    )
    assert list(found)[:2] == [
        "dp-fedavg, model.hidden=[8, 4], privacy.clip_schedule=constant",
        "dp-fedavg, model.hidden=[8, 4], privacy.clip_schedule=[1, 0.5]",
    ]
    assert list(found)[4:] == ["fedavg, model.hidden=[8, 4]", "fedavg, model.hidden=[16]"]
    assert [one.model.hidden for one in found.values()][-2:] == [[8, 4], [16]]


# what each policy needs beside its name
OF_POLICY = {"saving_rate": "0.3", "weights": "1.2"}


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("method", ["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip"])
def test_every_policy_of_a_method_makes_another_plan(chosen, method):
    from fedspend.configuration.plan_inputs import resolve
    from fedspend.planning.policies import POLICIES
    from fedspend.planning.policies.table import policies_of_method

    hashes = {}
    for policy in policies_of_method(method):
        value = {"weights": "privacy.weights=[1, 2, 3]"}.get(policy)
        wanted = (f"privacy.{key}={OF_POLICY[key]}" for key in OF_POLICY)
        values = [
            value or text
            for key, text in zip(OF_POLICY, wanted, strict=True)
            if key in POLICIES[policy].keys
        ]
        groups = "privacy.groups=[{epsilon = 2}, {epsilon = 8}]"
        overrides = ["train.rounds=3", "privacy.accountant=rdp", groups, *values]
        found = chosen((), [method], [f"privacy.policy={policy}"], overrides)
        (settings,) = found.values()
        hashes[policy] = resolve(settings).request.plan().hash
    assert len(set(hashes.values())) == len(hashes)


def test_the_rules_know_the_models_the_methods_and_the_keys():
    from fedspend.configuration.data_inputs import options_of
    from fedspend.data.loading import FILES as OWN_FILES
    from fedspend.models import MODELS, build
    from fedspend.models.linear import supports
    from fedspend.server.student import NAME

    of_others = {"lstm", "transformer", "fine-tune"}  # of tokens, or on top of another model
    shapes = {
        name: (12,) if name in effects.BATCHED else (3, 32, 32)
        for name in MODELS.names
        if name not in of_others
    }
    built = {
        name: build(name, input_shape=shape, classes=3, seed=0) for name, shape in shapes.items()
    }
    assert {name for name, module in built.items() if supports(module)} == set(effects.BATCHED)
    assert effects.VOTES == NAME
    assert MODELS.names == effects.MODELS
    taken = {source: set(options_of(source)) for source in ("synthetic", *OWN_FILES)}
    for source, options in taken.items():
        told_elsewhere = {"record", "public_path"}
        config = config_of(
            {
                "data": {"name": source}
                | {key: GOOD["data"][key] for key in set().union(*taken.values())}
            }
        )
        idle = {name.removeprefix("data.") for name in effects.without_effect(config)}
        assert idle == set().union(*taken.values()) - options - told_elsewhere
    ruled = [key for rule in effects.RULES for key in rule.keys]
    assert len(set(ruled)) == len(ruled)
    assert {*ruled, *(decider for rule in effects.RULES for decider in rule.deciders)} <= set(NAMES)


@pytest.mark.parametrize(
    "path",
    # not those of Flower's app and of a node, which are no trainings, nor those that name entries
    # of a file that is loaded first, which tests/tasks runs
    sorted(
        path
        for path in QUICKSTART.parent.rglob("*.toml")
        if path.name not in ("pyproject.toml", "node.toml")
        and "--load" not in path.read_text(encoding="utf-8")
    ),
    ids=lambda path: path.stem,
)
def test_examples_have_no_key_without_effect(path):
    assert effects.without_effect(load_config(path)) == {}


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        (
            "[privacy]\nepsilom = 1\n",
            2,
            "unknown key 'epsilom' in [privacy]; did you mean 'epsilon'?",
        ),
        ("\n\n[privacyy]\nrate = 1\n", 3, "unknown section 'privacyy'; did you mean 'privacy'?"),
        ("[zzz]\n", 1, "choose one of data, model"),
        ("rate = 0.5\n", 1, "unknown section 'rate'"),
        ("privacy = 3\n", 1, "[privacy]"),
        (
            "[privacy]\nrate = 'high'\n",
            2,
            "rate in [privacy] must be a number above 0 and at most 1, got 'high'",
        ),
        ("[privacy]\nrate = nan\n", 2, "got nan"),
        ("[privacy]\nrate = 0\n", 2, "got 0"),
        ("[privacy]\nrate = 1.01\n", 2, "got 1.01"),
        ("[privacy]\nrate = true\n", 2, "got True"),
        ("[privacy]\ndelta = 1\n", 2, "below 1"),
        ("[privacy]\ndelta = -1e-5\n", 2, "delta"),
        ("[privacy]\nepsilon = inf\n", 2, "got inf"),
        (f"[privacy]\nepsilon = 1{'0' * 400}\n", 2, "more than 60 digits"),
        (f"[privacy]\nepsilon = 1{'0' * 5000}\n", 1, "not valid TOML"),
        ("[privacy]\nclip = 0\n", 2, "clip"),
        ("[privacy]\ntransition = 1.5\n", 2, "transition"),
        ("[privacy]\ntransition = 0\n", 2, "transition"),
        ("[privacy]\naccountant = 'gdp'\n", 2, '"rdp", "pld"'),
        ("[privacy]\nweights = [1, 2, -1]\n", 2, "weights"),
        ("[privacy]\nweights = []\n", 2, "weights"),
        ("[privacy]\ngroups = []\n", 2, "groups"),
        ("[privacy]\ngroups = [1, 2]\n", 2, "groups"),
        (
            "[privacy]\ngroups = [\n  {epsilon = 1},\n  {epsilom = 2},\n]\n",
            2,
            "'epsilom' in group 2 of [privacy]",
        ),
        (
            "[privacy]\ngroups = [\n  {epsilon = 1},\n  # {\n  {epsilon = 1, share = -1},\n]\n",
            2,
            "share in group 2",
        ),
        ("[privacy]\ngroups = [\n  {share = 1},\n]\n", 2, "no epsilon"),
        ("[[privacy.groups]]\nepsilon = 1\n[[privacy.groups]]\nepsilon = nan\n", 1, "group 2"),
        ("privacy.groups = [{epsilon=1}]\nprivacy.rate = 2\n", 2, "rate"),
        ("[privacy]\nepsilon = 1\nbudgets = 'a.csv'\n", 3, "both epsilon and budgets"),
        ("[privacy]\nbudgets = ''\n", 2, "budgets"),
        ("[train]\nrounds = 25.0\n", 2, "whole number"),
        ("[train]\nrounds = 0\n", 2, "whole number"),
        ("[train]\nseed = -1\n", 2, "seed"),
        ("[data]\nclients = 2026-01-01\n", 2, "clients"),
        ("[data]\nclients = 10\n[data]\n", 3, "not valid TOML"),
        ("[data]\nclients = 10\nclients = 11\n", 3, "not valid TOML"),
        ("[privacy]\nrate == 1\n", 2, "not valid TOML"),
        ("[privacy]\nrate = \n", 2, "not valid TOML"),
        ("[privacy]\ngroups = [\n", 3, "not valid TOML"),
        (b"[privacy]\n# \xff\n", 2, "UTF-8"),
        ("\r\n[privacy]\r\nrate = 7\r\n", 3, "rate"),
        ('[data]\nname = """\n[privacy]\nx = 1\n"""\n', 2, "name"),
        ('[data]\nname = """\\\n  [privacy]\\\n  """\nclients = 0\n', 5, "clients"),
        ('[data]\n"clients" = 0\n', 2, "clients"),
    ],
)
def test_bad_files_name_file_and_line(tmp_path, content, line, names):
    path = config_file(tmp_path, content)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    assert names in message


def test_deep_nesting_is_refused(tmp_path):
    refusal(config_file(tmp_path, "[privacy]\nweights = " + "[" * 5000 + "]" * 5000))


def test_byte_order_mark(tmp_path):
    assert load_config(config_file(tmp_path, "\ufeff[train]\nrounds = 3\n")).train.rounds == 3


FILES = (
    "data.path",
    "data.test_path",
    "data.public_path",
    "model.weights",
    "privacy.budgets",
    "privacy.influence",
    "ledger.location",
    "engine.keys",
    "engine.slices",
    "node.state",
    "node.key",
)


@pytest.mark.parametrize("name", FILES)
def test_files_are_found_from_the_config_that_names_them(name, tmp_path, monkeypatch):
    section, key = name.split(".")
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    path = config_file(tmp_path / "configs", f"[{section}]\n{key} = '../file.csv'\n")
    wanted = str(tmp_path / "file.csv")
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/run.toml").value(name) == wanted
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (
        load_config("../configs/run.toml").value(name) == load_config(path).value(name) == wanted
    ), "wherever one stands"
    assert load_config(path, [f"{name}=other.csv"]).value(name) == str(
        tmp_path / "elsewhere/other.csv"
    ), "typed here, found here"
    assert config_of({section: {key: "other.csv"}}).value(name) == str(
        tmp_path / "elsewhere/other.csv"
    )
    assert (
        load_config(config_file(tmp_path, f"[{section}]\n{key} = '/data/x.csv'\n")).value(name)
        == "/data/x.csv"
    )


def test_a_ledger_on_a_server_is_no_file(tmp_path):
    path = config_file(tmp_path, "[ledger]\nlocation = 'postgresql://me@host/accounts'\n")
    assert load_config(path).ledger.location == "postgresql://me@host/accounts"
    path = config_file(tmp_path, "[ledger]\nlocation = 'sqlite:accounts.db'\n")
    assert load_config(path).ledger.location == str(tmp_path / "accounts.db")
    assert "mysql:// is not supported" in refusal(
        config_file(tmp_path, "[ledger]\nlocation = 'mysql://host'\n")
    )


def test_every_file_in_a_config_is_placed():
    named = {
        f"{section}.{key}"
        for section, keys in SECTIONS.items()
        for key, one in keys.items()
        if one.placed is not None
    }
    assert named == set(FILES)
    for section, keys in SECTIONS.items():
        for key, one in keys.items():
            assert "file" not in one.help.split() or f"{section}.{key}" in FILES, (
                f"{section}.{key} names a file"
            )


def test_overrides():
    config = load_config(
        QUICKSTART,
        ["privacy.rate=0.8", "privacy.policy=uniform", "train.rounds = 7", "train.rounds=8"],
    )
    assert (config.privacy.rate, config.privacy.policy, config.train.rounds) == (0.8, "uniform", 8)
    assert config.where("privacy.rate") == "--set privacy.rate=0.8"
    assert load_config(None, ["privacy.rate=1"]).privacy.rate == 1.0
    assert load_config(None, ["privacy.weights=[1, 2]"]).privacy.weights == [1.0, 2.0]


def test_an_override_takes_the_place_of_the_files_budgets():
    config = load_config(QUICKSTART, ["privacy.epsilon=5"])
    assert config.privacy.epsilon == 5
    assert not config.given("privacy.groups")


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("privacy.rate", "section.key=value"),
        ("rate=1", "section.key=value"),
        ("=", "section.key=value"),
        ("privacy.rat=0.5", "did you mean 'rate'"),
        ("privcy.rate=0.5", "did you mean 'privacy'"),
        ("privacy.rate=", "no value"),
        ("privacy.rate=high", "got 'high'"),
        ("privacy.rate=nan", "got nan"),
        ("privacy.groups=[{epsilon=1", "not a valid TOML value"),
        ("privacy.groups=[{epsilon=nan}]", "group 1"),
        ("privacy.groups.0.epsilon=1", "unknown key"),
        ("privacy.rate=1\n[train]", "not a valid TOML value"),
    ],
)
def test_bad_overrides_are_named(override, names):
    with pytest.raises(InvalidInput) as caught:
        load_config(None, [override])
    shown = " ".join(override.split())  # a message is one line
    assert str(caught.value).startswith(f"--set {shown}")
    assert names in str(caught.value)


SCALARS = st.sampled_from(
    [
        "1",
        "-2.5",
        "true",
        '"a ] } # ="',
        "'[x'",
        '"""two\n[lines] \\" """',
        "'''\n{'''",
        "1979-05-27 07:32:00",
        "nan",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # [\n" + ",\n".join(items) + "\n]"),
        st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{n} = {item}" for n, item in enumerate(items)) + "}"
        ),
    ),
    max_leaves=8,
)


@pytest.mark.full
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["[s{n}]", "[[t]]", "[[t.u]]", '["q.{n}"]', "# comment ["]), VALUES
        ),
        max_size=6,
    )
)
def test_every_section_and_key_has_its_line(parts):
    text = "".join(
        f"{header.format(n=n)}\nkey{n} . x = {value}\n" for n, (header, value) in enumerate(parts)
    )
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines, at, section = {}, 1, ()
    named = {"[s{n}]": "s{n}", "[[t]]": "t", "[[t.u]]": "t u", '["q.{n}"]': "q.{n}"}
    for n, (header, value) in enumerate(parts):
        if header in named:
            section = tuple(named[header].format(n=n).split())
            for length in range(len(section)):
                lines.setdefault(section[: length + 1], at)
        for path in ((*section, f"key{n}"), (*section, f"key{n}", "x")):
            lines.setdefault(path, at + 1)
        at += 2 + value.count("\n")
    assert value_lines(text) == lines
