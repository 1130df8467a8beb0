"""The model of a run, loaded again and asked about new rows; and models of runs that stopped."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
import torch
from lib.runs import stopped
from tasks.test_runs import REGRESSION, csv_config, text_config, with_
from torch import nn

import fedspend
from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.models.flat import fingerprint, flat_vector
from fedspend.runs.predicting import About
from fedspend.runs.predicting import _rows as new_rows

pytestmark = pytest.mark.usefixtures("quick_verify")

OPTIMISED = with_(
    REGRESSION,
    train={
        "optimizer": "adam",
        "weight_decay": 0.01,
        "proximal": 0.1,
        "gradient_clip": 1.0,
        "server_optimizer": "yogi",
        "server_lr": 0.05,
        "lr": 0.01,
        "tail_average": 2,
    },
)


def test_a_run_that_stops_leaves_the_model_of_its_last_round_and_verifies(tmp_path):
    folder = tmp_path / "run"
    stopped(REGRESSION, folder)
    two = fedspend.load_model(folder)
    stopped(REGRESSION, folder, rounds=3, resume=True)
    three = fedspend.load_model(folder)
    assert not torch.equal(flat_vector(two), flat_vector(three))
    assert fedspend.verify_run(folder).ok
    whole = fedspend.train(REGRESSION, output=folder, resume=True)
    assert torch.equal(flat_vector(fedspend.load_model(folder)), flat_vector(whole.model))
    assert fedspend.verify_run(folder).ok


def test_optimisers_resume_to_the_last_bit(tmp_path):
    whole = fedspend.train(OPTIMISED, output=tmp_path / "whole")
    stopped(OPTIMISED, tmp_path / "cut")
    resumed = fedspend.train(OPTIMISED, output=tmp_path / "cut", resume=True)
    assert torch.equal(flat_vector(resumed.model), flat_vector(whole.model))
    assert resumed.metrics == whole.metrics
    with pytest.raises(InvalidInput, match=r"train\.server_optimizer"):
        fedspend.train(
            with_(OPTIMISED, train={"server_optimizer": "adam"}),
            output=tmp_path / "cut",
            resume=True,
        )


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"optimizer": "lbfgs"}, "optimizer in .train. must be one of"),
        ({"weight_decay": -1}, "weight_decay in .train. must be a number from 0 to 1e6"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum in .train. has no effect"),
        ({"server_optimizer": "adam", "server_momentum": 0.9}, "server_momentum .* no effect"),
    ],
)
def test_bad_optimisers_are_refused_in_one_line(train, message):
    with pytest.raises(InvalidInput, match=message):
        fedspend.train(with_(REGRESSION, train=train))


def patients(folder):
    path = folder / "patients.csv"
    lines = ["client,age,stage,outcome"]
    generator = np.random.default_rng(0)
    for n in range(40):
        age, stage = generator.integers(20, 90), generator.choice(["early", "late"])
        lines.append(
            f"{'north' if n % 2 else 'south'},{age},{stage},{'ill' if age > 50 else 'well'}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def hospital(folder) -> dict:
    config = copy.deepcopy(REGRESSION)
    del config["task"]
    path = str(patients(folder))
    config["data"] = {
        "name": "csv",
        "path": path,
        "test_path": path,
        "label": "outcome",
        "labels": ["well", "ill"],
        "client": "client",
        "bounds": {"age": [0, 100]},
        "categories": {"stage": ["early", "late"]},
    }
    config["model"] = {"name": "logistic"}
    config["privacy"] |= {"randomness": "seeded"}
    return config


def test_new_rows_are_read_as_the_run_declared_and_named_as_it_named_them(tmp_path, capsys):
    folder = tmp_path / "run"
    result = fedspend.train(hospital(tmp_path), output=folder)
    new = tmp_path / "new.csv"
    new.write_text("age,stage\n10,early\n95,late\n")
    found = fedspend.predict(folder, new)
    rows = torch.tensor([[0.10, 1.0, 0.0], [0.95, 0.0, 1.0]])
    assert found.outputs == pytest.approx(result.model(rows).detach().numpy(), abs=1e-6)
    names = [("well", "ill")[place] for place in found.values]
    assert main(["predict", str(folder), str(new)]) == 0
    assert capsys.readouterr().out.split() == ["prediction", *names]
    assert main(["predict", str(folder), str(new), "--json", "--outputs"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["classes"] == ["well", "ill"]
    assert np.array(told["outputs"]) == pytest.approx(found.outputs, abs=1e-6)
    (tmp_path / "odd.csv").write_text("age,stage\n10,sometimes\n")
    with pytest.raises(InvalidInput, match="sometimes"):
        fedspend.predict(folder, tmp_path / "odd.csv")


def test_numbers_come_back_in_their_own_unit(tmp_path):
    config = hospital(tmp_path)
    config["data"] = {
        **{k: v for k, v in config["data"].items() if k in ("name", "path", "test_path", "client")},
        "label": "age",
        "label_bounds": [0, 100],
        "columns": ["stage"],
        "categories": {"stage": ["early", "late"]},
    }
    config["task"] = {"loss": "squared", "metrics": ["mse"]}
    result = fedspend.train(config, output=tmp_path / "run")
    found = fedspend.predict(tmp_path / "run", np.array([[1.0, 0.0]]))
    with torch.no_grad():
        scaled = float(result.model(torch.tensor([[1.0, 0.0]])))
    assert found.values.tolist() == pytest.approx([100 * scaled], rel=1e-5)


@pytest.mark.full
def test_sequences_and_arrays_of_python(tmp_path):
    fedspend.train(text_config(tmp_path), output=tmp_path / "text")
    np.savez(tmp_path / "new.npz", features=np.array([[1, 2, 3, 0, 0]]))
    assert fedspend.predict(tmp_path / "text", tmp_path / "new.npz").values.shape == (1, 5)
    with pytest.raises(InvalidInput, match=r"takes rows of shape \(5,\)"):
        fedspend.predict(tmp_path / "text", np.ones((2, 4)))


def test_a_module_of_ones_own_gets_its_numbers_back(tmp_path):
    rows = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)
    plan = fedspend.plan([30.0] * 4, delta=1e-2, rounds=2, rate=1.0)
    result = fedspend.train(
        clients=[(rows, rows[:, 0])] * 4,
        model=nn.Linear(3, 1),
        plan=plan,
        test=(rows, rows[:, 0]),
        loss="squared",
        output=tmp_path / "run",
        lr=0.1,
        batch_size=4,
        local_steps=2,
        randomness="seeded",
    )
    with pytest.raises(InvalidInput, match=r"load_model\(run, model=\.\.\.\)"):
        fedspend.load_model(tmp_path / "run")
    again = fedspend.load_model(tmp_path / "run", model=nn.Linear(3, 1))
    assert torch.equal(flat_vector(again), flat_vector(result.model))
    with pytest.raises(InvalidInput, match="of another model"):
        fedspend.load_model(tmp_path / "run", model=nn.Linear(4, 1))
    with pytest.raises(InvalidInput, match="holds no run"):
        fedspend.load_model(tmp_path)


@pytest.mark.parametrize(
    ("label", "rows"), [("mood", [[1, 2, 3], [3, 0, 0]]), ("line", [[1, 2, 0], [0, 0, 0]])]
)
def test_new_texts_are_read_by_the_declared_vocabulary(tmp_path, label, rows):
    path = tmp_path / "new.csv"
    path.write_text("line\nabc\nc\n")
    told = {"name": "csv", "text": "line", "vocabulary": "abc", "max_length": 3, "label": label}
    told |= {"classes": 2} if label == "mood" else {}
    about = About((3,), 2, "classes", integers=True)
    settings = {f"data.{key}": value for key, value in told.items()}
    assert new_rows(path, settings, about).tolist() == rows


# --- models of one's own are code -----------------------------------------------------------------

MINE = """
import pathlib
import numpy as np
import torch
from torch import nn

