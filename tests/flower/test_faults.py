"""Whole runs among random faults: servers and nodes that are killed, answers that are lost, late,
doubled or broken, a line that fails. Whatever happens, no client is over its budget, on the
server's ledger or on its own, and no committed release is lost.

`FEDSPEND_FAULTS=200` orders so many; `make test-full` has 20.
"""

import os
import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from lib.runs import Killed

pytest.importorskip("flwr")

from flower.consortium import (
    BUDGETS,
    CLIENTS,
    account_of,
    consortium,
    entries_of,
    merged,
    node_config,
)
from flower.in_process import Fault, InProcessGrid, Place, cut

import fedspend
from fedspend.engines.flower import line
from fedspend.engines.flower.line import TransportFailed
from fedspend.errors import FedspendWarning, Refused
from fedspend.flower.node import open_node
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.usefixtures("quick_verify")

FAULTS = int(os.environ.get("FEDSPEND_FAULTS", "20"))
MOST_IN_A_RUN = 10
# how the runs differ, in turn
KINDS = (
    {"engine": {"ask": "sampled"}},
    {"engine": {"ask": "everyone"}, "privacy": {"noise": "discrete-distributed"}},
    {"engine": {"ask": "everyone", "without_quorum": "release"}},
    {"engine": {"retries": 0}, "privacy": {"noise": "distributed"}},
)


class NodeKilled(BaseException):
    """Stands for a kill of a node, in the middle of its work."""


@dataclass
class Chaos(InProcessGrid):
    """A grid on which something goes wrong every few calls."""

    reopened: object = None  # client -> its node, started again
    generator: np.random.Generator = field(default_factory=np.random.default_rng)
    happened: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__post_init__()
        self.faults, self.broken, self._gone = {}, self._something, []

    def _something(self, _method):
        self._come_back()
        if len(self.happened) < MOST_IN_A_RUN and self.generator.random() < 0.25:
            kind = str(self.generator.choice(sorted(self._faults)))
            self._faults[kind](self, CLIENTS[self.generator.integers(len(CLIENTS))])

    def _answer_goes_wrong(self, client, **fault):
        self.happened.append(f"{client}: {fault}")
        place = self._place(client)
        if place is not None:
            self.faults[client] = Fault(**fault, times=place.tasks + 1)

    def _server_dies(self, _client):
        self.happened.append("the server is killed")
        raise Killed

    def _line_breaks(self, _client):
        self.happened.append("the line breaks")
        raise ConnectionError("gone")

    def _node_leaves(self, client):
        """Killed between two tasks; it is back after a few calls, as another node of Flower's."""
        self.happened.append(f"{client} is killed")
        for number in [n for n, place in self.places.items() if place.node.client == client]:
            self._gone.append((int(self.generator.integers(1, 9)), self.places.pop(number)))

    def _node_dies_at_work(self, client):
        self.happened.append(f"{client} is killed at work")
        place = self._place(client)
        if place is not None:

            def dies(_task):
                raise NodeKilled

            place.node = replace(place.node, work=dies)

    _faults = {  # noqa: RUF012
        "drop": lambda self, client: self._answer_goes_wrong(client, drop=True),
        "delay": lambda self, client: self._answer_goes_wrong(client, delay=3.0),
        "late": lambda self, client: self._answer_goes_wrong(client, delay=30.0),
        "error": lambda self, client: self._answer_goes_wrong(client, error=True),
        "twice": lambda self, client: self._answer_goes_wrong(client, twice=True),
        "cut": lambda self, client: self._answer_goes_wrong(client, change=cut_if_whole),
        "server": _server_dies,
        "line": _line_breaks,
        "leaves": _node_leaves,
        "dies": _node_dies_at_work,
    }

    def _come_back(self):
        waiting, self._gone = self._gone, []
        for calls, place in waiting:
            if calls > 0:
                self._gone.append((calls - 1, place))
            else:
                number = int(self.generator.integers(1000, 10**9))
                self.places[number] = self._restarted(place)

    def _restarted(self, place):
        return Place(self.reopened(place.node.client), place.key, place.tasks)

    def _place(self, client):
        return next((place for place in self.places.values() if place.node.client == client), None)

    def _answered(self, name):
        try:
            return super()._answered(name)
        except NodeKilled:
            number = self._waiting.pop(name)[0].metadata.dst_node_id if name in self._waiting else 0
            for node in [number] if number in self.places else list(self.places):
                self.places[node] = self._restarted(self.places[node])
            return []


def cut_if_whole(content):
    return cut(content) if len(content["fedspend.arrays"]) else content  # a refusal has none


def within_budgets(folder):
    with Ledger.open(folder / "accounts.db") as ledger:
        for row in ledger.balances().rows():
            assert row["spent"] + row["reserved"] <= BUDGETS[row["client"]] * (1 + 1e-9)
    for client in CLIENTS:
        with Ledger.open(folder / client / "ledger.db") as ledger:
            (row,) = ledger.balances().rows()
        assert row["client"] == client
        assert row["spent"] + row["reserved"] <= BUDGETS[client] * (1 + 1e-9)
        assert audit(str(folder / client / "ledger.db")).ok


def released(folder):
    """The rounds whose releases the server's ledger has."""
    return {one["round"] for one in entries_of(folder / "accounts.db") if one["kind"] == "commit"}


def play(server, grid, folder):
    """Until the run has ended, however often it is killed."""
    committed, releases = [], set()
    for _ in range(6 * MOST_IN_A_RUN):
        try:
            return fedspend.train(server, grid=grid, output=folder / "run", resume=True), releases
        except (Killed, TransportFailed, Refused):
            pass
        if not (folder / "run" / "metrics.jsonl").exists():
            continue
        kept = StoredRun(folder / "run").metrics()
        assert kept[: len(committed)] == committed
        assert releases <= released(folder)
        committed, releases = kept, released(folder)
        within_budgets(folder)
    raise AssertionError(f"the run did not end: {grid.happened}")


@pytest.mark.full
def test_random_faults_take_nobody_over_budget_and_lose_no_release(tiny, tmp_path, monkeypatch):
    happened, trial = [], 0
    while len(happened) < FAULTS:
        folder = tmp_path / str(trial)
        folder.mkdir()
        changes = KINDS[trial % len(KINDS)]
        server, places = consortium(tiny, folder, **changes)

        def reopened(client, folder=folder, server=server):
            config = merged(node_config(client, server, folder), account_of(client, folder))
            return open_node(config)

        grid = Chaos(places, reopened=reopened, generator=np.random.default_rng(trial))
        monkeypatch.setattr(line, "Clock", lambda grid=grid: grid.clock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedspendWarning)
            result, releases = play(server, grid, folder)
        assert len(result.metrics) == 4
        assert releases <= released(folder)
        played = {one["round"] - 1 for one in result.metrics if not one.get("skipped")}
        assert played == released(folder)
        within_budgets(folder)
        assert audit(str(folder / "accounts.db"), runs=[str(folder / "run")]).ok
        assert grid.happened
        happened += grid.happened
        trial += 1
    kinds = {what.partition(": ")[2] or what.partition(" is ")[2] or what for what in happened}
    # of ten kinds; 20 faults are of three at most with chance 120 * 0.3**20 < 1e-8
    assert len(kinds) > 3
