"""The examples of tasks run, small, with the very files that the pages name."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import fedspend
from fedspend.errors import InvalidInput

FOLDER = Path(__file__).parents[2] / "examples" / "tasks"
pytestmark = pytest.mark.usefixtures("quick_verify", "registries_as_before")
SMALL = ("train.rounds=2", "train.local_steps=1", "privacy.accountant=rdp")


def loaded(name):
    return runpy.run_path(str(FOLDER / name))


def trained(name, *overrides):
    return fedspend.train(FOLDER / name, overrides=[*SMALL, *overrides])


@pytest.mark.full(only=["fedavg"])
@pytest.mark.parametrize("method", ["dp-fedavg", "fedavg"])
def test_many_speakers(method):
    read = loaded("speakers.py")["read"]
    result = fedspend.train(
        FOLDER / "many_speakers.toml",
        overrides=[
            *("train.rounds=2", "privacy.accountant=rdp", "train.local_epochs=1"),
            *("data.speakers=20", "data.lines=5", "privacy.rate=0.5", f"method.name={method}"),
        ],
    )
    assert (result.plan is None) == (method == "fedavg")
    assert {"accuracy", "perplexity"} <= set(result.metrics[-1])
    made = read(None, 1, lines=5, speakers=20)
    assert len(set(made.client_of.tolist())) == 20
    assert made.features.max() <= 30  # within the stated alphabet


def patients(folder, rows=120):
    """A folder like Fed-TCGA-BRCA's: patients whose age decides when they die."""
    draw = np.random.default_rng(3)
    place = folder / "tcga-brca"
    place.mkdir()
    with (
        (place / "brca.csv").open("w", newline="") as table,
        (place / "train_test_split.csv").open("w", newline="") as split,
    ):
        table, split = csv.writer(table), csv.writer(split)
        table.writerow(["pid", "age_at_index", "stage_i", "E", "T"])
        split.writerow(["pid", "fold", "fold2"])
        for n in range(rows):
            age, fold = int(draw.integers(30, 91)), "test" if n % 4 == 0 else "train"
            time = 8000 * (90 - age) / 60 + draw.uniform(1, 500)
            table.writerow([f"p{n}", age, n % 2, float(n % 3 > 0), round(time, 1)])
            split.writerow([f"p{n}", fold, f"{fold}_{n % 6}"])


@pytest.mark.full
def test_survival(tmp_path, monkeypatch):
    patients(tmp_path)
    monkeypatch.setenv("FEDSPEND_DATA", str(tmp_path))
    loaded("survival.py")
    private = trained("survival.toml", "privacy.noise_multiplier=2")
    assert private.metric == "concordance"
    assert len(private.plan.names) == 90  # a budget for every patient
    free = fedspend.train(
        FOLDER / "survival.toml",
        overrides=["method.name=privacy-free", "train.rounds=30", "train.lr=0.5"],
    )
    assert free.value > 0.8  # age decides, and the model finds out


def test_the_loss_is_weibulls_and_the_metric_counts_pairs():
    found = loaded("survival.py")
    output = torch.tensor([[0.5, 0.2], [-1.0, 0.0]])
    target = torch.tensor([[1.0, 0.3], [0.0, 0.7]])
    rate, shape = output.exp().T
    survival = torch.distributions.Weibull(1 / rate, shape)
    alive = -((rate * target[:, 1]) ** shape)  # the logarithm of the chance to be alive
    died = survival.log_prob(target[:, 1])
    wanted = -torch.where(target[:, 0] > 0.5, died, alive)
    torch.testing.assert_close(found["weibull"](output, target), wanted)
    risks = torch.tensor([[3.0, 0], [2.0, 0], [1.0, 0]])
    times = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.0, 0.3]])
    assert found["concordance"](risks, times) == 1.0
    assert found["concordance"](-risks, times) == 0.0
    assert found["concordance"](0 * risks, times) == 0.5


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", ["backbone", "fine_tune", "own_model", "regression"])
def test_the_other_configs_train(name):
    result = fedspend.train(FOLDER / f"{name}.toml", overrides=["train.rounds=1"])
    assert len(result.metrics) == 1


def test_an_entry_that_is_not_loaded_is_named():
    with pytest.raises(InvalidInput, match="weibull"):
        trained("survival.toml")
