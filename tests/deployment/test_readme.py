"""The README that `fedspend flower new` writes, typed command by command: a real SuperLink and real
SuperNodes, with the keys and certificates that its script makes, and a real run, in the middle of
which one of the nodes is killed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from deployment.watching import (
    EXAMPLE,
    PATIENCE,
    agree,
    changed,
    logs,
    rounds_in,
    rounds_of,
    wait_until,
)

from fedspend.flower.checking import check
from fedspend.flower.loopback import descendants, free_port
from fedspend.flower.project import Project
from fedspend.runs.verifying import verify_run

CLIENTS = ("north", "harbour")  # two of the three: the other test has them all


class Player:
    """Types commands in a project's folder, and ends what it has started in the background."""

    def __init__(self, folder, clients):
        self.folder, self.clients = folder, clients
        self.running, self.ports = {}, {client: free_port() for client in clients}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": programs}

    def play(self, who, text):
        side, _, background = who.partition(" ")
        for client in self.clients if side == "node" else (None,):
            own = text if client is None else text.replace(self.clients[0], client)
            if background:
                self.start(own, client)
            else:
                self.type(own)

    def type(self, text, code=0):
        done = subprocess.run(
            ["sh", "-e", "-c", text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        told = done.stdout + done.stderr
        assert done.returncode == code, f"{text}\n{told}\n{logs(self.folder)}"
        self.last = told

    def start(self, text, client):
        environment = self.environment
        if client is not None:
            environment = environment | {"FEDSPEND_NODE_PORT": str(self.ports[client])}
        with (self.folder / f"{client or 'superlink'}.log").open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {text.strip()}"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[client] = process
        if client is None:
            self.wait_for_superlink(process)

    def wait_for_superlink(self, process):
        """A check tells when it is there, by its certificate and name."""
        port = re.search(r"--port (\d+)", (self.folder / "server/superlink.sh").read_text())[1]
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            found = check(
                self.folder / "server" / "training.toml", superlink=f"localhost:{port}"
            ).checks
            if {one.check: one.good for one in found}["superlink"]:
                return
            time.sleep(0.5)
        raise AssertionError(logs(self.folder))

    def started(self, client):
        """The command lines of everything that a node has started, and that still runs."""
        found = b""
        for pid in descendants(self.running[client].pid):
            with suppress(OSError):
                found += Path(f"/proc/{pid}/cmdline").read_bytes()
        return found

    def stop(self):
        for client in reversed(tuple(self.running)):
            self.end(client, signal.SIGTERM)

    def end(self, client, how):
        """End a node, or the SuperLink, with everything that it has started."""
        process = self.running.pop(client)
        started = descendants(process.pid)
        process.send_signal(how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def written(folder):
    """A project for two of the hospitals, for two short rounds in which both are asked."""
    server = folder.parent / "server"
    shutil.copytree(EXAMPLE / "server", server)
    lines = (server / "budgets.csv").read_text().splitlines()
    kept = [lines[0], *(line for line in lines if line.partition(",")[0] in CLIENTS)]
    (server / "budgets.csv").write_text("\n".join(kept) + "\n")
    changed(
        server / "training.toml",
        ("rounds = 4", "rounds = 2"),
        ("rate = 0.8", "rate = 1.0"),
        ("deadline = 120", "deadline = 90\nretries = 0"),
    )
    project = Project.read(server / "training.toml", port=free_port())
    project.write(folder)
    for client in project.clients:  # "each node puts its rows where its node.toml says"
        rows = folder / "nodes" / client / "rows.csv"
        shutil.copy(EXAMPLE / "nodes" / client / "patients.csv", rows)
    return project


def test_the_readme_of_a_project_is_what_has_to_be_typed_and_a_node_that_dies_is_left_out(tmp_path):
    folder = tmp_path / "consortium"
    project = written(folder)
    run = folder / "server" / "runs" / "first"
    accounts = {client: folder / "nodes" / client / "ledger.db" for client in project.clients}
    readme = (folder / "README.md").read_text()
    player = Player(folder, project.clients)

    def kill_in_the_second_round():
        """When its process for that round has just started, and is far from an answer."""
        wait_until(lambda: rounds_of(run) == 1, "round 1")
        wait_until(lambda: b"flwr-clientapp" in player.started("harbour"), "work for round 2")
        player.end("harbour", signal.SIGKILL)

    killer, told = Thread(target=kill_in_the_second_round, daemon=True), {}
    try:
        for who, text in re.findall(r"^```sh ([a-z ]+)\n(.*?)^```", readme, re.M | re.S):
            if text.strip() == "sh server/run.sh first":
                killer.start()
            player.play(who, text)
            told[text.strip()] = getattr(player, "last", "")
        killer.join()
        player.type("sh server/run.sh first", code=1)  # there is such a run: refused
        assert "run.sh: first did not complete (Flower says finished:failed" in player.last
    finally:
        player.stop()
    looked = told["sh server/run.sh look check=true"]
    assert "nothing is wrong" in looked, looked
    for client in project.clients:
        assert re.search(rf"pass  {client}: ", looked)
    assert not (folder / "server" / "runs" / "look").exists()

    # The noise of the node that was killed was topped up, and everybody's books are right.
    assert rounds_of(run) == 2
    assert re.search(
        r"client 'harbour': (it did not answer|Flower reports|its node)",
        told["sh server/run.sh first"],
    )
    assert "harbour" not in (run / "metrics.jsonl").read_text()
    assert verify_run(run, ledger=folder / "server" / "ledger.db").ok
    agree(folder / "server" / "ledger.db", run, accounts)
    assert rounds_in(accounts["north"], "commit") == [0, 1]
    assert rounds_in(accounts["harbour"], "commit") == [0]
    assert (run / "report.html").exists()
    for ledger in accounts.values():
        assert ledger.stat().st_mode & 0o077 == 0
