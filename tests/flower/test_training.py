"""Whole runs with clients elsewhere: the same model, ledger and files as on one machine."""

import json
import os
import re
import shutil
import signal
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lib.configs import write_toml

pytest.importorskip("flwr")

from flower.consortium import CLIENTS, consortium, nodes_with_files, real, spent_at
from flower.in_process import Fault, InProcessGrid, grid_of, nodes_of

import fedspend
from fedspend.client.state import MemoryStates
from fedspend.configuration.config import any_config
from fedspend.engines.flower import line
from fedspend.engines.flower.keys import check_covers, read_keys
from fedspend.engines.flower.line import TransportFailed
from fedspend.engines.flower.wire import TASK
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.flower import server_app
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import open_node
from fedspend.flower.server_app import Asked, Remaining, serve
from fedspend.ledger import Ledger
from fedspend.runs.setup import from_config
from fedspend.server.sampling import draw_cohort
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.usefixtures("quick_verify")


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


@pytest.mark.full(but=["central"])
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


@pytest.mark.full(but=["None"])
@pytest.mark.parametrize("noise", [None, "discrete-distributed", "distributed"])
def test_a_real_run_with_keys(tiny, tmp_path, monkeypatch, noise):
    """Randomness of the system at both ends. The line breaks in the third round: it stays charged,
    is skipped, and the run ends; nothing about single clients is stored.
    """
    monkeypatch.setattr("fedspend.server.rounds.draw_cohort", somebody)
    privacy = {} if noise is None else {"noise": noise}
    server, places = consortium(tiny, tmp_path, privacy=privacy)
    assert not any(place.node.simulation for place in places.values())
    grid = InProcessGrid(places, faults={"south": Fault(drop=True)})
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
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
    for client in CLIENTS:  # everything up to the last round in which it was asked
        charged = spent_at(tmp_path, client)
        assert charged == set(range(len(charged)))
    other = (tmp_path / "keys.csv").read_text().splitlines()
    other[1] = f"north,{new_key(tmp_path)}"
    (tmp_path / "keys.csv").write_text("\n".join(other) + "\n")
    with pytest.raises(Refused, match=r"engine\.keys: client 'north' has another key"):
        fedspend.train(server, grid=grid, output=folder, resume=True)


def somebody(rates, randomness, round):
    """Drawn again until somebody is asked: of four clients at 0.8 nobody is with chance 0.0016, and
    a round of nobody does without the line that breaks.
    """
    drawn = draw_cohort(rates, randomness, round)
    return drawn if drawn.size else somebody(rates, randomness, round)


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
        "ledger": {"location": str(tmp_path / "ledger.db")},
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
        ({"method": {"name": "rpdp"}}, "silos"),
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
    # a run that is over needs nobody
    grid.places, grid.sent = {}, []
    over = fedspend.train(server, grid=grid, output=tmp_path / "run", resume=True)
    assert same_model(over, result)
    assert grid.sent == []


def test_a_grid_needs_the_engine_and_the_engine_a_grid(tiny, elsewhere):
    server, grid = elsewhere(tiny)
    with pytest.raises(InvalidInput, match="flwr run"):
        fedspend.train(server)
    with pytest.raises(InvalidInput, match=r"engine\.name is 'local'"):
        fedspend.train(tiny, grid=grid)


