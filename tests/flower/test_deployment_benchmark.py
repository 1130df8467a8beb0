"""benchmarks/speed/deployment.py: FedAvg has the same local work as ours, and what is written about
both is what was measured.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")  # its version stands beside what was measured

from fedspend.client.batches import step_batches
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.configuration.config import load_config
from fedspend.configuration.data_inputs import Source
from fedspend.configuration.model_inputs import build_model
from fedspend.engines.base import Workload
from fedspend.engines.local import local
from fedspend.models.flat import flat_vector, load_vector, parameter_count
from fedspend.noise.randomness import Randomness

pytestmark = pytest.mark.full

SPEED = Path(__file__).parents[2] / "benchmarks" / "speed"


def loaded(path: Path):
    """A module of the benchmarks, under another name: tests have packages of the same ones."""
    name = f"benchmark_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


deployment = loaded(SPEED / "deployment.py")
page = loaded(SPEED / "page.py")
network = loaded(SPEED / "fedavg_app" / "fedavg" / "network.py")


@pytest.fixture(scope="module", params=deployment.HIDDEN)
def project(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "project"
    deployment.make_project(folder, request.param)
    (folder / "server" / "training.toml").write_text(deployment.training(request.param, 1, 6))
    return request.param, folder


def test_both_train_the_same_model_on_the_same_rows(project):
    model, folder = project
    config = load_config(folder / "nodes" / "north" / "node.toml")
    rows = Source(config).rows
    ours, theirs = build_model(config, rows), network.network(deployment.HIDDEN[model])
    assert parameter_count(ours) == parameter_count(theirs) == deployment.parameters(model)
    load_vector(theirs, flat_vector(ours))
    features, labels = network.read_rows(folder / "nodes" / "north" / "rows.npz")
    assert (features.numpy() == rows.features).all()
    assert (labels.numpy() == rows.labels).all()
    assert torch.equal(ours(features), theirs(features))


def test_both_evaluate_on_the_same_rows(project):
    _, folder = project
    rows = Source(load_config(folder / "server" / "training.toml")).rows
    features, labels = network.read_rows(folder / "server" / "public.npz")
    assert (features.numpy() == rows.test_features).all()
    assert (labels.numpy() == rows.test_labels).all()


def test_the_server_asks_for_what_fedavg_is_told(project):
    _, folder = project
    train = load_config(folder / "server" / "training.toml").train
    asked = (train.rounds, train.local_steps, train.batch_size, train.lr)
    assert asked == (6, deployment.STEPS, deployment.BATCH, deployment.LR)


@pytest.mark.parametrize("descent", ["torch", "by-hand"])
def test_steps_on_all_rows_end_where_ours_end(descent):
    generator = torch.Generator().manual_seed(3)
    features = torch.rand((12, network.FEATURES), generator=generator) - 0.5
    labels = torch.arange(12) % network.CLASSES
    model = network.network(4)
    start = flat_vector(model).detach().clone()
    work = Workload(model, features, labels, {"north": np.arange(12)}, Randomness(0))
    shared = RoundTask(0, start.numpy(), LocalTraining(12, steps=5), 0.3, len(start))
    (reply,) = local(work, 0).run([ClientTask("north", 0, np.inf, shared)])
    load_vector(model, start)
    network.train(model, features, labels, steps=5, batch_size=12, lr=0.3, descent=descent)
    moved = (flat_vector(model) - start).detach().numpy()
    assert np.linalg.norm(moved) > 0.01
    np.testing.assert_allclose(moved, reply.contribution.vector, atol=1e-6)


@pytest.mark.parametrize(("rows", "steps", "size"), [(400, 20, 20), (400, 45, 20), (7, 5, 3)])
def test_batches_are_cut_alike(rows, steps, size):
    ours = step_batches(np.random.default_rng(0), rows, LocalTraining(size, steps=steps))
    numbers = torch.arange(rows)
    theirs = [*network.batches(numbers[:, None], numbers, steps, size)]
    assert [len(labels) for _, labels in theirs] == [len(one) for one in ours]
    passed = torch.cat([labels for _, labels in theirs])[:rows]
    assert sorted(passed.tolist()) == list(range(len(passed)))  # no row twice in a pass


def test_cpu_seconds_are_those_of_a_process_and_of_its_children_that_ended():
    assert deployment.ticks_of("7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 10 2 300 4 20 0 1 0 5") == 316
    told = sum(os.times()[:4])
    assert told <= deployment.cpu_seconds([os.getpid()]) + 0.02 <= told + 0.5
    assert deployment.cpu_seconds([2**30]) == 0  # there is no such process


def line(name, number, seconds, server=1.0, nodes=2.0):
    where = deployment.machine()
    return deployment.Round("small", name, 0, number, seconds, server, nodes, where)


def test_rounds_lie_between_marks():
    marks = [deployment.Spent(*at) for at in ((10, 1, 2), (14.5, 1.5, 5), (16, 2.5, 6.25))]
    assert deployment.rounds_between(marks, "small", "FedAvg", 0) == [
        line("FedAvg", 2, 4.5, 0.5, 3.0),
        line("FedAvg", 3, 1.5, 1.0, 1.25),
    ]


def test_the_table_has_medians_and_how_much_ours_takes_more():
    ours = [line(deployment.OURS, n, seconds) for n, seconds in ((2, 9.0), (3, 3.0), (4, 4.0))]
    plain = [line(deployment.PLAIN, n, seconds, nodes=1.5) for n, seconds in ((2, 8.0), (3, 2.0))]
    assert deployment.table([*ours, *plain])[2:] == [
        "| 7,850 numbers | fedspend | 4.0 | 3.0 | 1.0 | 2.0 |  |  |",
        "| 7,850 numbers | FedAvg | 5.0 | 2.5 | 1.0 | 1.5 | -20% | +20% |",
    ]


def test_lines_are_marked_as_they_come(tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setattr(deployment, "spent", lambda _: told.read_text())
    monkeypatch.setattr(deployment, "POLL", 0.0)
    told.write_text("1\n")
    marks = deployment.marks(None, told, 2)
    assert next(marks) == "1\n"
    told.write_text("1\n2\n")
    assert list(marks) == ["1\n2\n"]
    with pytest.raises(SystemExit, match="at once"):
        next(deployment.marks(None, told, 2))


def test_a_table_is_put_between_its_marks(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\nMARK\nold\nMARK\nafter\n")
    page.written(path, "MARK", "new")
    assert path.read_text() == "before\nMARK\nnew\nMARK\nafter\n"
    path.write_text("MARK once\n")
    with pytest.raises(SystemExit, match="no two lines"):
        page.written(path, "MARK", "new")
