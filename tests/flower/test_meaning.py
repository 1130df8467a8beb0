"""A node to which the numbers of a row mean something else than to the server, or to another node,
does not train along.
"""

import pytest

pytest.importorskip("flwr")

from dataclasses import replace

import numpy as np
from contracts.workshop import Data, logistic
from flower.in_process import InProcessGrid, Place, grid_of

import fedspend
from fedspend.engines.base import Elsewhere, Patience
from fedspend.engines.flower import line
from fedspend.engines.flower.engine import FlowerEngine
from fedspend.errors import InvalidInput
from fedspend.flower.node import open_node

pytestmark = pytest.mark.usefixtures("quick_verify")

CLIENTS = ("north", "south", "harbour")
ROWS = "age,weight,blood,sick\n30,60,A,no\n70,90,B,yes\n50,50,A,yes\n"
DATA = {
    "name": "csv",
    "bounds": {"age": [0, 100], "weight": [0, 200]},
    "categories": {"blood": ["A", "B"]},
    "label": "sick",
    "labels": ["no", "yes"],
}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`trained(north={...})` trains where the node of north has other settings."""

    def run(server=None, **changes):
        (tmp_path / "budgets.csv").write_text(
            "client,epsilon\n" + "".join(f"{client},9\n" for client in CLIENTS)
        )
        (tmp_path / "public.csv").write_text(ROWS)
        places = {}
        for n, client in enumerate(CLIENTS):
            own = {"data": {}, "model": {}, "rows": ROWS} | changes.get(client, {})
            (tmp_path / f"{client}.csv").write_text(own["rows"])
            data = DATA | {"path": str(tmp_path / f"{client}.csv")} | own["data"]
            config = {
                "node": {"client": client, "state": str(tmp_path / client)},
                "data": {key: value for key, value in data.items() if value is not None},
                "model": {"name": "logistic"} | own["model"],
                "privacy": {"randomness": "seeded"},
            }
            places[n + 50] = Place(open_node(config))
        grid = InProcessGrid(places)
        monkeypatch.setattr(line, "Clock", lambda: grid.clock)
        config = {
            "data": DATA | {"test_path": str(tmp_path / "public.csv")} | (server or {}),
            "model": {"name": "logistic"},
            "method": {"name": "idp-fedavg"},
            "privacy": {
                "budgets": str(tmp_path / "budgets.csv"),
                "delta": 1e-3,
                "rate": 0.8,
                "randomness": "seeded",
            },
            "train": {"rounds": 1, "local_steps": 1, "batch_size": 2, "lr": 0.1},
            "engine": {"name": "flower", "deadline": 60.0},
        }
        return fedspend.train(config, grid=grid, output=tmp_path / "run")

    return run


def test_the_same_declarations_train(trained):
    """Also where another order of the file, or another spelling, means the same."""
    other = "sick,blood,weight,age\nno,A,60,30\nyes,B,90,70\n"
    columns = {"columns": ["age", "weight", "blood"]}
    result = trained(
        north={"data": {"bounds": {"weight": [0.0, 200.0], "age": [0, 1e2]}}},
        south={"data": columns, "rows": other},
    )
    assert len(result.metrics) == 1


@pytest.mark.parametrize(
    ("changes", "part", "keys"),
    [
        ({"data": {"bounds": {"age": [0, 120], "weight": [0, 200]}}}, "bounds", "data.bounds"),
        ({"data": {"bounds": None}}, "bounds", "data.bounds"),
        ({"data": {"categories": {"blood": ["B", "A"]}}}, "levels", "data.categories"),
        ({"data": {"labels": ["yes", "no"]}}, "labels", "data.labels"),
        ({"data": {"columns": ["weight", "age", "blood"]}}, "columns", "data.columns"),
        (
            {"rows": "weight,age,blood,sick\n60,30,A,no\n90,70,B,yes\n"},
            "columns",
            "the header of the file",
        ),
        ({"data": {"other": ["blood"]}}, "levels, shape", "data.other"),
    ],
)
def test_a_node_that_means_something_else_is_named_and_nothing_begins(
    trained, tmp_path, changes, part, keys
):
    with pytest.raises(InvalidInput) as raised:
        trained(south=changes)
    told = str(raised.value)
    assert "client 'south', declares its data otherwise than this server does" in told
    assert f"in {part}: compare " in told
    assert keys in told
    assert told.endswith("the run did not begin")
    assert not (tmp_path / "run").exists()


def arrays(tmp_path, name, shape=(3, 4), **options):
    """The settings of a node with an NPZ file."""
    path = tmp_path / f"{name}.npz"
    np.savez(path, features=np.ones(shape, np.float32), label=np.zeros(shape[0], np.int64))
    drop = dict.fromkeys(("bounds", "categories", "labels", "label"))
    return {"data": drop | {"name": "npz", "path": str(path), "classes": 2} | options}


def test_what_the_server_does_not_declare_is_compared_between_nodes(trained, tmp_path):
    """The server has a table, and the bounds of arrays are the nodes' own."""
    both = {
        "north": arrays(tmp_path, "north", bounds=[0, 10]),
        "south": arrays(tmp_path, "south", bounds=[0, 10]),
    }
    assert len(trained(**both).metrics) == 1


def test_a_node_that_is_put_right_and_comes_back_is_taken_with_those_it_kept_out():
    """In a run that goes on: the first to speak was the wrong one."""
    work = Data(sizes=(4, 9)).work(logistic())
    grid = grid_of(work)
    (wrong, first), (right, second) = grid.places.items()
    first.node = replace(first.node, meaning="scale=1")
    second.node = replace(second.node, meaning="scale=2")
    grid.slow = {second.node.client: 1.0}
    there = Elsewhere(grid, Patience(deadline=10.0), begun=True)
    engine = FlowerEngine(replace(work, elsewhere=there), grid.clock)
    engine.reach()
    grid.clock.sleep(2.0)
    engine.reach()
    assert set(engine._nodes.problems) == {right}
    del grid.places[wrong]
    engine.reach()  # who was kept out stands for its client again
    assert engine._nodes.problems == {}
    grid.places[wrong + 1] = Place(replace(first.node, meaning="scale=2"))
    engine._nodes.wait_for(2, 10.0)
    assert engine._nodes.missing == ()
    assert engine._nodes.problems == {}


def test_nodes_that_differ_from_each_other_do_not_begin(trained, tmp_path):
    with pytest.raises(InvalidInput, match=r"client 'south', declares .* than client 'north'"):
        trained(
            north=arrays(tmp_path, "north", bounds=[0, 10]),
            south=arrays(tmp_path, "south", bounds=[0, 255]),
        )
    assert not (tmp_path / "run").exists()
