"""Whole runs: limits, the twin in plain loops, noise as planned,
and a run that is killed anywhere.
"""

import dataclasses
import importlib.util
import math
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from lib.configs import small, write_toml
from lib.noise import has_deviation
from lib.runs import check_killed_at_every_write, killed

import fedspend
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import config_of
from fedspend.engines.local import make_engine
from fedspend.errors import InvalidInput, Refused
from fedspend.runs import directory as runs
from fedspend.runs.running import run
from fedspend.runs.setup import flat_parameters, from_config
from fedspend.runs.training import train
from fedspend.server.mechanism import Gaussian
from fedspend.server.methods.table import methods_for
from fedspend.server.rounds import begin, play

CLIENT_METHODS = ("fedavg", *methods_for("client"))

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("quick_verify")


def by_hand():
    spec = importlib.util.spec_from_file_location("by_hand", ROOT / "examples" / "by_hand.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", [{}, {"blur": 1.0}, {"blur": 1.0, "lus": 0.6}])
@pytest.mark.parametrize("engine", ["local", "reference"])
def test_engines_follow_the_plain_loops(tiny, engine, shape):
    tiny["train"] |= {"tail_average": 1, "server_momentum": 0.0}
    tiny |= {"engine": {"name": engine}, "shape": shape}
    setup = from_config(config_of(tiny))
    data, shards = setup.federation.dataset, setup.federation.shards
    clients = [(data.features[rows].astype(np.float64), data.labels[rows]) for rows in shards]
    expected = by_hand().train_by_hand(
        setup.plan, clients, 3, steps=3, batch=8, lr=0.3, seed=5, **shape
    )
    result = run(setup, None)
    flat = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach().numpy()
    np.testing.assert_allclose(flat, expected[-1], atol=2e-6)


class Unclipped:
    """A private method with its noise and its clip taken away."""

    def __init__(self, method):
        self.method, self.name = method, method.name

    def start(self):
        return self.method.start()

    def terms(self, round, state):
        terms = self.method.terms(round, state)
        bit = None if terms.bit_deviation is None else 0.0
        return dataclasses.replace(
            terms, deviation=0.0, clip_norm=np.full_like(terms.clip_norm, np.inf), bit_deviation=bit
        )

    def learn(self, state, release):
        return self.method.learn(state, release)


@pytest.mark.parametrize(
    "method", [name for name in CLIENT_METHODS if name not in ("fedavg", "ae-dpfl")]
)
def test_no_noise_no_clip_and_rate_one_is_fedavg(tiny, method):
    del tiny["privacy"]["saving_rate"]
    tiny["privacy"] |= {"rate": 1.0}
    if method == "time-adaptive":
        tiny["privacy"]["weights"] = 1.1
    setup = from_config(config_of(tiny | {"method": {"name": method}}))
    plain = from_config(
        config_of(
            tiny | {"method": {"name": "fedavg"}, "privacy": tiny["privacy"] | {"weights": 1.1}}
        )
    )
    private = run(dataclasses.replace(setup, method=Unclipped(setup.method)), None)
    assert [line["accuracy"] for line in private.metrics] == [
        line["accuracy"] for line in run(plain, None).metrics
    ]
    for ours, theirs in zip(private.model.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_one_client_at_rate_one_is_plain_sgd(tiny):
    tiny["data"]["clients"] = 1
    tiny["privacy"] = {"rate": 1.0}
    tiny["train"] |= {"tail_average": 1, "server_momentum": 0.0, "momentum": 0.9}
    setup = from_config(config_of(tiny | {"method": {"name": "fedavg"}}))
    result = run(setup, None)
    data = setup.federation.dataset
    x, y = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
    torch.nn.utils.vector_to_parameters(torch.zeros(21), model.parameters())
    from fedspend.client.batches import step_batches

    rows = setup.federation.shards[0]
    for t in range(4):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for batch in step_batches(
            setup.randomness.generator("batches", t, 0), rows.size, LocalTraining(8, steps=3)
        ):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows[batch]]), y[rows[batch]]).backward()
            optimizer.step()
    for ours, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_released_noise_has_the_planned_variance(tiny, noise, randomness):
    """Clients whose updates are zero: what is released is noise alone, whoever was sampled and did
    not answer.
    """
    tiny["data"] |= {"features": 2000}
    tiny["privacy"] |= {"noise": noise, "randomness": randomness}
    setup = from_config(config_of(tiny))
    none = dict.fromkeys(setup.federation.clients, np.zeros(0, dtype=np.int64))
    engine = make_engine("local", dataclasses.replace(setup.workload(), shards=none))
    start = begin(flat_parameters(setup.module), setup.method)
    for t in range(3):
        now, mechanism = dataclasses.replace(start, done=t), Gaussian(setup.randomness)
        release = play(
            now,
            setup.method,
            engine,
            setup.training,
            setup.randomness,
            mechanism,
            mechanism.start(),
        ).release
        terms = setup.method.terms(t, {})
        sample = release.update.astype(np.float64) * terms.denominator / terms.deviation
        assert has_deviation(sample)  # in three rounds it fails with chance 3e-7
    engine.close()


