"""Whole runs for other tasks than classification: named metrics, refusals, resuming, records."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from lib.runs import stopped

torch = pytest.importorskip("torch", reason="runs need the train extra")

from torch import nn  # noqa: E402

import fedspend  # noqa: E402
from fedspend.errors import InvalidInput  # noqa: E402
from fedspend.models.flat import flat_vector  # noqa: E402
from fedspend.report.html import write_report  # noqa: E402
from fedspend.tasks.kinds import IGNORED  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_verify")

REGRESSION = {
    "data": {"name": "diabetes", "clients": 6, "partition": "iid"},
    "model": {"name": "linear"},
    "task": {"loss": "squared", "metrics": ["mse", "r2"]},
    "method": {"name": "idp-fedavg"},
    "privacy": {"epsilon": 20.0, "delta": 1e-2, "rate": 1.0, "accountant": "rdp"},
    "train": {"rounds": 4, "local_steps": 3, "batch_size": 8, "lr": 0.05, "seed": 3},
}


def with_(config, **sections):
    made = copy.deepcopy(config)
    for name, values in sections.items():
        made[name] = made.get(name, {}) | values
    return made


def text_file(folder: Path) -> Path:
    """Sequences of tokens of three clients, as NPZ."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(1, 6, (60, 5))
    after = np.roll(drawn, -1, axis=1)
    after[:, -1] = IGNORED
    path = folder / "text.npz"
    np.savez(
        path,
        features=drawn[:48],
        label=after[:48],
        test_features=drawn[48:],
        test_label=after[48:],
        client=np.repeat(["a", "b", "c"], 16),
    )
    return path


def text_config(folder: Path) -> dict:
    return with_(
        REGRESSION,
        data={"name": "npz", "path": str(text_file(folder)), "classes": 6, "clients": 3}
        | {"partition": "natural"},
        model={"name": "lstm", "width": 4},
        task={"loss": "next-token", "metrics": ["perplexity", "accuracy"]},
        privacy={"randomness": "seeded"},
        evaluation={"mode": "public"},
    )


def parameters(result) -> bytes:
    return flat_vector(result.model).numpy().tobytes()


def test_a_regression_names_its_metric_everywhere(tmp_path):
    folder = tmp_path / "run"
    result = fedspend.train(REGRESSION, output=folder)
    assert result.metric == "mse"
    assert result.value == result.metrics[-1]["mse"] == pytest.approx(result.metrics[-1]["loss"])
    assert result.accuracy is None
    assert all("accuracy" not in line and line["metric"] == "mse" for line in result.metrics)
    stored = json.loads((folder / "run.json").read_text())
    assert stored["settings"]["task.loss"] == "squared"
    assert stored["majority"] is None
    write_report([folder], folder / "report.html")
    page = (folder / "report.html").read_text()
    assert "MSE" in page
    assert "R2" in page
    assert "Accuracy" not in page


def test_it_learns():
    plain = with_(REGRESSION, method={"name": "fedavg"}, train={"rounds": 15, "local_steps": 10})
    assert fedspend.train(plain).metrics[-1]["r2"] > 0.4


@pytest.mark.full(only=["text"])
@pytest.mark.parametrize("kind", ["regression", "text"])
def test_stopped_and_resumed_is_the_same_to_the_last_bit(tmp_path, kind):
    config = REGRESSION if kind == "regression" else text_config(tmp_path)
    whole = fedspend.train(config, output=tmp_path / "whole")
    stopped(config, tmp_path / "cut")
    resumed = fedspend.train(config, output=tmp_path / "cut", resume=True)
    assert parameters(resumed) == parameters(whole)
    assert resumed.metrics == whole.metrics
    other = with_(config, task={"metrics": ["mae"] if kind == "regression" else ["accuracy"]})
    with pytest.raises(InvalidInput, match=r"task\.metrics"):
        fedspend.train(other, output=tmp_path / "cut", resume=True)