def test_sigterm_stops_after_the_round_and_resume_goes_on(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    path = tmp_path / "training.toml"
    write_toml(path, server)
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


def test_flower_does_not_take_a_run_that_was_stopped_for_completed(monkeypatch):
    monkeypatch.setattr(server_app, "serve", lambda *_: None)
    context = SimpleNamespace(run_config={"config": "/training.toml", "output": "/runs/first"})
    with pytest.raises(Refused, match="stopped before its end; resume=true goes on"):
        server_app.server_app()(None, context)


def test_the_log_says_when_how_far_and_how_long(tiny, elsewhere, tmp_path, caplog):
    server, grid = elsewhere(tiny)
    path = tmp_path / "training.toml"
    write_toml(path, server)
    with caplog.at_level("INFO", "fedspend"):
        serve(grid, Asked(path, tmp_path / "run"))
    assert re.search(r"round 1 of 4: accuracy [\d.]+%; less than a minute left", caplog.text)
    assert re.search(r"round 4 of 4: accuracy [\d.]+%\n", caplog.text)
    assert re.search(r"answers took [\d.]+ seconds; [\d,]+ bytes to a client", caplog.text)


def test_rounds_that_are_left_take_as_long_as_those_before():
    times = iter([0.0, 60.0, 120.0, 180.0])
    remaining = Remaining(lambda: next(times))  # of a run that is resumed after round 2 of 5
    assert remaining.after(3, 5) == ["about 2 min left"]
    assert remaining.after(4, 5) == ["about 1 min left"]
    assert remaining.after(5, 5) == []


def test_what_nodes_keep_to_themselves_is_absent_and_not_zero(tiny, elsewhere):
    server, grid = elsewhere(tiny)
    line = fedspend.train(server, grid=grid).metrics[0]
    assert line["cohort"] > 0
    assert not {"clipped_share", "mean_norm", "norm_quantiles"} & set(line)


def test_time_and_bytes_are_in_the_metrics_of_a_simulation(tiny, elsewhere):
    server, grid = elsewhere(tiny, faults={"1": Fault(drop=True), "2": Fault(delay=7.0)})
    result = fedspend.train(server, grid=grid)
    for one in result.metrics:
        assert one["answer_seconds"] >= 0
        assert 4 * 21 < one["task_bytes"] < 4 * 21 + 900  # a model of 21 numbers
        assert 8 * 21 < one["answer_bytes"] < 8 * 21 + 400
    assert max(one["answer_seconds"] for one in result.metrics) >= 7


def test_a_server_app_in_another_thread_hears_no_signals(tiny, elsewhere, tmp_path):
    server, grid = elsewhere(tiny)
    path = tmp_path / "training.toml"
    write_toml(path, server)
    asked = Asked(path, tmp_path / "run")
    found = []
    thread = threading.Thread(target=lambda: found.append(serve(grid, asked)))
    thread.start()
    thread.join(600)
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


REGRESSION = {
    "data": {"name": "diabetes", "clients": 4, "partition": "iid"},
    "model": {"name": "linear"},
    "task": {"loss": "squared"},
    "method": {"name": "idp-fedavg"},
    "privacy": {"epsilon": 20.0, "delta": 1e-2, "rate": 1.0, "accountant": "rdp"},
    "train": {"rounds": 2, "local_steps": 2, "batch_size": 8, "lr": 0.05},
}


@pytest.mark.full(only=["frozen"])
@pytest.mark.parametrize(
    "model",
    [
        {"name": "linear"},
        {"name": "fine-tune", "backbone": "mlp", "hidden": [4, 3], "rank": 1},
    ],
    ids=["linear", "frozen"],
)
def test_a_regression_is_the_same_with_clients_elsewhere(elsewhere, model):
    config = REGRESSION | {"model": model}
    there, grid = elsewhere(config)
    assert same_model(fedspend.train(there, grid=grid), fedspend.train(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {"loss": "absolute"}}, "trains for loss 'absolute', and this run for 'squared'"),
        ({"train": {"seed": 9}}, "other layers or other frozen weights"),
    ],
)
def test_a_node_with_another_loss_or_model_takes_no_part(monkeypatch, change, message):
    """A server cannot make a node descend another loss: each has its own, by its own config."""
    asked = REGRESSION | {"model": {"name": "fine-tune", "backbone": "mlp", "hidden": [4]}}
    changed = {name: values | change.get(name, {}) for name, values in asked.items()}
    grid = grid_of(from_config(any_config(changed)).workload())
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    there = asked | {"engine": {"name": "flower", "deadline": 60.0, "retries": 1}}
    with pytest.raises(InvalidInput, match=message):
        fedspend.train(there, grid=grid)
