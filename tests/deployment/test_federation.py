"""A real SuperLink and real SuperNodes, with TLS and node keys, on the loopback address: ServerApp
and SuperLink are killed, and the model is still that of one machine, bit for bit.
"""

import os
import signal
from pathlib import Path

import numpy as np
from deployment.watching import (
    EXAMPLE,
    PATIENCE,
    agree,
    alive,
    changed,
    logs,
    wait_for_rounds,
    wait_until,
)
from safetensors.numpy import load_file

import fedspend
from fedspend.flower.loopback import Loopback, descendants, federation, settings_of, wait_for


def seed(made: Loopback, rounds: int) -> None:
    """Test mode: everybody draws from the same seed, by their own config. No round begins before
    all are connected: who is late would be left out, and the model another one.
    """
    seeded = ('randomness = "os"', 'randomness = "seeded"')
    changed(
        made.folder / "server" / "training.toml",
        seeded,
        ("rounds = 4", f"rounds = {rounds}\nseed = 3"),
        ("deadline = 120", "deadline = 240\nquorum = 1.0"),
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


def server_app(made: Loopback) -> int:
    """The process of the ServerApp: of those that our SuperLink started."""
    for pid in descendants(made.running["superlink"].pid):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("there is no ServerApp")


def test_a_federation_that_is_killed_and_resumed_ends_with_the_model_of_one_machine(tmp_path):
    with federation(EXAMPLE, tmp_path / "federation") as made:
        seed(made, rounds=3)
        made.approve()
        run = tmp_path / "run"
        again = settings_of(made.folder, run, {"resume": True})
        wait_for_rounds(made, made.submit(**again), run, 1)
        os.kill(server_app(made), signal.SIGKILL)
        wait_for_rounds(made, made.submit(**again), run, 2)
        made.restart()
        status, _ = wait_for(made, made.submit(**again), PATIENCE)
        assert status == "finished:completed", logs(made.folder)
        ours = [process.pid for process in made.running.values()]
        ours += [pid for one in tuple(ours) for pid in descendants(one)]
        assert len(ours) > 3
    alone = on_one_machine(made, tmp_path / "alone")
    found = load_file(run / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in alone.items()
    }
    accounts = {client: made.node(client) / "ledger.db" for client in made.clients}
    agree(made.folder / "server" / "ledger.db", run, accounts)
    assert (run / "report.html").exists()
    wait_until(lambda: not any(alive(pid) for pid in ours), "the end of all processes", 60.0)
