"""Entries of one's own: found by the same readers, held to the same checks as ours."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedspend
from fedspend.basics.registry import Entry, Registry
from fedspend.data import DATA_SETS, PARTITIONS, load, partition, rows
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput
from fedspend.models import MODELS, build

pytestmark = pytest.mark.usefixtures("registries_as_before")
REGISTRIES: list[Registry] = [DATA_SETS, PARTITIONS, MODELS, ENGINES]


def read(_folder, seed, *, path="none"):
    generator = np.random.default_rng([seed, len(path)])
    features = generator.normal(size=(40, 3))
    return rows(
        features, np.arange(40) % 2, classes=2, test_features=features[:6], test_labels=[0, 1] * 3
    )


def by_turns(labels, clients, _generator, *, alpha=1):
    return (np.arange(len(labels)) * int(alpha)) % clients


def widest(input_shape, classes, *, hidden=(2,)):  # noqa: ARG001
    return nn.Linear(int(np.prod(input_shape)), classes)


def test_a_data_set_of_ones_own_is_private_unless_it_says_otherwise():
    fedspend.register("data set", "ours", read, help="made up here", keys=("path",))
    found = load("ours", seed=1, path="x")
    assert not found.public
    assert found.features.shape == (40, 3)
    fedspend.register("data set", "known", read, help="everybody has it", public=True)
    assert load("known").public
    with pytest.raises(InvalidInput, match="path"):
        load("known", path="x")
    with pytest.raises(InvalidInput, match="learn"):
        load("ours", standardise=True)


def test_a_partition_of_ones_own_deals_and_is_checked():
    data = load("digits")
    fedspend.register("partition", "turns", by_turns, help="row by row in turn", keys=("alpha",))
    dealt = partition(data, clients=7, kind="turns", seed=0)
    assert [int(shard[0]) for shard in dealt.shards] == list(range(7))
    for name, broken in {
        "nobody": lambda labels, clients, _: np.full(len(labels), clients),
        "short": lambda *_: np.zeros(3, dtype=int),
        "parts": lambda labels, *_: np.full(len(labels), 0.5),
    }.items():
        fedspend.register("partition", name, broken, help="broken")
        with pytest.raises(InvalidInput, match=f"{name!r} must give each of 1,437 rows"):
            partition(data, clients=7, kind=name, seed=0)


def test_a_model_of_ones_own_has_a_seeded_start():
    fedspend.register("model", "widest", widest, help="one layer", keys=("hidden",))
    one, two = (build("widest", input_shape=(4,), classes=2, seed=3, hidden=[5]) for _ in range(2))
    assert torch.equal(one.weight, two.weight)
    with pytest.raises(InvalidInput, match="depth"):
        build("widest", input_shape=(4,), classes=2, seed=3, depth=5)


@pytest.mark.parametrize("kind", ["data set", "partition", "model"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "Ours"}, "lower-case"),
        ({"name": "a b"}, "lower-case"),
        ({"name": ""}, "lower-case"),
        ({"name": "csv/x"}, "lower-case"),
        ({"help": " "}, "sentence"),
        ({"make": 3}, "function"),
        ({"secret": True}, "no flag"),
    ],
)
def test_what_cannot_be_an_entry_is_refused_in_one_line(kind, arguments, words):
    given = {"name": "ours", "make": read, "help": "made up"} | arguments
    with pytest.raises(InvalidInput, match=words) as refusal:
        fedspend.register(kind, **given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "name"), [("data set", "csv"), ("partition", "iid"), ("model", "cnn")]
)
def test_a_name_that_is_taken_is_refused(kind, name):
    with pytest.raises(InvalidInput, match=f"already called '{name}'"):
        fedspend.register(kind, name, read, help="another")


def test_an_unknown_kind_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidInput, match="data set, partition, model"):
        fedspend.register("cake", "ours", read, help="x")


def test_a_reader_that_gives_something_else_is_refused():
    fedspend.register("data set", "wrong", lambda *_: [1, 2], help="gives a list")
    with pytest.raises(InvalidInput, match=r"'wrong' must return fedspend\.data\.rows"):
        load("wrong")


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.what)
def test_every_entry_says_what_it_is_and_a_misspelt_one_is_offered_the_nearest(registry):
    assert len(registry.names) == len(set(registry.names)) > 1
    for entry in registry:
        assert isinstance(entry, Entry)
        assert entry.help.strip()
        assert registry[entry.name] is entry
        with pytest.raises(InvalidInput, match=f"did you mean {entry.name!r}"):
            registry[entry.name + "x"]


CONFIG = {
    "data": {"name": "ours", "path": "anything", "clients": 4, "partition": "turns", "alpha": 1.0},
    "model": {"name": "widest", "hidden": [3]},
    "method": {"name": "idp-fedavg"},
    "privacy": {"epsilon": 5.0, "delta": 1e-3, "rate": 1.0, "randomness": "seeded"},
    "train": {"rounds": 2, "local_steps": 2, "batch_size": 4, "lr": 0.1},
}


def test_a_config_may_name_what_was_registered():
    fedspend.register("data set", "ours", read, help="made up here", keys=("path",))
    fedspend.register("partition", "turns", by_turns, help="row by row in turn", keys=("alpha",))
    fedspend.register("model", "widest", widest, help="one layer", keys=("hidden",))
    result = fedspend.train(CONFIG)
    assert len(result.metrics) == 2
    real = CONFIG | {"privacy": CONFIG["privacy"] | {"randomness": "os"}}
    with pytest.raises(InvalidInput, match="made-up clients"):
        fedspend.train(
            real, project="ours"
        )  # it is private, so its rows are not dealt in a real run


def test_before_it_is_registered_a_config_that_names_it_is_refused():
    with pytest.raises(InvalidInput, match="'turns'"):
        fedspend.train(CONFIG)


FIRST = """
import numpy as np
import fedspend
from fedspend.data import rows

def read(folder, seed, *, path):
    x = np.random.default_rng(0).normal(size=(60, 3))
    test = dict(test_features=x[:6], test_labels=[0, 1] * 3)
    return rows(x, np.arange(60) % 2, classes=2, client_of=np.arange(60) % 3, **test)

fedspend.register("data set", "ours", read, help="made up here", keys=("path",))
config = {
    "data": {"name": "ours", "path": "anything"},
    "model": {"name": "logistic"},
    "method": {"name": "idp-fedavg"},
    "privacy": {"epsilon": 5.0, "delta": 1e-3, "rate": 1.0},
    "train": {"rounds": 1, "local_steps": 2, "batch_size": 4, "lr": 0.1},
}
result = fedspend.train(config, project="ours")
print(result.plan.clients, result.metrics[-1]["randomness"])
"""


@pytest.mark.full
def test_an_entry_may_come_before_anything_else_is_imported():
    """And its rows, which name their clients, are trained on as private ones."""
    found = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "('0', '1', '2') os"
