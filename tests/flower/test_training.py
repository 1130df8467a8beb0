"""Whole runs with clients elsewhere: the same model, ledger and files as on one machine."""

import json
import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower.in_process import Fault, InProcessGrid, Place, grid_of, nodes_of

import fedspend
from fedspend.client.state import MemoryStates
from fedspend.configuration.config import any_config
from fedspend.engines.flower import line
from fedspend.engines.flower.keys import check_covers, read_keys
from fedspend.engines.flower.line import TransportFailed
from fedspend.engines.flower.wire import TASK
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import open_node
from fedspend.flower.server_app import Asked, serve
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.runs.setup import from_config
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.usefixtures("quick_verify")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def elsewhere(monkeypatch):
    """`elsewhere(config, faults=...)` gives the config for the server, and a grid with its clients;
    nobody waits in real time.
    """

    def made(config, **settings):
        grid = grid_of(from_config(any_config(config)).workload(), **settings)
        monkeypatch.setattr(line, "Clock", lambda: grid.clock)
        return config | {"engine": {"name": "flower", "deadline": 60.0, "retries": 1}}, grid

    return made


def parameters(result):
    return torch.nn.utils.parameters_to_vector(result.model.parameters()).detach().numpy()


def rounds_charged(folder, ledger="ledger.db"):
    with Ledger.open(folder / ledger) as book:
        entries = [json.loads(body) for _, body, _ in book.entries()]
    return {entry["round"] for entry in entries if entry["kind"] == "reserve"}


def same_model(a, b):
    return parameters(a).tobytes() == parameters(b).tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"noise": "distributed"}},
        {"privacy": {"noise": "discrete"}},
        {"privacy": {"noise": "discrete-distributed"}},
        {"privacy": {"clipping": "per-layer"}, "model": {"name": "mlp", "hidden": [5]}},
        {"model": {"name": "small-cnn"}, "data": {"name": "digits", "clients": 6}},
        {"method": {"name": "idp-fedavg"}, "shape": {"blur": 0.5, "lus": 0.4}},
        {"method": {"name": "fedavg"}},
    ],
    ids=["central", "distributed", "discrete", "both", "layers", "images", "shaped", "fedavg"],
)
def test_the_same_seed_ends_with_the_same_model(tiny, elsewhere, changes):
    config = {name: section | changes.get(name, {}) for name, section in tiny.items()}
    config |= {name: section for name, section in changes.items() if name not in config}
    if "method" in changes:
        config["privacy"].pop("saving_rate")
    if config["data"]["name"] == "digits":
        config["data"] = {"name": "digits", "clients": 6, "partition": "iid"}
        config["train"] |= {"rounds": 2, "local_steps": 1}
    alone = fedspend.train(config)
    server, grid = elsewhere(config)
    assert same_model(fedspend.train(server, grid=grid), alone)


def test_the_same_seed_ends_with_the_same_model_when_answers_are_late_or_doubled(tiny, elsewhere):
    alone = fedspend.train(tiny)
    faults = {
        "0": Fault(delay=7.0),
        "2": Fault(twice=True),
        "3": Fault(drop=True, times=1),
        "5": Fault(error=True, times=1),
    }
    server, grid = elsewhere(tiny, faults=faults)
    again = fedspend.train(server, grid=grid)
    assert same_model(again, alone)
    sent = sum(kind == TASK for kind, _, _ in grid.sent)
    assert sent > sum(line["cohort"] for line in again.metrics)  # some were asked again


def test_who_is_lost_does_not_change_what_is_charged(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny, faults={"1": Fault(drop=True)})
    result = fedspend.train(server, grid=grid, output=tmp_path / "run")
    alone = fedspend.train(tiny, output=tmp_path / "alone")
    assert [line["epsilon"] for line in result.metrics] == [
        line["epsilon"] for line in alone.metrics
    ]
    lost = [line.get("lost", 0) for line in result.metrics]
    assert max(lost) == 1
    told = [line["reports"] for line in result.metrics if line.get("lost")]
    assert told[0] == {"1": "it did not answer within 60 seconds"}


def test_a_broken_transport_stops_the_round_and_the_run_goes_on(tiny, elsewhere, tmp_path):
    alone = fedspend.train(tiny, output=tmp_path / "alone")
    server, grid = elsewhere(tiny)
    calls = {"tasks": 0}

    def broken(method):
        calls["tasks"] += method == "push_messages"
        if calls["tasks"] == 4:  # hello, and two rounds, came before
            raise ConnectionError("gone")

    grid.broken = broken
    with pytest.raises(TransportFailed, match="stays charged"):
        fedspend.train(server, grid=grid, output=tmp_path / "run")
    assert len(StoredRun(tmp_path / "run").metrics()) == 2
    assert rounds_charged(tmp_path / "run") == {0, 1, 2}  # the third has no release
    grid.broken = lambda _: None
    result = fedspend.train(server, grid=grid, output=tmp_path / "run", resume=True)
    # a simulation plays the round again: nodes answer it with the bytes that they sent before
    assert same_model(result, alone)


