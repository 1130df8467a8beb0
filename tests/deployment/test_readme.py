"""The README that `fedspend flower new` writes, typed command by command: a real SuperLink and real
SuperNodes, with the keys and certificates that its script makes.
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

from fedspend.flower.checking import check
from fedspend.flower.loopback import descendants, free_port
from fedspend.flower.project import Project
from fedspend.ledger.audit import audit
from fedspend.runs.verifying import verify_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
PATIENCE = 300.0  # seconds for one command


class Player:
    """Types commands in a project's folder, and ends what it has started in the background."""

    def __init__(self, folder, clients):
        self.folder, self.clients = folder, clients
        self.running, self.ports = [], {client: free_port() for client in clients}
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

    def type(self, text):
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
        assert done.returncode == 0, f"{text}\n{told}\n{self.logs()}"
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
        self.running.append(process)
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
        raise AssertionError(self.logs())

    def logs(self):
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))

    def stop(self):
        for process in reversed(self.running):
            started = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_the_readme_of_a_project_is_what_has_to_be_typed(tmp_path):
    folder = tmp_path / "consortium"
    project = Project.read(EXAMPLE / "server" / "training.toml", port=free_port())
    project.write(folder)
    config = folder / "server" / "training.toml"
    config.write_text(config.read_text().replace("rounds = 4", "rounds = 1"))
    for client in project.clients:  # "each node puts its rows where its node.toml says"
        rows = folder / "nodes" / client / "rows.csv"
        shutil.copy(EXAMPLE / "nodes" / client / "patients.csv", rows)
    readme = (folder / "README.md").read_text()
    player = Player(folder, project.clients)
    told = {}
    try:
        for who, text in re.findall(r"^```sh ([a-z ]+)\n(.*?)^```", readme, re.M | re.S):
            player.play(who, text)
            told[text.strip()] = getattr(player, "last", "")
    finally:
        player.stop()
    looked = told["sh server/run.sh look check=true"]
    assert "nothing is wrong" in looked, looked
    for client in project.clients:
        assert re.search(rf"pass  {client}: ", looked)
    run = folder / "server" / "runs" / "first"
    assert verify_run(run, ledger=folder / "server" / "ledger.db").ok
    assert audit(str(folder / "server" / "ledger.db"), runs=[str(run)]).ok
    assert (run / "report.html").exists()
    assert not (folder / "server" / "runs" / "look").exists()
    for client in project.clients:
        assert (folder / "nodes" / client / "ledger.db").stat().st_mode & 0o077 == 0
