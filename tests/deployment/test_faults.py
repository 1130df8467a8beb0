"""Random faults on a real SuperLink and real SuperNodes: nodes, ServerApp and SuperLink are killed,
nodes are frozen for a while. `FEDSPEND_FAULTS=20 make test-deployment` orders so many; without it
this file is not collected, since it takes some 40 seconds for each.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from deployment.test_federation import server_app
from deployment.watching import EXAMPLE, agree, changed, logs, rounds_in, rounds_of

from fedspend.flower.loopback import Loopback, NotStarted, descendants, federation, settings_of
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.runs.verifying import verify_run
from fedspend.stored.run import StoredRun

FAULTS = int(os.environ.get("FEDSPEND_FAULTS", "1"))
KINDS = ("node_dies", "node_freezes", "server_app_dies", "power_cut")
SHARES = (4, 3, 2, 1)  # of the kinds, among ten faults
ROUNDS = 10 * FAULTS + 2  # enough for all of them; three rounds after the last, it is over
BUDGETS = {"north": 8.0, "south": 12.0, "harbour": 20.0}
STARTING = 30.0  # seconds after which a run that was submitted should have a process
AGAIN = 20.0  # seconds after which a node that was turned away tries again


class Faults:
    """Orders one fault after the other, and sees that the run goes on."""

    def __init__(self, made: Loopback, run: Path, generator: np.random.Generator) -> None:
        self.made, self.run, self.generator = made, run, generator
        self.happened, self.enough = list[str](), ROUNDS  # rounds after which all has been seen
        shares = np.repeat(np.arange(len(KINDS)), SHARES)
        self.to_come = [KINDS[one] for one in generator.permutation(np.resize(shares, FAULTS))]
        self._again = settings_of(made.folder, run, {"resume": True})
        self._due: dict[str, float] = {}  # when a node comes back, thaws, or is looked after
        self._submit()

    def _submit(self) -> None:
        self._flower, self._since = self.made.submit(**self._again), time.monotonic()

    def one(self) -> None:
        """The next fault, if it can happen now. One node is away at a time, or there would be no
        rounds for lack of a quorum; processes of the server are killed at any time.
        """
        kind, client = self.to_come[0], str(self.generator.choice([*self.made.clients]))
        of_node = kind.startswith("node")
        if of_node and not all(map(self.well, self.made.clients)):
            return
        if getattr(self, kind)(client):
            self.to_come.pop(0)
            self.happened.append(f"{kind} {client}" if of_node else kind)
            if not self.to_come:
                self.enough = rounds_of(self.run) + 3

    def node_dies(self, client: str) -> bool:
        self.made.kill(client)
        self._due[client] = time.monotonic() + float(self.generator.uniform(0, 15))
        return True

    def node_freezes(self, client: str) -> bool:
        self.signal(client, signal.SIGSTOP)
        self._due[client] = time.monotonic() + float(self.generator.uniform(2, 30))
        return True

    def server_app_dies(self, _client: str) -> bool:
        with suppress(AssertionError, OSError):
            os.kill(server_app(self.made), signal.SIGKILL)
            self._submit()
            return True
        return False

    def power_cut(self, _client: str) -> bool:
        self._due = {}
        self.made.restart()
        self._submit()
        return True

    def well(self, client: str) -> bool:
        running = self.made.running.get(client)
        return client not in self._due and running is not None and running.poll() is None

    def signal(self, client: str, how: signal.Signals) -> None:
        pid = self.made.running[client].pid
        for one in (pid, *descendants(pid)):
            with suppress(ProcessLookupError):
                os.kill(one, how)

    def mend(self) -> None:
        """Whoever is due comes back; a run that has ended too early is started again."""
        now = time.monotonic()
        for client in self.made.clients:
            running = self.made.running.get(client)
            if now < self._due.get(client, 0.0):
                continue
            if running is None or running.poll() is not None:
                # Flower turns a node away while it counts its last process as connected: a minute
                self.made.start_node(client)
                self._due[client] = now + AGAIN
            elif self._due.pop(client, None) is not None:
                self.signal(client, signal.SIGCONT)
        with suppress(AssertionError, OSError):
            server_app(self.made)
            return
        if now > self._since + STARTING:
            with suppress(NotStarted):
                if self.made.status(self._flower).startswith("finished"):
                    self._submit()

    def thaw(self) -> None:
        """Frozen processes do not hear that they should end."""
        for client in self.made.running:
            self.signal(client, signal.SIGCONT)


def over_budget(location: Path) -> list[str]:
    with Ledger.open(location) as ledger:
        return [
            row["client"]
            for row in ledger.balances().rows()
            if not row["spent"] + row["reserved"] <= BUDGETS[row["client"]] * (1 + 1e-9)
        ]


def test_random_faults_take_nobody_over_budget_and_lose_no_release(tmp_path):
    generator = np.random.default_rng(FAULTS)
    with federation(EXAMPLE, tmp_path / "federation") as made:
        config = made.folder / "server" / "training.toml"
        changed(config, ("rounds = 4", f"rounds = {ROUNDS}"))
        changed(config, ("deadline = 120", "deadline = 40\nretries = 1\nask = 'everyone'"))
        made.approve()
        run, committed = tmp_path / "run", list[object]()
        faults = Faults(made, run, generator)
        end = time.monotonic() + 300 + 120 * FAULTS
        try:
            while not (run / "report.html").exists() and rounds_of(run) < faults.enough:
                said = f"{faults.happened}, {rounds_of(run)} rounds"
                assert time.monotonic() < end, f"{said}\n{logs(made.folder)}"
                time.sleep(float(generator.uniform(2, 12)))
                if run.exists() and faults.to_come:
                    faults.one()
                faults.mend()
                kept = StoredRun(run).metrics() if (run / "metrics.jsonl").exists() else []
                assert kept[: len(committed)] == committed
                committed = kept
        finally:
            faults.thaw()
    server = made.folder / "server" / "ledger.db"
    accounts = {client: made.node(client) / "ledger.db" for client in made.clients}
    print({kind: sum(one.startswith(kind) for one in faults.happened) for kind in KINDS})
    print(faults.happened)
    assert len(faults.happened) == FAULTS
    for ledger in (server, *accounts.values()):
        assert over_budget(ledger) == []
        assert audit(str(ledger)).ok
    agree(server, run, accounts)
    kept = StoredRun(run).metrics()
    print([(one["round"], one.get("skipped", False)) for one in kept])
    assert kept[: len(committed)] == committed
    played = {one["round"] - 1 for one in kept if not one.get("skipped")}
    entered = set(rounds_in(server, "commit"))
    # the end may have come between the entry of a release and the line about it
    assert played <= entered
    assert len(entered - played) <= 1
    if (run / "report.html").exists():
        assert verify_run(run, ledger=server).ok