def real(tiny, tmp_path):
    """Own rows, real randomness: the config on one machine, the server's, and its nodes' files."""
    generator = np.random.default_rng(0)
    clients = ("north", "south", "west", "harbour")
    lines, tests = {}, []
    for n, client in enumerate(clients):
        rows = generator.normal(size=(12 + 5 * n, 3))
        lines[client] = [
            f"{','.join(f'{x:.3f}' for x in row)},{int(row.sum() > 0)}" for row in rows
        ]
        tests += lines[client][:3]
        folder = tmp_path / client
        folder.mkdir()
        (folder / "rows.csv").write_text("\n".join(["a,b,c,label", *lines[client]]) + "\n")
    (tmp_path / "all.csv").write_text(
        "a,b,c,label,client\n"
        + "".join(f"{line},{client}\n" for client in clients for line in lines[client])
    )
    (tmp_path / "public.csv").write_text("\n".join(["a,b,c,label", *tests]) + "\n")
    (tmp_path / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"{client},{8 + 4 * n}\n" for n, client in enumerate(clients))
    )
    both = {
        "model": {"name": "logistic"},
        "method": {"name": "idp-fedavg"},
        "privacy": {
            "budgets": str(tmp_path / "budgets.csv"),
            "delta": 1e-3,
            "rate": 0.8,
            "clip": 0.5,
        },
        "train": tiny["train"],
    }
    data = {"name": "csv", "classes": 2, "test_path": str(tmp_path / "public.csv")}
    return clients, both, data


def nodes_with_files(clients, both, tmp_path, **privacy):
    """A node for each client, opened from its own config and its own file."""
    places = {}
    for n, client in enumerate(clients):
        node = {
            "node": {"client": client, "state": str(tmp_path / client / "state")},
            "data": {"name": "csv", "classes": 2, "path": str(tmp_path / client / "rows.csv")},
            "model": both["model"],
            "privacy": privacy,
            "train": {"seed": both["train"]["seed"]},
        }
        places[n + 50] = Place(open_node(node))
    return places


def test_rows_stay_at_their_nodes(tiny, tmp_path, monkeypatch):
    """The server reads no client's rows, and ends with the model of one machine that has them."""
    clients, both, data = real(tiny, tmp_path)
    both["privacy"] |= {"randomness": "seeded"}
    alone = fedspend.train(
        both | {"data": data | {"path": str(tmp_path / "all.csv"), "client": "client"}}
    )
    (tmp_path / "all.csv").unlink()
    grid = InProcessGrid(nodes_with_files(clients, both, tmp_path, randomness="seeded"))
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    server = both | {"data": data, "engine": {"name": "flower"}}
    result = fedspend.train(server, grid=grid, output=tmp_path / "run")
    assert same_model(result, alone)
    kept = list((tmp_path / "north" / "state").rglob("*.safetensors"))
    assert len(kept) == 1
    assert oct(kept[0].stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("noise", [None, "discrete-distributed", "distributed"])
def test_a_real_run_with_keys(tiny, tmp_path, monkeypatch, noise):
    """Randomness of the system at both ends. The line breaks in the third round: it stays charged,
    is skipped, and the run ends; nothing about single clients is stored.
    """
    clients, both, data = real(tiny, tmp_path)
    if noise is not None:
        both["privacy"]["noise"] = noise
    places = nodes_with_files(clients, both, tmp_path)
    lines = ["client,key"]
    for client, place in zip(clients, places.values(), strict=True):
        lines.append(f"{client},{make_node_key(tmp_path / client)}")
        assert not place.node.simulation
    (tmp_path / "keys.csv").write_text("\n".join(lines) + "\n")
    for client, key in read_keys(tmp_path / "keys.csv").items():
        place = next(place for place in places.values() if place.node.client == client)
        place.key = key.encode() + b"\n"
    grid = InProcessGrid(places, faults={"south": Fault(drop=True)})
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    server = both | {
        "data": data,
        "engine": {"name": "flower", "keys": str(tmp_path / "keys.csv"), "deadline": 9.0},
        "ledger": {"location": str(tmp_path / "accounts.db")},
    }
    done = {"rounds": 0}

    def count(*_):
        done["rounds"] += 1

    def broken(method):
        if done["rounds"] == 2 and method == "pull_messages":
            raise ConnectionError("gone")

    grid.broken = broken
    folder = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        with pytest.raises(TransportFailed):
            fedspend.train(server, grid=grid, output=folder, on_round=count)
        grid.broken = lambda _: None
        result = fedspend.train(server, grid=grid, output=folder, resume=True)
    assert [line.get("skipped", False) for line in result.metrics] == [False, False, True, False]
    assert rounds_charged(tmp_path, "accounts.db") == {0, 1, 2, 3}
    stored = (folder / "metrics.jsonl").read_text()
    assert "south" not in stored
    assert "reports" not in stored
    other = (tmp_path / "keys.csv").read_text().replace(lines[1], f"north,{new_key(tmp_path)}")
    (tmp_path / "keys.csv").write_text(other)
    with pytest.raises(InvalidInput, match=r"engine\.keys"):
        fedspend.train(server, grid=grid, output=folder, resume=True)


def new_key(tmp_path):
    (tmp_path / "new").mkdir()
    return make_node_key(tmp_path / "new")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("client,key\nnorth,ssh-rsa nonsense\n", "keys.csv:2: the key of client 'north' is not"),
        ("client,key\nnorth,KEY\nsouth,KEY\n", "keys.csv:3: client 'south' has a key that"),
        ("client,key\nnorth,KEY\nnorth,OTHER\n", "listed"),
        ("name,key\nnorth,KEY\n", "client"),
    ],
)
def test_a_file_of_keys_that_is_wrong_is_refused(tmp_path, content, why):
    key = make_node_key(tmp_path)
    text = content.replace("KEY", key).replace("OTHER", make_node_key(tmp_path))
    (tmp_path / "keys.csv").write_text(text)
    with pytest.raises(InvalidInput, match=why):
        read_keys(tmp_path / "keys.csv")


