"""Random faults on a real SuperLink and real SuperNodes: nodes, ServerApp and SuperLink are killed,
nodes are frozen for a while. `FEDSPEND_FAULTS=20 make test-deployment` orders so many; without it
this file is not collected, since it takes some 20 seconds for each.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from deployment.test_federation import server_app
from deployment.watching import EXAMPLE, changed, logs, rounds_of

from fedspend.flower.loopback import Loopback, NotStarted, descendants, federation, settings_of
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.stored.run import StoredRun

FAULTS = int(os.environ.get("FEDSPEND_FAULTS", "1"))
ROUNDS = 2 * FAULTS + 2
BUDGETS = {"north": 8.0, "south": 12.0, "harbour": 20.0}


class Faults:
    """Orders one fault after the other, and sees that the run goes on."""

    def __init__(self, made: Loopback, run: Path, generator: np.random.Generator) -> None:
        self.made, self.generator, self.happened = made, generator, list[str]()
        self._again = settings_of(made.folder, run, {"resume": True})
        self._flower = made.submit(**self._again)
        self._due: list[tuple[float, str]] = []  # when a node comes back, or thaws

    def one(self) -> None:
        kinds = (self.node_dies, self.node_freezes, self.server_app_dies, self.power_cut)
        what = kinds[self.generator.choice(4, p=[0.4, 0.3, 0.2, 0.1])]
        client = str(self.generator.choice(self.made.clients))
        self.happened.append(f"{what.__name__} {client}")
        what(client)

    def node_dies(self, client: str) -> None:
        if client in self.made.running:
            self.thaw(client)
            self.made.kill(client)
            self._due.append((time.monotonic() + float(self.generator.uniform(0, 15)), client))

    def node_freezes(self, client: str) -> None:
        if client in self.made.running:
            self.signal(client, signal.SIGSTOP)
            self._due.append((time.monotonic() + float(self.generator.uniform(2, 30)), client))

    def server_app_dies(self, _client: str) -> None:
        with suppress(AssertionError, ProcessLookupError):
            os.kill(server_app(self.made), signal.SIGKILL)

    def power_cut(self, _client: str) -> None:
        for client in self.made.clients:
            self.thaw(client)
        self._due = []
        self.made.restart()

    def signal(self, client: str, how: signal.Signals) -> None:
        pid = self.made.running[client].pid
        for one in (pid, *descendants(pid)):
            with suppress(ProcessLookupError):
                os.kill(one, how)

    def thaw(self, client: str) -> None:
        if client in self.made.running:
            self.signal(client, signal.SIGCONT)

    def mend(self) -> None:
        """Whoever is due comes back; a run that has ended too early is started again."""
        now, waiting = time.monotonic(), self._due
        self._due = [(when, client) for when, client in waiting if when > now]
        for client in [client for when, client in waiting if when <= now]:
            if client in self.made.running:
                self.thaw(client)
            else:
                self.made.start_node(client)
        with suppress(NotStarted):
            if self.made.status(self._flower).startswith("finished"):
                self._flower = self.made.submit(**self._again)


def over_budget(location: Path) -> list[str]:
    with Ledger.open(location) as ledger:
        return [
            row["client"]
            for row in ledger.balances().rows()
            if not row["spent"] + row["reserved"] <= BUDGETS[row["client"]] * (1 + 1e-9)
        ]


def ledgers(made: Loopback) -> list[Path]:
    """The server's, and each node's own."""
    return [
        made.folder / "server" / "ledger.db",
        *(made.node(client) / "ledger.db" for client in made.clients),
    ]


def test_random_faults_take_nobody_over_budget_and_lose_no_release(tmp_path):
    generator = np.random.default_rng(FAULTS)
    with federation(EXAMPLE, tmp_path / "federation") as made:
        config = made.folder / "server" / "training.toml"
        changed(config, ("rounds = 4", f"rounds = {ROUNDS}"))
        changed(config, ("deadline = 120", "deadline = 60\nretries = 1\nask = 'everyone'"))
        made.approve()
        run, committed = tmp_path / "run", list[object]()
        faults = Faults(made, run, generator)
        end = time.monotonic() + 240 + 120 * FAULTS
        while rounds_of(run) < ROUNDS:
            assert time.monotonic() < end, f"{faults.happened}\n{logs(made.folder)}"
            time.sleep(float(generator.uniform(2, 12)))
            if len(faults.happened) < FAULTS:
                faults.one()
            faults.mend()
            kept = StoredRun(run).metrics() if (run / "metrics.jsonl").exists() else []
            assert kept[: len(committed)] == committed
            committed = kept
        assert len(faults.happened) == FAULTS
        for location in ledgers(made):
            assert over_budget(location) == []
            assert audit(str(location)).ok
        assert audit(str(ledgers(made)[0]), runs=[str(run)]).ok
        with Ledger.open(ledgers(made)[0]) as book:
            (mine,) = book.state.runs.values()
        played = {one["round"] - 1 for one in committed if not one.get("skipped")}
        assert played == {n for n, state in mine.rounds.items() if state == "committed"}
        print(faults.happened)
