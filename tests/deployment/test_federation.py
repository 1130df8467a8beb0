"""A real SuperLink and real SuperNodes, with TLS and node keys, on the loopback address: trained,
killed and resumed.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import fedspend
from fedspend.flower.loopback import (
    Loopback,
    descendants,
    federation,
    settings_of,
    wait_for,
)
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.stored.run import StoredRun

PROJECT = Path(__file__).parent.parent.parent / "examples" / "flower"
PATIENCE = 240.0  # seconds for whatever is waited for


def changed(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path.write_text(text)


def seed(made: Loopback, rounds: int) -> None:
    """Test mode: everybody draws from the same seed, by their own config."""
    seeded = ('randomness = "os"', 'randomness = "seeded"')
    changed(
        made.folder / "server" / "training.toml",
        seeded,
        ("rounds = 4", f"rounds = {rounds}\nseed = 3"),
    )
    for client in made.clients:
        changed(made.node(client) / "node.toml", seeded)
        (made.node(client) / "node.toml").open("a").write("\n[train]\nseed = 3\n")


def on_one_machine(made: Loopback, output: Path) -> dict[str, np.ndarray]:
    """The same training with all rows in one file."""
    lines = ["age,pressure,heart_rate,chest_pain,sick,hospital"]
    for client in made.clients:
        rows = (made.node(client) / "patients.csv").read_text().splitlines()[1:]
        lines += [f"{row},{client}" for row in rows]
    (made.folder / "server" / "all.csv").write_text("\n".join(lines) + "\n")
    text = (made.folder / "server" / "training.toml").read_text()
    text = text.partition("[ledger]")[0].replace(
        'name = "csv"', 'name = "csv"\npath = "all.csv"\nclient = "hospital"'
    )
    (made.folder / "server" / "alone.toml").write_text(text)
    fedspend.train(made.folder / "server" / "alone.toml", output=output)
    return load_file(output / "model.safetensors")


def own_entries(made: Loopback, client: str, ledger: str) -> list[dict[str, object]]:
    """What a node's own ledger says."""
    assert audit(str(made.node(client) / ledger)).ok
    with Ledger.open(made.node(client) / ledger) as book:
        (row,) = book.balances().rows()
        assert row["client"] == client
        assert row["spent"] + row["reserved"] <= row["budget"] + 1e-9
        return [json.loads(body) for _, body, _ in book.entries()]


def agree(made: Loopback, server: Path, ledger: str) -> None:
    """Both sides' ledgers tell of one run: every node has charged all rounds up to the last in
    which it was asked, and the server all of them.
    """
    with Ledger.open(server) as book:
        (run,) = book.state.runs.values()
    for client in made.clients:
        entries = own_entries(made, client, ledger)
        assert {entry["run"] for entry in entries if "run" in entry} == {run.id}
        charged = [entry["round"] for entry in entries if entry["kind"] == "reserve"]
        answered = [entry["round"] for entry in entries if entry["kind"] == "commit"]
        assert charged == list(range(len(charged)))
        assert set(charged) <= set(run.rounds)
        assert answered == sorted(set(answered))
        assert set(answered) <= set(charged)


def rounds_of(run: Path) -> int:
    return len(StoredRun(run).metrics()) if (run / "metrics.jsonl").exists() else 0


def wait_for_round(run: Path, number: int) -> None:
    end = time.monotonic() + PATIENCE
    while rounds_of(run) < number:
        assert time.monotonic() < end, f"round {number} did not come"
        time.sleep(0.2)


def server_app(made: Loopback) -> int:
    """The process of the ServerApp: of those that our SuperLink started."""
    for pid in descendants(made.running["superlink"].pid):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("there is no ServerApp")


def alive(pid: int) -> bool:
    """Whether a process is at work: one that ended and that nobody has asked about is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def log_of(made: Loopback) -> str:
    return "\n".join(path.read_text(errors="replace") for path in made.folder.glob("*.log"))


def test_a_federation_that_is_killed_and_resumed(tmp_path):
    with federation(PROJECT, tmp_path / "federation") as made:
        # The ServerApp and then the SuperLink are killed; the model is that of one machine.
        seed(made, rounds=3)
        made.approve()
        run = tmp_path / "seeded"
        again = settings_of(made.folder, run, {"resume": True})
        made.submit(**again)
        wait_for_round(run, 1)
        os.kill(server_app(made), signal.SIGKILL)
        made.submit(**again)
        wait_for_round(run, 2)
        made.restart()
        assert wait_for(made, made.submit(**again), PATIENCE) == "finished:completed", log_of(made)
        alone = on_one_machine(made, tmp_path / "alone")
        found = load_file(run / "model.safetensors")
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in alone.items()
        }
        server = made.folder / "server"
        assert audit(str(server / "ledger.db"), runs=[str(run)]).ok
        agree(made, server / "ledger.db", "ledger.db")
        assert (run / "report.html").exists()

        # A real run: a node is killed in the middle of a round, and its noise is topped up.
        real = ('randomness = "seeded"', 'randomness = "os"')
        config = made.folder / "server" / "training.toml"
        changed(config, real, ("deadline = 120", "deadline = 45\nretries = 0"))
        changed(config, ("rate = 0.8", "rate = 1.0"))  # everyone is asked
        ledger = ('location = "ledger.db"', 'location = "real.db"')
        changed(config, ledger, ('slices = "slices"', 'slices = "real-slices"'))
        for client in made.clients:
            state = ("[node]", '[node]\nstate = "real-state"')
            changed(made.node(client) / "node.toml", real, ledger, state)
        made.approve("real-slices")
        run = tmp_path / "real"
        began = made.submit(**settings_of(made.folder, run, {}))
        wait_for_round(run, 1)
        made.kill("harbour")
        assert wait_for(made, began, PATIENCE) == "finished:completed", log_of(made)
        assert rounds_of(run) == 3
        assert audit(str(server / "real.db"), runs=[str(run)]).ok
        agree(made, server / "real.db", "real.db")
        kinds = [entry["kind"] for entry in own_entries(made, "north", "real.db")]
        assert kinds.count("commit") == 3  # asked in every round
        told = made.flwr("log", began, "loopback", "--show")
        assert re.search(r"client 'harbour': (it did not answer|Flower reports|its node)", told)
        stored = (run / "metrics.jsonl").read_text()
        assert "harbour" not in stored
        ours = [process.pid for process in made.running.values()]
        ours += [pid for one in tuple(ours) for pid in descendants(one)]
        assert len(ours) > 3
    time.sleep(1)
    assert [pid for pid in ours if alive(pid)] == []