def test_every_client_needs_a_key_and_nobody_else():
    check_covers({"a": "1", "b": "2"}, ("b", "a"), "keys.csv")
    with pytest.raises(InvalidInput, match="no key for client 'b'"):
        check_covers({"a": "1"}, ("a", "b"), "keys.csv")
    with pytest.raises(InvalidInput, match="client 'b' is not on the roster"):
        check_covers({"a": "1", "b": "2"}, ("a",), "keys.csv")


def test_the_nodes_of_the_example_open(tmp_path):
    nodes = Path(__file__).parents[2] / "examples" / "flower" / "nodes"
    for folder in nodes.iterdir():
        node = open_node(folder / "node.toml", states=MemoryStates())
        assert (node.client, node.simulation, node.parameters) == (folder.name, False, 10)
    shutil.copytree(nodes / "north", tmp_path / "north")
    states = open_node(tmp_path / "north" / "node.toml").answered.states
    assert states.folder == tmp_path / "north" / "state"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": {}}, "client is missing"),
        ({"node": {"client": "south"}}, "rows of client 'north', but the node is client 'south'"),
        ({"data": {"validation": 0.1}}, "a node uses all rows"),
        ({"engine": {"name": "flower"}}, "a node trains on its own machine"),
    ],
)
def test_a_node_config_that_does_not_fit_is_refused(tmp_path, changes, why):
    (tmp_path / "rows.csv").write_text("a,b,label,client\n1,2,0,north\n2,1,1,north\n")
    config = {
        "node": {"client": "north", "state": str(tmp_path / "state")},
        "data": {"name": "csv", "classes": 2, "path": str(tmp_path / "rows.csv")},
        "model": {"name": "logistic"},
    }
    open_node(config)
    for section, values in changes.items():
        config[section] = {**config.get(section, {}), **values} if values else {}
    with pytest.raises(InvalidInput, match=why):
        open_node(config)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": {"path": "rows.csv"}}, "each client keeps its own rows"),
        ({"data": {"client": "hospital"}}, "each client keeps its own rows"),
        ({"data": {"validation": 0.2}}, "no training rows here"),
        ({"data": {"partition": "iid"}}, "the clients keep theirs"),
        ({"data": {"test_path": None}}, "the server has evaluation rows only"),
        ({"privacy": {"budgets": None, "epsilon": 5.0}}, "list them in a file of budgets"),
        ({"node": {"client": "north"}}, "has no effect"),
        ({"engine": {"workers": 2}}, "has no effect"),
        ({"method": {"name": "rpdp"}}, "records"),
        ({"evaluation": {"mode": "private"}}, "clients hold out"),
    ],
)
def test_a_server_config_that_does_not_fit_is_refused(tiny, tmp_path, changes, why):
    _, both, data = real(tiny, tmp_path)
    ledger = {"location": str(tmp_path / "accounts.db")}
    config = both | {"data": data, "engine": {"name": "flower"}, "ledger": ledger}
    for section, values in changes.items():
        merged = config.get(section, {}) | values
        config[section] = {key: value for key, value in merged.items() if value is not None}
    with pytest.raises(InvalidInput, match=why):
        fedspend.train(config, grid=InProcessGrid({}), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "accounts.db").exists()