@pytest.mark.full(only=["text"])
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["regression", "text"])
def test_records_have_their_own_budgets_in_every_task(tmp_path, kind):
    config = REGRESSION if kind == "regression" else text_config(tmp_path)
    config = copy.deepcopy(config)
    del config["train"]["batch_size"]
    config["method"] = {"name": "rpdp"}
    config["privacy"] = {
        "preferences": "three-levels",
        "delta": 1e-3,
        "clip": 1.0,
        "randomness": "seeded",
    }
    config["train"] |= {"rounds": 2, "local_steps": 2}
    result = fedspend.train(config)
    assert result.value is not None
    assert result.plan.unit == "record"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"name": "ae-dpfl"}}, "votes for classes, which loss 'squared' does not have"),
        ({"data": {"partition": "dirichlet", "alpha": 0.1}}, "deals rows by their class"),
        ({"task": {"loss": "binary"}}, "needs 0 or 1 for each row, and data set 'diabetes' has"),
        ({"task": {"loss": "next-token", "metrics": ["perplexity"]}}, "one class for each place"),
        ({"task": {"metrics": ["accuracy"]}}, "does not fit loss 'squared'"),
        ({"task": {"metrics": ["mse", "mse"]}}, "a list of different values"),
        ({"task": {"loss": "sqared"}}, "loss in .task. must be one of"),
        (
            {"evaluation": {"mode": "private"}, "data": {"validation": 0.2}},
            "metric 'mse' has no bounds of its own",
        ),
        ({"evaluation": {"bounds": [0, 9]}}, "bounds in .evaluation. has no effect"),
        ({"model": {"name": "lstm", "vocabulary": 9}}, "takes whole numbers up to"),
        ({"model": {"name": "nowhere:make"}}, "cannot be imported.*package.module:function"),
        ({"model": {"name": "fine-tune"}}, "needs model.backbone"),
        ({"model": {"name": "linear", "rank": 2}}, "rank in .model. has no effect"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path, changes, message):
    folder = tmp_path / "run"
    with pytest.raises(InvalidInput, match=message) as refusal:
        fedspend.train(with_(REGRESSION, **changes), output=folder)
    assert "\n" not in str(refusal.value)
    assert not folder.exists()


def test_a_private_metric_between_stated_bounds_is_near_the_exact_one():
    config = with_(
        REGRESSION,
        data={"validation": 0.3, "clients": 30},
        task={"metrics": ["mae"]},
        evaluation={"mode": "private", "bounds": [0.0, 4.0], "noise": 10.0},
        privacy={"epsilon": 300.0},
        train={"rounds": 2},
    )
    result = fedspend.train(config)
    line = result.metrics[0]
    assert line["private_mae_deviation"] == pytest.approx(4 * 10 / 30, rel=1e-6)
    # of the model that the round began with, which is zero: the mean target, about 1.5
    assert abs(line["private_mae"] - 1.5) < 5 * line["private_mae_deviation"]
    assert result.private_value == result.metrics[-1]["private_mae"]


