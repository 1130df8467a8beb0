"""Training with a ledger, shot at random instants (kill -9), on every database.

FEDSPEND_KILLS=1000 python -m pytest tests/ledger/test_kills.py   shoots a thousand times: 250 each
at clients and at records, on SQLite and on PostgreSQL; `make test-full` twenty times, 5 each.
"""

import base64
import hashlib
import json
import os
import random
import signal
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from lib.configs import small, write_toml
from places import rows_of

from fedspend.ledger.audit import audit

pytestmark = pytest.mark.full


def settings_of(unit, rounds):
    """A real run of so many rounds, whose noise leaves something for the last."""
    own = {
        "client": {"privacy__transition": 4},
        "record": {"privacy__noise_multiplier": 0.9 * rounds**0.5, "method__saving_share": 0.5},
    }
    return small(unit, privacy__randomness="os", train__rounds=rounds, **own[unit])


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
@pytest.mark.parametrize("unit", ["client", "record"], ids=["clients", "records"])
def test_shot_at_random_instants(place, tmp_path, fork_server, unit, part, kills):
    rounds = 24 * kills  # more than a child plays, with one that it takes up from the one before
    write_toml(tmp_path / "run.toml", settings_of(unit, rounds))
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
        child = fork_server.start(*command, held=20)
        # while it plays rounds; else at any moment from the start
        if dice.random() < 0.7 and (folder / "metrics.jsonl").exists():
            wait_for_a_round(folder)
        wait_to_shoot(folder, dice)
        child.kill()
        assert child.wait() == -signal.SIGKILL, "the run failed before it was shot"
        entries = entries_of(place) if made(place) else []
        assert_within_budget(entries)
        assert_no_release_is_missing(folder, entries)
        if made(place):
            assert audit(place).ok
    assert fork_server.start(*command).wait() == 0
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