def test_a_missing_node_leaves_nothing_behind(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    del grid.places[next(iter(grid.places))]
    with pytest.raises(InvalidInput, match="the run did not begin"):
        fedspend.train(server, grid=grid, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_quorum_no_round_is_charged(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    server["engine"]["quorum"] = 1.0

    def leave(line, _rounds):
        if line["round"] == 2:
            grid.places.popitem()

    with pytest.raises(Refused, match="5 of 6 clients are connected, the quorum is 6"):
        fedspend.train(server, grid=grid, output=tmp_path / "run", on_round=leave)
    assert rounds_charged(tmp_path / "run") == {0, 1}
    grid.places = nodes_of(from_config(any_config(tiny)).workload())
    result = fedspend.train(server, grid=grid, output=tmp_path / "run", resume=True)
    assert same_model(result, fedspend.train(tiny))


def test_a_grid_needs_the_engine_and_the_engine_a_grid(tiny, elsewhere):
    server, grid = elsewhere(tiny)
    with pytest.raises(InvalidInput, match="flwr run"):
        fedspend.train(server)
    with pytest.raises(InvalidInput, match=r"engine\.name is 'local'"):
        fedspend.train(tiny, grid=grid)


def test_sigterm_stops_after_the_round_and_resume_goes_on(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    path = tmp_path / "training.toml"
    path.write_text(toml(server))
    asked = Asked.read({"config": str(path), "output": str(tmp_path / "run"), "resume": True})
    pushed = {"count": 0}

    def stop_in_round_2(method):
        pushed["count"] += method == "push_messages"
        if pushed["count"] == 3:
            pushed["count"] = 100
            os.kill(os.getpid(), signal.SIGTERM)

    grid.broken = stop_in_round_2
    before = signal.getsignal(signal.SIGTERM)
    assert serve(grid, asked) is None
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(StoredRun(tmp_path / "run").metrics()) == 2
    assert (tmp_path / "run" / "report.html").exists()
    grid.broken = lambda _: None
    assert same_model(serve(grid, asked), fedspend.train(tiny))


def toml(sections):
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        for key, value in section.items():
            if key == "groups":
                inner = ", ".join(
                    "{" + ", ".join(f"{k} = {v}" for k, v in group.items()) + "}" for group in value
                )
                lines.append(f"groups = [{inner}]")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def test_a_server_app_in_another_thread_hears_no_signals(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    path = tmp_path / "training.toml"
    path.write_text(toml(server))
    asked = Asked(path, tmp_path / "run")
    found = []
    thread = threading.Thread(target=lambda: found.append(serve(grid, asked)))
    thread.start()
    thread.join(60)
    assert same_model(found[0], fedspend.train(tiny))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"config": "training.toml", "output": "/x"},
        {"config": "/c", "output": "/x", "resume": "yes"},
        {"config": "/c", "output": "/x", "ledger": 3},
        {"config": "/c", "output": "/x", "ledger": "accounts.db"},
        {"config": "/c", "output": "/x", "project": True},
    ],
)
def test_a_run_config_that_is_not_one_is_refused(given):
    with pytest.raises(InvalidInput):
        Asked.read(given)


def test_many_random_faults_and_nobody_is_over_budget(tiny, elsewhere, tmp_path):
    """Drops, delays, errors, and a line that breaks: whatever happens, the account holds and no
    committed release is lost.
    """
    generator = np.random.default_rng(3)
    faults, began = 0, time.monotonic()
    for trial in range(6):
        wrong = {
            str(n): Fault(
                drop=bool(generator.random() < 0.3),
                delay=float(generator.choice([0.0, 5.0, 80.0])),
                error=bool(generator.random() < 0.2),
                times=float(generator.integers(1, 4)),
            )
            for n in generator.permutation(6)[:4]
        }
        server, grid = elsewhere(tiny, faults=wrong)
        left = {"calls": int(generator.integers(3, 40))}

        def broken(_method, left=left):
            left["calls"] -= 1
            if left["calls"] == 0:
                raise ConnectionError("gone")

        folder, committed = tmp_path / str(trial), []
        for _ in range(6):
            grid.broken = broken
            try:
                result = fedspend.train(server, grid=grid, output=folder, resume=True)
            except TransportFailed:
                kept = StoredRun(folder).metrics() if folder.exists() else []
                assert kept[: len(committed)] == committed
                committed = kept
                continue
            break
        assert len(result.metrics) == 4
        assert result.metrics[: len(committed)] == committed
        spent = result.plan.spent_by_schedule()[-1][result.plan.schedules.of_client]
        assert (spent <= result.plan.budget * (1 + 1e-9)).all()
        assert audit(str(folder / "ledger.db"), runs=[str(folder)]).ok
        faults += sum(place.tasks for place in grid.places.values())
    assert faults > 50
    assert time.monotonic() - began < 120