class Tokens(nn.Module):
    """Refuses anything but whole numbers, and remembers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 3), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.int64
        return self.head(self.embedding(x).flatten(1))


def small_plan(clients=4):
    return fedspend.plan([30.0] * clients, delta=1e-2, rounds=2, rate=1.0)


TERMS = {"lr": 0.1, "batch_size": 4, "local_steps": 2, "randomness": "seeded", "seed": 1}


@pytest.mark.full
def test_whole_numbers_stay_whole_numbers_from_python():
    generator = np.random.default_rng(1)
    clients = [(generator.integers(0, 9, (6, 4)), generator.integers(0, 2, 6)) for _ in range(4)]
    result = fedspend.train(
        clients=clients, model=Tokens(), plan=small_plan(), test=clients[0], **TERMS
    )
    assert 0 <= result.accuracy <= 1
    clients[2] = (clients[2][0].astype(float), clients[2][1])
    with pytest.raises(InvalidInput, match="client '0' has features of whole numbers and client"):
        fedspend.train(clients=clients, model=Tokens(), plan=small_plan(), test=clients[0], **TERMS)


def test_sequences_of_different_length_are_padded_by_the_stated_length_alone():
    generator = np.random.default_rng(1)

    def lines(longest):
        return [generator.integers(1, 9, generator.integers(1, longest)).tolist() for _ in range(6)]

    clients = [(lines(9), [0, 1] * 3) for _ in range(4)]
    clients[3] = (lines(30), [0, 1] * 3)
    options = {"model": Tokens(), "plan": small_plan(), "test": clients[0]} | TERMS
    assert fedspend.train(clients=clients, max_length=4, **options).accuracy is not None
    with pytest.raises(InvalidInput, match=r"different lengths.*max_length"):
        fedspend.train(clients=clients, **options)


def test_several_labels_and_numbers_are_kept_as_they_are():
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(8, 3)).astype(np.float32)
    several = (generator.normal(size=(8, 2)) > 0).astype(int)
    clients = [(rows, several)] * 4
    result = fedspend.train(
        clients=clients,
        model=nn.Linear(3, 2),
        plan=small_plan(),
        test=(rows, several),
        loss="multi-label",
        metrics=["f1", "auc"],
        **TERMS,
    )
    assert result.metric == "f1"
    with pytest.raises(InvalidInput, match="must be 0 or 1"):
        fedspend.train(
            clients=[(rows, several + 0.5)] * 4,
            model=nn.Linear(3, 2),
            plan=small_plan(),
            test=(rows, several),
            loss="multi-label",
            **TERMS,
        )


def test_a_loss_and_a_metric_by_value():
    rows = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)

    def off(outputs, targets):
        return (outputs[:, 0] - targets).abs().max()

    result = fedspend.train(
        clients=[(rows, rows[:, 0])] * 4,
        model=nn.Linear(3, 1),
        plan=small_plan(),
        test=(rows, rows[:, 0]),
        loss=lambda output, target: (output[:, 0] - target).abs().sqrt(),
        metrics=[off, "mse"],
        **TERMS,
    )
    assert result.metric == "off"
    assert result.metrics[-1]["mse"] > 0


def csv_config(path: Path, loss: str, **data) -> dict:
    return with_(
        {name: values for name, values in REGRESSION.items() if name != "data"},
        data={"name": "csv", "path": str(path), "test_path": str(path), "client": "client"} | data,
        task={"loss": loss, "metrics": ["mse"] if loss == "squared" else ["f1"]},
        privacy={"randomness": "seeded"},
    )


def test_columns_of_a_csv_file_are_numbers_or_labels_as_they_are_declared(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("client,a,b,c,d\nnorth,1,0.5,1,0\nsouth,2,-3.25,0,1\n")
    bounds = {"label_bounds": [-5, 5]}
    numbers = csv_config(path, "squared", label="b", **bounds)
    assert fedspend.train(numbers).model[1].out_features == 1
    wide = csv_config(path, "squared", label=["a", "b"], **bounds)
    assert fedspend.train(wide).model[1].out_features == 2
    several = csv_config(path, "multi-label", label=["c", "d"])
    assert 0 <= fedspend.train(several).value <= 1
    with pytest.raises(InvalidInput, match="loss 'squared' needs one or several numbers"):
        fedspend.train(csv_config(path, "squared", label=["c", "d"]))


@pytest.mark.full
def test_frozen_weights_are_neither_noised_nor_exchanged_for_others(tmp_path):
    tuned = with_(
        REGRESSION,
        model={"name": "fine-tune", "backbone": "mlp", "hidden": [4, 3], "rank": 1},
    )
    result = fedspend.train(tuned, output=tmp_path / "run")
    begun = fedspend.train(with_(tuned, train={"rounds": 1}))
    frozen = [
        (one, other)
        for one, other in zip(result.model.parameters(), begun.model.parameters(), strict=True)
        if not one.requires_grad
    ]
    assert frozen
    assert all(torch.equal(one, other) for one, other in frozen)
    assert fedspend.verify_run(tmp_path / "run").ok


def test_tokens_outside_the_vocabulary_are_refused_before_anything_is_charged(tmp_path):
    """A run that fails in the round in which such a row is drawn would tell that it was."""
    model = fedspend.models.build(
        "lstm", input_shape=(4,), classes=2, seed=0, vocabulary=5, width=4
    )
    plan = fedspend.plan({"a": 4.0, "b": 8.0}, delta=1e-3, rounds=2, rate=0.5)
    fine, other = np.array([[1, 2, 3, 4]] * 4), np.array([[1, 2, 3, 9]] * 4)
    labels = np.array([0, 1, 0, 1])
    ledger = tmp_path / "accounts.db"
    for token in (9, -1):
        other[0, 3] = token
        with pytest.raises(InvalidInput, match="no place for some of them"):
            fedspend.train(
                clients={"a": (fine, labels), "b": (other, labels)},
                model=model,
                plan=plan,
                test=(fine, labels),
                ledger=ledger,
                **TERMS | {"randomness": "os"},
            )
    assert not ledger.exists()
