"""What a node loads: Flower starts a process for every message, and each loads all of it again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from flower.consortium import account_of, consortium, merged, node_config
from flower.in_process import InProcessGrid

import fedspend
from fedspend.engines.flower import line
from fedspend.engines.flower.wire import read_task

pytestmark = pytest.mark.usefixtures("quick_verify")

# One message at a node.
ONE_TASK = """
import json, sys
from pathlib import Path
from fedspend.flower import client_app
from fedspend.client.task import ClientTask
from fedspend.engines.flower.wire import read_answer, task_content

node = client_app.open_node(json.loads(Path("node.json").read_text()))
answer = read_answer(node.task(task_content(ClientTask.from_bytes(Path("task").read_bytes()))))
print(json.dumps([type(answer).__name__, sorted(sys.modules)]))
"""
# planning, checking, reporting and training at the server; what is slow to load
NOT_NEEDED = (
    "scipy",
    "sklearn",
    "torch._dynamo",  # the first torch.optim loads it: a second
    "fedspend.verification",
    "fedspend.planning.making",
    "fedspend.records",
    "fedspend.report",
    "fedspend.runs",
    "fedspend.server.rounds",
    "fedspend.flower.silo",
)


class Caught(BaseException):
    """Ends the run when the first task has come."""


@pytest.mark.full
def test_a_task_loads_neither_planner_nor_checker(tiny, tmp_path, monkeypatch):
    """At a real node with an account of its own, which adds its own noise."""
    changes = {"privacy": {"rate": 1.0, "noise": "discrete-distributed"}}
    server, places = consortium(tiny, tmp_path, **changes)
    grid = InProcessGrid(places)
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)

    class Catching:
        def __init__(self, node):
            self.client, self.hello = node.client, node.hello

        def task(self, content):
            task = read_task(content)
            config = merged(
                node_config(task.client, server, tmp_path), account_of(task.client, tmp_path)
            )
            (tmp_path / "node.json").write_text(json.dumps(config))
            (tmp_path / "task").write_bytes(task.to_bytes())
            raise Caught

    for place in places.values():
        place.node = Catching(place.node)
    with pytest.raises(Caught):
        fedspend.train(server, grid=grid, output=tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", ONE_TASK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, loaded = json.loads(done.stdout)
    assert answer == "Contribution", done.stderr
    extra = [name for name in NOT_NEEDED if name in loaded]
    assert extra == []
