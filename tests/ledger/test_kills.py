"""Training with a ledger, shot at random instants (kill -9), on every database.

FEDSPEND_KILLS=1000 python -m pytest tests/ledger/test_kills.py   shoots a thousand times: 250 each
at clients and at records, on SQLite and on PostgreSQL; `make test` twenty times, 5 each.
"""

import base64
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from places import rows_of

from fedspend.ledger.audit import audit

DATA = """
[data]
name = "synthetic"
examples = 60
features = 4
classes = 2
clients = 5
[model]
name = "logistic"
"""
CLIENTS = (
    DATA
    + """
[method]
name = "time-adaptive"
[privacy]
groups = [{epsilon = 4.0, share = 1}, {epsilon = 12.0, share = 2}]
saving_rate = 0.4
transition = 4
accountant = "rdp"
delta = 1e-3
rate = 0.8
randomness = "os"
[train]
rounds = ROUNDS
local_steps = 2
batch_size = 8
lr = 0.3
"""
)

RECORDS = (
    DATA
    + """
[method]
name = "rpdp"
saving_share = 0.5
[privacy]
preferences = "three-levels"
noise_multiplier = NOISE
clip = 1.0
delta = 1e-3
randomness = "os"
[train]
rounds = ROUNDS
local_steps = 3
lr = 0.3
"""
)


class Nursery:
    """Starts `fedspend` commands in no time, by forking a process that has everything loaded."""

    def __init__(self):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        script = Path(__file__).with_name("nursery.py")
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.answer() == "ready"

    def answer(self):
        return self.process.stdout.readline().strip()

    def start(self, *argv):
        self.process.stdin.write(json.dumps([str(argument) for argument in argv]) + "\n")
        self.process.stdin.flush()
        return int(self.answer())

    def wait(self):
        return int(self.answer())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


def entries_of(place):
    """Every entry, the chain followed by hand."""
    entries, previous = [], bytes(32)
    for number, (stored_number, stored, stored_hash) in enumerate(rows_of(place), 1):
        text = bytes(stored) if bytes(stored[:1]) == b"{" else zlib.decompress(stored)
        previous = hashlib.sha256(previous + number.to_bytes(8, "big") + text).digest()
        assert (stored_number, bytes(stored_hash)) == (number, previous)
        entries.append(json.loads(text))
    return entries


def assert_within_budget(entries):
    """Replay with dp-accounting: nobody is over, whatever was reserved."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    opened = [entry for entry in entries if entry["kind"] == "open"]
    if not opened:
        return
    (run,) = opened
    (registered,) = [entry for entry in entries if entry["kind"] == "register"]
    begun = [entry["round"] for entry in entries if entry["kind"] == "reserve"]
    assert begun == list(range(len(begun))), "every round was charged once and in order"
    for own in sorted(set(run["classes"])):
        rate, noise = (series(table[own]) for table in (run["rate"], run["noise"]))
        total = None
        rounds, counts = np.unique(
            np.array([rate, noise])[:, : len(begun)], axis=1, return_counts=True
        )
        for (q, s), count in zip(rounds.T, counts, strict=True):
            if q == 0:
                continue
            part = pld.from_gaussian_mechanism(
                s, sampling_prob=q, value_discretization_interval=1e-3
            )
            part = part.self_compose(int(count) * run.get("steps", 1))
            total = part if total is None else total.compose(part)
        budgets = [
            budget
            for budget, mine in zip(registered["budgets"], run["classes"], strict=True)
            if mine == own
        ]
        assert total is None or total.get_epsilon_for_delta(registered["delta"]) <= min(budgets)


def series(column):
    return [column["all"]] * column["rounds"] if isinstance(column, dict) else column


def assert_no_release_is_missing(folder, entries):
    """Every committed release is in the checkpoint,
    or on disk and the very one that was committed.
    """
    from safetensors import safe_open

    committed = {entry["round"]: entry["release"] for entry in entries if entry["kind"] == "commit"}
    done = 0
    if (folder / "checkpoint.safetensors").exists():
        with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
            done = json.loads(file.metadata()["about"])["done"]
    waiting = [round for round in committed if round >= done]
    assert waiting in ([], [done])
    for round in waiting:
        with safe_open(folder / "release.safetensors", framework="numpy") as file:
            about = json.loads(file.metadata()["about"])
            content = (
                file.get_tensor("update").astype("<f4").tobytes() + repr(about["bit"]).encode()
            )
        assert about["round"] == round
        assert (
            base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            == committed[round]
        )


# kills of each of the four, and of one run: longer ones would mostly test how long they are
EACH = max(1, int(os.environ.get("FEDSPEND_KILLS", "20")) // 4)
PARTS = [min(25, EACH - first) for first in range(0, EACH, 25)]


@pytest.mark.parametrize(
    ("part", "kills"), list(enumerate(PARTS)), ids=[f"part {n}" for n in range(len(PARTS))]
)
@pytest.mark.parametrize("config", [CLIENTS, RECORDS], ids=["clients", "records"])
def test_shot_at_random_instants(place, tmp_path, nursery, config, part, kills):
    rounds = 24 * kills  # more than are played between two shots, however fast the machine is
    (tmp_path / "run.toml").write_text(
        config.replace("ROUNDS", str(rounds)).replace("NOISE", str(0.9 * rounds**0.5))
    )
    folder, dice = tmp_path / "run", random.Random(f"{part} of {EACH}")
    command = (
        "train",
        tmp_path / "run.toml",
        "-o",
        folder,
        "--ledger",
        place,
        "--resume",
        "--quiet",
    )
    for _ in range(kills):
        child = nursery.start(*command)
        # while it plays rounds; else at any moment from the start
        if dice.random() < 0.7 and (folder / "metrics.jsonl").exists():
            wait_for_a_round(folder)
        wait_to_shoot(folder, dice)
        os.kill(child, signal.SIGKILL)
        assert nursery.wait() == -signal.SIGKILL, "the run ended before it was shot often enough"
        entries = entries_of(place) if made(place) else []
        assert_within_budget(entries)
        assert_no_release_is_missing(folder, entries)
        if made(place):
            assert audit(place).ok
    nursery.start(*command)
    assert nursery.wait() == 0
    entries = entries_of(place)
    assert_within_budget(entries)
    kinds = [entry["kind"] for entry in entries]
    assert kinds.count("reserve") == rounds == kinds.count("commit") + kinds.count("lost")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, rounds + 1))
    lost = {entry["round"] + 1 for entry in entries if entry["kind"] == "lost"}
    assert lost == {line["round"] for line in lines if line.get("skipped")}
    assert kinds[-1] == "close"
    assert audit(place, runs=[str(folder)]).ok


def wait_to_shoot(folder, dice):
    """Up to two seconds for a run that has not begun, so that some are shot while they open it;
    once it plays rounds, not much longer than a few of them take.
    """
    last = time.monotonic() + dice.uniform(0, 2)
    while not (begun := (folder / "ledger_head.json").exists()) and time.monotonic() < last:
        time.sleep(0.002)
    if begun:
        time.sleep(dice.uniform(0, 0.12))


def made(place):
    if place.startswith("postgres"):
        import psycopg

        with psycopg.connect(place) as connection:
            return connection.execute(
                "SELECT to_regclass('fedspend_entries') IS NOT NULL"
            ).fetchone()[0]
    path = Path(place)
    return path.exists() and path.stat().st_size > 0


def wait_for_a_round(folder):
    before = (folder / "metrics.jsonl").stat().st_mtime_ns
    for _ in range(500):
        if (folder / "metrics.jsonl").stat().st_mtime_ns != before:
            return
        time.sleep(0.01)
