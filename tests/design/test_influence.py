"""`fedspend design influence`: pushes are played to the end, and what is left is read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from lib.configs import changed, small, write_toml

import fedspend
from fedspend.cli.main import main
from fedspend.configuration.config import config_of
from fedspend.design.influence import Trial, measure_influence, measured_on, proposals
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.influence import Course, read_influence
from fedspend.planning.request import PlanRequest
from fedspend.server.methods.base import Release
from fedspend.server.methods.fedavg import FedAvg
from fedspend.server.rounds import Server, begin, step

CONFIG = small(
    "plain",
    data__examples=200,
    data__features=5,
    data__clients=10,
    method__name="time-adaptive",
    privacy={"epsilon": 8, "delta": 1e-3, "rate": 0.9, "policy": "optimal"},
    train={"rounds": 6, "local_steps": 4, "batch_size": 8, "lr": 0.5},
)
HEAD = '{"format": "fedspend-influence", '


@pytest.fixture
def config(tmp_path):
    return write_toml(tmp_path / "run.toml", CONFIG)


def quadratic(
    contraction: np.ndarray, rounds: int, tail: int, momentum: float, curvature: np.ndarray
) -> Trial:
    """A trial whose clients pull along every direction by its own factor; all is known of it."""
    server, method = Server(rounds, 0.5, momentum, tail), FedAvg(1, 1.0)

    def played(state):
        return Release(-((1 - contraction) / server.lr * state.parameters).astype(np.float32))

    def stepped(state, release):
        return step(state, release, method, server)

    states = [begin(np.ones(contraction.size, dtype=np.float32), method)]
    releases = []
    for _ in range(rounds):
        releases.append(played(states[-1]))
        states.append(stepped(states[-1], releases[-1]))
    return Trial(
        states=states[:-1],
        releases=releases,
        iterates=[state.parameters for state in states[1:]],
        play=played,
        step=stepped,
        loss=lambda model: float((curvature * model.astype(np.float64) ** 2).sum()),
        deviation=0.1,
        seed=1,
        server_lr=server.lr,
        course=Course(rounds, tail, momentum),
        clip_factors=np.ones(rounds),
    )


@pytest.mark.parametrize(("rho", "tail", "momentum"), [(0.9, 1, 0.0), (0.7, 3, 0.0), (0.9, 2, 0.4)])
def test_it_finds_the_influence_of_a_known_contraction(rho, tail, momentum):
    trial = quadratic(np.full(400, rho), 8, tail, momentum, np.ones(400))
    found = measured_on(trial, 1)
    exact = trial.course.influence(rho)
    assert found.by == "loss"
    assert np.allclose(found.own.of_model, exact, rtol=1e-3)
    assert np.allclose(found.own.in_loss, exact, rtol=1e-2)
    for other, reading in found.readings.items():
        assert np.allclose(reading.of_model, trial.course.influence(rho, other), rtol=1e-3)
    assert found.contraction == pytest.approx(rho, abs=0.006)


def test_directions_in_which_the_loss_is_flat_hide_contraction():
    """Half of the directions neither contract nor matter: the model keeps them, the loss is told
    nothing of them.
    """
    flat = np.arange(4000) % 2 == 0
    trial = quadratic(np.where(flat, 1.0, 0.6), 6, 1, 0.0, np.where(flat, 0.0, 1.0))
    found = measured_on(trial, 2)
    exact = trial.course.influence(0.6)
    assert np.allclose(found.own.in_loss, exact, rtol=0.05)
    assert np.allclose(found.own.of_model, np.sqrt((1 + exact**2) / 2), rtol=0.05)
    assert np.array_equal(measured_on(trial, 2, "model").influence, found.own.of_model)


@pytest.mark.full
def test_a_tail_is_proposed_where_it_lowers_the_loss_with_its_noise():
    """Exact on a quadratic: what noise adds is its variance times the curvature, and a tail lags
    behind; so a long tail is for much noise, and the last iterate for little.
    """
    trial = quadratic(np.full(300, 0.7), 16, 1, 0.0, np.full(300, 2.0))
    found = measured_on(trial, 2)
    budgets = {"delta": 1e-3, "rounds": 16, "rate": 0.9}
    tails = {}
    for clip in (1e-5, 10.0):
        request = PlanRequest(np.full(20, 4.0), tuple("abcdefghijklmnopqrst"), clip=clip, **budgets)
        offers = proposals(found, request, trial.clip_factors)
        assert [one.tail for one in offers] == [1, 2, 4, 8]
        for one in offers:
            planned = replace(
                request, policy="optimal", influence=found.readings[one.tail].in_loss.tolist()
            ).plan()
            h = trial.course.influence(0.7, one.tail) * trial.server_lr
            exact = 300 * 2.0 * float(((h * planned.noise_of_average) ** 2).sum())
            assert one.noise == pytest.approx(exact, rel=0.15), "two random directions"
            assert one.noise <= one.uniform * (1 + 1e-9)
        tails[clip] = min(offers, key=lambda one: one.total).tail
    assert tails == {1e-5: 1, 10.0: 8}


def test_where_a_push_lowers_the_loss_it_is_read_of_the_model():
    trial = replace(
        quadratic(np.full(50, 0.8), 5, 1, 0.0, np.ones(50)),
        loss=lambda model: -float((model.astype(np.float64) ** 2).sum()),
    )
    assert measured_on(trial, 1).by == "model"
    with pytest.raises(Refused, match="did not raise the loss"):
        measured_on(trial, 1, "loss")


def test_many_rounds_are_read_off_between_those_that_were_pushed():
    trial = quadratic(np.full(100, 0.95), 60, 1, 0.0, np.ones(100))
    found = measured_on(trial, 1)
    assert len(found.measured) == 25
    assert found.influence.size == 60
    assert np.allclose(found.own.of_model, trial.course.influence(0.95), atol=0.01)


@pytest.mark.full
def test_a_real_config_is_measured_and_planned_with(config, tmp_path, capsys):
    out = tmp_path / "influence.json"
    assert main(["design", "influence", str(config), "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 6
    assert found["of_model"][-1] == pytest.approx(1.0, abs=1e-3), "the last push is not touched"
    assert np.all(np.diff(found["of_model"]) > 0), "earlier pushes are pulled back longer"
    assert main(["plan", str(config), "--influence", str(out), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["expected"]
    assert expected["influence"] == read_influence(out, 1)
    assert [one["tail"] for one in found["proposals"]] == [1, 2]
    assert main(["plan", str(config), "--influence", str(out), "--tail", "5"]) == 2
    assert "only for 1, 2" in capsys.readouterr().err
    assert expected["variance_of_uniform"] <= 1
    assert main(["plan", str(config), "--influence", str(out), "--tail", "auto", "--json"]) == 0
    joint = json.loads(capsys.readouterr().out)["expected"]
    assert joint["tail"] == found["proposed_tail"]
    assert joint["influence"] == read_influence(out, found["proposed_tail"])
    assert main(["plan", str(config), "--contraction", "0.9", "--tail", "auto"]) == 2
    assert "--tail auto needs --influence FILE" in capsys.readouterr().err
    assert main(["plan", str(config), "--tail", "long"]) == 2
    assert "must be a whole number, or auto; got 'long'" in capsys.readouterr().err
    assert main(["plan", str(config), "--influence", str(out)]) == 0
    assert "by the influence that was measured" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(config), "--influence", str(out), "--contraction", "0.9"]) == 2
    assert "drop one" in capsys.readouterr().err
    stated = fedspend.train(
        str(config), overrides=["train.rounds=6", f"privacy.influence={json.dumps(str(out))}"]
    )
    assert stated.metrics[-1]["round"] == 6
    again = measure_influence(config_of(json.loads(json.dumps(_sections()))))
    assert again.own.of_model.tolist() == found["of_model"], "the same seed, the same influence"


def _sections():

    return changed(CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.name='csv'", "counts as private"),
        ("privacy.randomness='os'", "seeded simulation"),
        ("method.name='adaptive-clip'", "does not reach the model as a push"),
        ("method.name='ae-dpfl'", "does not reach the model as a push"),
        ("method.name='rpdp'", "does not reach the model as a push"),
        ("method.name='fedavg'", "does not reach the model as a push"),
    ],
)
def test_private_rows_and_other_servers_are_refused(change, message):
    sections = _sections()
    name, _, value = change.partition("=")
    section, key = name.split(".")
    sections[section][key] = value.strip("'")
    with pytest.raises(Refused, match=message):
        measure_influence(config_of(sections))


def test_wrong_commands_and_files_are_one_line(config, tmp_path, capsys):
    def fails(*argv, code=2):
        assert main([str(one) for one in argv]) == code
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    assert "needs a config" in fails("design", "influence")
    assert "--rate is only for theory" in fails("design", "influence", config, "--rate", "0.5")
    assert "must end in .json" in fails("design", "influence", config, "-o", tmp_path / "x.csv")
    assert "one argument too many" in fails("design", "theory", config)
    assert "only for fedspend design influence" in fails("design", config, "--by", "loss")
    broken = tmp_path / "broken.json"
    for body, message in (
        ("{", "is not a file of influences"),
        ('{"rounds": 6, "influence": {"1": [1, 2]}}', "its format is None"),
        (HEAD + '"rounds": 6, "influence": {"1": [1, 2]}}', "got 2 for 6 rounds"),
        (HEAD + '"rounds": 6, "influence": {"1": [0, 0, 0, 0, 0, 0]}}', "nor 0 in all"),
        (HEAD + '"rounds": 6, "influence": {"1": [1, 1, 1, 1, 1, -1]}}', "not be negative"),
    ):
        broken.write_text(body)
        assert message in fails("plan", config, "--influence", broken)
    assert "cannot read" in fails("plan", config, "--influence", tmp_path / "none.json")


def test_influence_from_python_is_checked_too():
    terms = {"delta": 1e-3, "rounds": 3, "rate": 0.9, "policy": "optimal"}
    assert (
        fedspend.plan([2.0], influence=[0.2, 0.5, 1], **terms).noise_multiplier[0, 0]
        > (fedspend.plan([2.0], influence=[1, 1, 1], **terms).noise_multiplier[0, 0])
    )
    with pytest.raises(InvalidInput, match="drop one"):
        fedspend.plan([2.0], influence=[1, 1, 1], contraction=0.9, **terms)
    with pytest.raises(InvalidInput, match="must be finite"):
        fedspend.plan([2.0], influence=[1, 1, float("nan")], **terms)