pathlib.Path(__file__).with_name("imported").touch()


class Net(nn.Module):
    def __init__(self, shape, outputs, scale):
        super().__init__()
        self.head = nn.Linear(shape[0], outputs)
        self.register_buffer("scale", scale)

    def forward(self, x):
        return self.head(x * self.scale)


def seeded(shape, outputs):
    return Net(shape, outputs, torch.rand(shape))


def drawn(shape, outputs):
    return Net(shape, outputs, torch.from_numpy(np.random.default_rng().random(shape)).float())
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Trains a model of one's own by name; gives the run, and where it is noted that the code was
    imported.
    """
    (tmp_path / "own_code.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)

    def trained(function):
        config = with_(REGRESSION, model={"name": f"own_code:{function}"}, train={"seed": 11})
        config["model"].pop("hidden", None)
        result = fedspend.train(config, output=tmp_path / function)
        monkeypatch.delitem(sys.modules, "own_code")
        (tmp_path / "imported").unlink()
        return result, tmp_path / function

    yield trained
    sys.modules.pop("own_code", None)


def test_a_run_directory_alone_imports_nothing(own, tmp_path, capsys):
    result, folder = own("seeded")
    rows = tmp_path / "rows.npz"
    width = result.model.scale.numel()
    np.savez(rows, features=np.ones((2, width)))
    for call in (lambda: fedspend.load_model(folder), lambda: fedspend.predict(folder, rows)):
        with pytest.raises(
            InvalidInput,
            match=r"asks to import 'own_code:seeded'.*name it: model='own_code:seeded'",
        ):
            call()
    assert main(["predict", str(folder), str(rows)]) == 2
    assert "--model own_code:seeded" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="asks for the model 'own_code:seeded'"):
        fedspend.load_model(folder, "own_code:drawn")
    with pytest.raises(InvalidInput, match=r"must be a torch\.nn\.Module, or the name"):
        fedspend.load_model(folder, 3)
    assert not (tmp_path / "imported").exists()
    again = fedspend.load_model(folder, "own_code:seeded")
    assert (tmp_path / "imported").exists()
    assert torch.equal(again.scale, result.model.scale)  # drawn by torch, from the run's seed
    assert torch.equal(flat_vector(again), flat_vector(result.model))
    assert main(["predict", str(folder), str(rows), "--model", "own_code:seeded"]) == 0


def test_a_backbone_of_ones_own_is_code_too(tmp_path):
    folder = tmp_path / "run"
    fedspend.train(REGRESSION, output=folder)
    told = json.loads((folder / "run.json").read_text())
    told["settings"] |= {"model.name": "fine-tune", "model.backbone": "antigravity:make"}
    (folder / "run.json").write_text(json.dumps(told))
    with pytest.raises(InvalidInput, match="asks to import 'antigravity:make'"):
        fedspend.load_model(folder)
    with pytest.raises(InvalidInput, match="asks for the model 'antigravity:make'"):
        fedspend.load_model(folder, "fine-tune")
    assert "antigravity" not in sys.modules


def test_a_model_that_fedspend_knows_may_be_named_and_no_other(tmp_path):
    fedspend.train(REGRESSION, output=tmp_path / "run")
    name = REGRESSION["model"]["name"]
    assert fedspend.load_model(tmp_path / "run", name) is not None
    with pytest.raises(InvalidInput, match=f"asks for the model '{name}'"):
        fedspend.load_model(tmp_path / "run", "os:getcwd")


def test_buffers_that_come_out_differently_are_refused(own):
    result, folder = own("drawn")
    with pytest.raises(InvalidInput, match="other buffers than this module has"):
        fedspend.load_model(folder, "own_code:drawn")
    again = fedspend.load_model(folder, copy.deepcopy(result.model))
    assert torch.equal(flat_vector(again), flat_vector(result.model))


def test_fingerprints_tell_buffers_apart():
    def with_buffer(value):
        module = nn.Linear(2, 1)
        module.register_buffer("b", torch.tensor(value))
        return module

    same, other = fingerprint(with_buffer([1.0, 2.0])), fingerprint(with_buffer([1.0, 3.0]))
    assert same == fingerprint(with_buffer([1.0, 2.0])) != other
    assert fingerprint(with_buffer(True)) != fingerprint(nn.Linear(2, 1))


def test_columns_of_new_rows_are_found_by_name(tmp_path):
    """Whatever their order, and whatever else the file has; none may stand in for another."""
    generator = np.random.default_rng(4)
    values = generator.normal(size=(40, 3)).round(3)
    rows = [f"{'north' if n % 2 else 'south'},{a},{b},{c}" for n, (a, b, c) in enumerate(values)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,a,b,y", *rows]) + "\n")
    run = tmp_path / "run"
    told = {"label": "y", "label_bounds": [-5, 5]}
    fedspend.train(csv_config(tmp_path / "rows.csv", "squared", **told), output=run)
    said = json.loads((run / "run.json").read_text())["model"]
    assert said["columns"] == ["a", "b"]

    def predicted(head, lines):
        (tmp_path / "new.csv").write_text("\n".join([head, *lines]) + "\n")
        return fedspend.predict(run, tmp_path / "new.csv").values

    straight = predicted("a,b", ["1.5,-2", "0,3"])
    np.testing.assert_array_equal(predicted("b,id,a", ["-2,7,1.5", "3,8,0"]), straight)
    assert not np.array_equal(predicted("a,b", ["-2,1.5", "3,0"]), straight)
    with pytest.raises(InvalidInput, match=r"new\.csv: column 'a' is missing.*id, b") as refused:
        predicted("id,b", ["7,-2", "8,3"])
    assert "\n" not in str(refused.value)


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    ("loss", "data", "header"),
    [
        (
            "classification",
            {"label": "e", "labels": ["no", "yes"]},
            "prediction,output_no,output_yes",
        ),
        ("classification", {"label": "c", "classes": 2}, "prediction,output_1,output_2"),
        ("binary", {"label": "e", "labels": ["no", "yes"]}, "prediction,output_yes"),
        (
            "multi-label",
            {"label": ["c", "d"]},
            "prediction_c,prediction_d,output_c,output_d",
        ),
        ("squared", {"label": "b", "label_bounds": [-5, 5]}, "prediction,output_1"),
    ],
)
def test_predictions_are_named_by_what_the_label_was_declared_to_be(
    tmp_path, capsys, loss, data, header
):
    path, folder = tmp_path / "rows.csv", tmp_path / "run"
    path.write_text("client,a,b,c,d,e\nnorth,1,0.5,1,0,no\nsouth,2,-3.25,0,1,yes\n")
    fedspend.train(csv_config(path, loss, columns=["a"], **data), output=folder)
    capsys.readouterr()
    assert main(["predict", str(folder), str(path), "--outputs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines)) == (header, 3)
    assert all(line.count(",") == header.count(",") for line in lines)
    assert main(["predict", str(folder), str(path)]) == 0
    shown = [one for one in header.split(",") if one.startswith("prediction")]
    assert capsys.readouterr().out.splitlines()[0].split(",") == shown