def test_same_seed_same_bits_and_another_seed_is_another_run(tiny):
    first, second = run(from_config(config_of(tiny)), None), run(from_config(config_of(tiny)), None)
    assert first.metrics == second.metrics
    other = run(from_config(config_of(tiny, ["train.seed=6"])), None)
    assert other.metrics != first.metrics


def test_arrays_module_and_plan_in_five_lines():
    generator = np.random.default_rng(0)
    x = generator.random((60, 4)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    plan = fedspend.plan([8.0] * 3, delta=1e-2, rounds=3, rate=1.0)
    clients = {str(n): (x[n::3], y[n::3]) for n in range(3)}
    result = train(
        clients=clients,
        model=torch.nn.Linear(4, 2),
        plan=plan,
        test=(x, y),
        lr=0.5,
        batch_size=10,
        local_epochs=1,
        project="five lines",
    )
    assert [line["round"] for line in result.metrics] == [1, 2, 3]
    assert result.metrics[-1]["randomness"] == "os", (
        "your own data gets real noise unless you ask otherwise"
    )
    assert "clipped_share" not in result.metrics[-1], "statistics of updates are not private"
    with pytest.raises(InvalidInput, match="plan is for 3 clients"):
        train(
            clients=list(clients.values())[:2],
            model=torch.nn.Linear(4, 2),
            plan=plan,
            test=(x, y),
            lr=0.5,
            batch_size=10,
            local_epochs=1,
        )


def test_a_plan_that_does_not_verify_trains_nothing(tiny, tmp_path, monkeypatch):
    import fedspend.runs.certifying

    class Bad:
        ok = False
        failures = ("client '0' is over",)

        def __init__(self, _plan):
            pass

    monkeypatch.setattr(fedspend.runs.certifying, "verify", Bad)
    with pytest.raises(Refused, match="client '0' is over"):
        run(from_config(config_of(tiny)), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# --- killed at any instant ---


def outcome(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in ("metrics.jsonl", "model.safetensors", "checkpoint.safetensors", "plan.json")
    }


@pytest.mark.full
@pytest.mark.parametrize("method", ["time-adaptive", "adaptive-clip", "ae-dpfl"])
def test_a_seeded_run_killed_at_every_write_ends_the_same(tiny, tmp_path, method):
    tiny["method"] = {"name": method}
    tiny["data"]["public_share"] = 0.1
    tiny["votes"] = {"queries": 2}
    tiny["train"]["rounds"] = 3

    def go(folder, resume):
        run(from_config(config_of(tiny)), folder, resume=resume)

    check_killed_at_every_write(tmp_path, go, outcome, writes=30)


def test_a_real_run_reuses_a_stored_release(tiny, tmp_path, monkeypatch):
    """Killed after the release was stored:
    fresh noise on the same round would be a second release.
    """
    tiny["privacy"]["randomness"] = "os"
    folder = tmp_path / "run"
    with killed(at="kept", round=3):
        run(from_config(config_of(tiny)), folder, project="tiny")
    stored = runs.RunDirectory(folder).kept(2).release
    played = []
    real = fedspend.server.rounds.play

    def watched(progress, *rest):
        played.append(progress.done)
        return real(progress, *rest)

    monkeypatch.setattr(fedspend.server.rounds, "play", watched)
    before = runs.RunDirectory(folder).training_state()
    velocity = 0.5 * before.velocity + stored.update
    result = run(from_config(config_of(tiny)), folder, resume=True)
    assert played == [3]
    assert [line["round"] for line in result.metrics] == [1, 2, 3, 4]
    # The iterate after round 3 is the stored release applied once: the checkpoint of the tail holds
    # it.
    third = before.parameters + velocity
    final = runs.RunDirectory(folder).training_state()
    np.testing.assert_allclose(final.tail_sum - final.parameters, third, atol=1e-6)


def test_a_real_round_without_a_release_is_skipped_and_stays_charged(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    folder = tmp_path / "run"
    with killed(at="play"):
        run(from_config(config_of(tiny)), folder, project="tiny")
    result = run(from_config(config_of(tiny)), folder, resume=True)
    assert result.metrics[0]["skipped"]
    assert result.metrics[0]["epsilon"]["4"] > 0
    assert "skipped" not in result.metrics[1]
    assert result.metrics[-1]["epsilon"]["4"] == pytest.approx(4, rel=1e-6)


@pytest.mark.full
def test_kill_nine_at_random_moments(tiny, tmp_path, fork_server):
    """The real thing: a process that is shot, again and again, until it is through."""
    wanted = int(os.environ.get("FEDSPEND_KILLS", "3"))
    tiny["train"]["rounds"] = 40 * wanted
    tiny["privacy"]["transition"] = 4  # rounds of two kinds, which are soon verified
    config = write_toml(tmp_path / "tiny.toml", tiny)
    command = ["train", config, "--quiet", "--resume", "-o"]
    assert fork_server.start(*command, tmp_path / "whole").wait() == 0
    dice, folder = random.Random(3), tmp_path / "shot"
    for _ in range(wanted):
        before = rounds_of(folder)
        # plays 26 of 40 rounds for every kill, and is shot at the latest when it waits for that
        process = fork_server.start(*command, folder, held=26)
        # some are shot while they start, plan and verify
        last = time.monotonic() + (dice.uniform(0, 0.5) if dice.random() < 0.3 else 600)
        while rounds_of(folder) == before and time.monotonic() < last and process.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        assert process.poll() is None, "the run failed before it was shot"
        process.kill()
        process.wait()
    assert fork_server.start(*command, folder).wait(timeout=300) == 0
    assert outcome(folder) == outcome(tmp_path / "whole")


def rounds_of(folder):
    metrics = folder / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


# --- bad input ---


def test_a_folder_with_another_run_is_refused(tiny, tmp_path):
    run(from_config(config_of(tiny)), tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(InvalidInput, match="use --resume"):
        run(from_config(config_of(tiny)), tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"train\.lr was 0\.3 and is now 0\.4"):
        run(from_config(config_of(tiny, ["train.lr=0.4"])), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == before


def test_a_finished_run_can_be_resumed_without_effect(tiny, tmp_path):
    run(from_config(config_of(tiny)), tmp_path / "run")
    before = outcome(tmp_path / "run")
    run(from_config(config_of(tiny)), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["run.json", "checkpoint.safetensors"])
def test_damaged_files_are_named(tiny, tmp_path, name):
    run(from_config(config_of(tiny)), tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(b"\x00broken")
    with pytest.raises(InvalidInput, match=name):
        run(from_config(config_of(tiny)), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("method.name=fedprox", "method must be one of"),
        ("data.name=mnust", "mnist"),
        ("model.name=transformer", "transformer"),
        ("train.local_epochs=2", "exactly one of local_steps and local_epochs"),
        ("privacy.saving_rate=0.9", "saving_rate"),
    ],
)
def test_bad_settings_are_named(tiny, override, names):
    with pytest.raises(InvalidInput, match=names):
        from_config(config_of(tiny, [override]))


def test_what_is_missing_is_asked_for(tiny):
    del tiny["train"]["lr"]
    with pytest.raises(InvalidInput, match="lr under"):
        from_config(config_of(tiny))


def test_an_update_that_is_not_finite_is_counted_and_dropped(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.random((40, 4)).astype(np.float32), generator.integers(0, 2, 40)
    plan = fedspend.plan([8.0] * 2, delta=1e-2, rounds=2, rate=1.0)
    clients = [(x[:20], y[:20]), (x[20:] * 1e30, y[20:])]
    options = {"lr": 1e6, "batch_size": 10, "local_steps": 2, "randomness": "seeded"}
    result = train(clients=clients, model=torch.nn.Linear(4, 2), plan=plan, test=(x, y), **options)
    assert [line["discarded"] for line in result.metrics] == [1, 1]
    with pytest.warns(
        fedspend.errors.FedspendWarning, match=r"round \d: 1 updates were not finite"
    ):
        real = train(
            clients={str(n): rows for n, rows in enumerate(clients)},
            model=torch.nn.Linear(4, 2),
            plan=plan,
            test=(x, y),
            output=tmp_path / "real",
            project="tiny",
            **options | {"randomness": "os"},
        )
    assert b"discarded" not in (tmp_path / "real" / "release.safetensors").read_bytes()
    assert not {"discarded", "cohort", "mean_norm", "norm_quantiles", "clipped_share"} & set(
        real.metrics[0]
    ), "only the operator may see these"
    assert all(math.isfinite(float(p.detach().abs().max())) for p in result.model.parameters())


def test_tensorboard_gets_the_same_numbers(tiny, tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tiny["train"]["loggers"] = ["tensorboard"]
    result = run(from_config(config_of(tiny)), tmp_path / "run")
    events = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("accuracy")]
    np.testing.assert_allclose(logged, [line["accuracy"] for line in result.metrics], rtol=1e-6)
    assert events.Scalars("epsilon/4")[-1].value == pytest.approx(4, rel=1e-5)


def test_your_own_csv_with_budgets_by_client_id(tmp_path):
    generator = np.random.default_rng(0)
    rows = ["hospital,age,pressure,ill"]
    for n in range(90):
        age, pressure = generator.integers(20, 90), generator.integers(80, 180)
        rows.append(f"{['north', 'south', 'east'][n % 3]},{age},{pressure},{int(age > 55)}")
    (tmp_path / "patients.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([rows[0], *rows[1:31]]) + "\n")
    (tmp_path / "budgets.csv").write_text("client,epsilon\nsouth,8\neast,4\nnorth,2\n")
    data = {
        "name": "csv",
        "path": str(tmp_path / "patients.csv"),
        "test_path": str(tmp_path / "test.csv"),
        "label": "ill",
        "client": "hospital",
        "classes": 2,
        "bounds": [0, 200],
        "partition": "natural",
    }
    privacy = {"budgets": str(tmp_path / "budgets.csv"), "delta": 1e-2, "rate": 1.0}
    sections = small("plain", data=data, privacy=privacy)
    setup = from_config(config_of(sections))
    assert setup.federation.clients == ("south", "east", "north") == setup.plan.clients
    assert setup.randomness.source == "os"
    ages = setup.federation.dataset.features[setup.federation.shards[2], 0] * 200
    assert ages[0] == pytest.approx(float(rows[1].split(",")[1]), abs=1e-3), (
        "north's rows went to north"
    )
    assert len(run(setup, None, project="clinics").metrics) == 2
    (tmp_path / "budgets.csv").write_text("client,epsilon\nsouth,8\neast,4\nwest,2\n")
    with pytest.raises(
        InvalidInput,
        match=r"'north' has rows in the data but is not in .*budgets\.csv; give it a budget",
    ):
        from_config(config_of(sections))


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("method", CLIENT_METHODS)
def test_the_quickstart_config_serves_every_method(method):
    from fedspend.configuration.config import load_config

    overrides = [f"method.name={method}", "data.public_share=0.1"]
    fixed = {"dp-fedavg": "strictest", "dp-fedsgd": "strictest", "idp-fedavg": "uniform"}
    own = {"time-adaptive": "optimal"}
    for name, expected in (
        ("quickstart.toml", fixed.get(method, own.get(method, "uniform"))),
        ("saving.toml", fixed.get(method, "spend-as-you-go")),
    ):
        setup = from_config(load_config(ROOT / "examples" / name, overrides))
        assert setup.method.name == method
        assert (setup.plan is None) if method == "fedavg" else (setup.plan.policy == expected)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": 1e-2}, "delta 0.001, but the config says 0.01"),
        ({"rate": 0.4}, "rate 0.5, but the config says 0.4"),
        ({"clip": 2.0}, "clip 1, but the config says 2"),
        ({"noise": "discrete"}, "for continuous noise, but the config's noise is 'discrete'"),
    ],
)
def test_a_plan_made_beforehand_has_the_terms_of_the_config(changes, said, tmp_path):
    config = small("plain", privacy={"epsilon": 5.0, "delta": 1e-3, "rate": 0.5})
    plan = from_config(config_of(config)).plan
    train(config, plan=plan, output=tmp_path / "good")
    with pytest.raises(InvalidInput, match=said):
        train(
            config | {"privacy": config["privacy"] | changes},
            plan=plan,
            output=tmp_path / "other",
        )
    assert not (tmp_path / "other").exists()
