"""Files of version 0.1.0 open, verify and go on.

Guarantee: every plan loads, verifies, and is what planning gives today; every ledger opens and says
what it said; every run directory can be reported on, and those that were cut off go on to their
end: seeded ones to the model of the uninterrupted run.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from before.old_files import FILES, LEDGERS, PLACEHOLDER, PLANS, RUNS, WHOLE, copied
from before.probed import check_same, machine, same_machine
from before.since import as_it_was
from safetensors.numpy import load_file

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:noise on a class")]
LOST = "real-killed-without-release"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Copies of the old files, in the working directory."""
    folder = copied(tmp_path)
    monkeypatch.chdir(folder)
    return folder


def same(found: object, stored: object, tolerance: float) -> bool:
    """The same document, with numbers up to a relative tolerance. Later versions may tell more,
    never something else.
    """
    if isinstance(stored, dict) and isinstance(found, dict):
        return all(key in found and same(found[key], stored[key], tolerance) for key in stored)
    if isinstance(stored, list) and isinstance(found, list):
        return len(found) == len(stored) and all(
            map(same, found, stored, [tolerance] * len(stored))
        )
    if isinstance(stored, float) and isinstance(found, int | float):
        return math.isclose(found, stored, rel_tol=tolerance, abs_tol=tolerance)
    return found == stored


def test_nothing_here_was_made_for_one_place_only():
    """A placeholder stands where a folder was, and no database was left open."""
    kept = [path for path in FILES.rglob("*") if path.is_file()]
    assert {path.name for path in kept if PLACEHOLDER.encode() in path.read_bytes()} == {"run.json"}
    assert not [path for path in kept if path.name.endswith(("-wal", "-shm"))]
    assert {path.name for path in (FILES / "plans").iterdir()} == {*PLANS}
    assert {path.name for path in (FILES / "runs").iterdir()} == {*RUNS}
    assert {path.name for path in (FILES / "ledgers").glob("*.db")} == {*LEDGERS}
    assert sum(path.stat().st_size for path in kept) < 1_500_000


# --- plans ---


@pytest.mark.parametrize("name", PLANS)
def test_an_old_plan_verifies(run, files, name):
    outcome = run("verify", files / "plans" / name, "--json")
    assert outcome.code == 0, outcome
    assert json.loads(outcome.out)["ok"] is True


def content(path: Path) -> dict:
    body = path.read_bytes()
    return json.loads(gzip.decompress(body) if path.suffix == ".gz" else body)


def by_round(document: object) -> object:
    """With one number for every round in place of pairs of a number and how often it comes: last
    bits decide what comes twice.
    """
    if isinstance(document, dict):
        return {key: by_round(value) for key, value in document.items()}
    if not isinstance(document, list):
        return document
    if document and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], int) for pair in document
    ):
        return [value for value, times in document for _ in range(times)]
    return [by_round(value) for value in document]


@pytest.mark.parametrize("name", PLANS)
def test_planning_gives_the_old_plan_again(run, files, name):
    """To twelve digits, as curves of costs are added up in another order since, or to six where
    functions round otherwise.
    """
    with as_it_was(discrete=True):  # how discrete noise is read has improved since
        outcome = run("plan", *PLANS[name], "-o", f"again-{name}", "--quiet")
    assert outcome.code == 0, outcome
    found, stored = content(files / f"again-{name}"), content(files / "plans" / name)
    del stored["hash"], stored["version"]  # of the whole document, which may have more in it by now
    assert same(by_round(found), by_round(stored), 1e-12 if same_machine() else 1e-6), (
        f"{name}, compared {machine()}"
    )


# --- ledgers ---


@pytest.fixture
def expected():
    return json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", LEDGERS)
def test_an_old_ledger_says_what_it_said(run, files, expected, name):
    place, unit = ("--ledger", files / "ledgers" / name), ("--unit", LEDGERS[name])
    for action in ("show", "balance", "history"):
        outcome = run("ledger", action, *place, *unit)
        assert outcome.code == 0, outcome
    balances = json.loads(run("ledger", "balance", *place, *unit, "--json").out)
    assert len(balances) == len(expected[name]["balances"])
    for found, stored in zip(balances, expected[name]["balances"], strict=True):
        # a record is called a record by now; it was called a client
        renamed = {
            LEDGERS[name] if key == "client" else key: value for key, value in stored.items()
        }
        assert same(found, renamed, 1e-9), (found, renamed)
    history = json.loads(run("ledger", "history", *place, *unit, "--json").out)
    assert [line["kind"] for line in history] == expected[name]["history"]


@pytest.mark.parametrize("name", LEDGERS)
def test_an_old_ledger_verifies_and_can_be_written_to(run, files, expected, name):
    place = ("--ledger", files / "ledgers" / name)
    outcome = run("ledger", "verify", *place)
    assert outcome.code == 0, outcome
    head = json.loads(run("ledger", "verify", *place, "--json").out)["head"]
    assert head == expected[name]["head"]
    who = {"simulated.db": "0", "named.db": "east", "records.db": "0"}[name]
    outcome = run(
        "ledger",
        "change",
        who,
        "--epsilon",
        50,
        "--reason",
        "new form",
        *place,
        "--unit",
        LEDGERS[name],
    )
    assert outcome.code == 0, outcome
    assert run("ledger", "verify", *place, "--head", head).code == 0


def test_the_named_ledger_is_about_four_clients_of_whom_one_withdrew(expected):
    """That the evidence is what it is meant to be."""
    lines = {line["client"]: line for line in expected["named.db"]["balances"]}
    assert {name: line["budget"] for name, line in lines.items()} == {
        "north": 1,
        "south": 2,
        "east": 20,
        "west": 30,
    }
    assert [name for name, line in lines.items() if line["withdrawn"]] == ["south"]
    assert all(0 < line["spent"] < line["budget"] for line in lines.values())
    assert [line["client"] for line in expected["simulated.db"]["balances"]] == [
        str(number) for number in range(6)
    ]


# --- run directories ---


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_can_be_reported_on(run, files, name):
    outcome = run("report", files / "runs" / name)
    assert outcome.code == 0, outcome
    page = (files / "runs" / name / "report.html").read_text()
    assert "<html" in page
    assert os.path.realpath(files) not in page, "a report may be handed on"


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_goes_on_to_its_end(run, files, name):
    config, finished = RUNS[name]
    folder, before = files / "runs" / name, lines(files / "runs" / name)
    assert finished or len(before) == 2
    outcome = run("train", config, "-o", folder, "--resume", "--quiet")
    assert outcome.code == 0, outcome
    after = lines(folder)
    assert [line["round"] for line in after] == list(
        range(1, (4 if "local_steps = 5" in Path(config).read_text() else 5) + 1)
    )
    assert after[: len(before)] == before, "rounds that were committed are not told again"
    assert [line["round"] for line in after if line.get("skipped")] == ([3] if name == LOST else [])
    assert (folder / "model.safetensors").exists()
    if (folder / "ledger.db").exists():
        assert run("ledger", "verify", "--ledger", folder / "ledger.db", "--runs", folder).code == 0
    assert run("report", folder).code == 0


@pytest.mark.parametrize("name", WHOLE)
def test_an_old_seeded_run_ends_with_the_model_of_the_uninterrupted_one(run, files, name):
    folder, whole = files / "runs" / name, files / "runs" / WHOLE[name]
    with as_it_was(discrete=False):  # the noise on bits is drawn in another way since
        assert run("train", RUNS[name][0], "-o", folder, "--resume", "--quiet").code == 0
    found, stored = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    assert found.keys() == stored.keys()
    for key in stored:
        check_same(found[key], stored[key], f"{key} of {name}")
    accuracies = [
        np.array([line["accuracy"] for line in lines(where)]) for where in (folder, whole)
    ]
    check_same(*accuracies, f"accuracy of {name}")


@pytest.mark.parametrize("name", [name for name, (_, finished) in RUNS.items() if finished])
def test_an_old_seeded_run_gives_the_same_model_from_the_start(run, files, name):
    with as_it_was(discrete=False):
        assert run("train", RUNS[name][0], "-o", "again", "--quiet").code == 0
    found, stored = (
        load_file(files / "again" / "model.safetensors"),
        load_file(files / "runs" / name / "model.safetensors"),
    )
    for key in stored:
        check_same(found[key], stored[key], f"{key} of {name}")


def test_the_run_of_the_named_ledger_is_charged_there(run, files, expected):
    """Its rounds were planned with what was left; at the end no client has spent more than its
    lifetime budget.
    """
    place = ("--ledger", files / "ledgers" / "named.db")
    assert run("train", "rest.toml", "-o", "runs/named-stopped", "--resume", "--quiet").code == 0
    assert run("ledger", "verify", *place, "--runs", "runs/named-stopped").code == 0
    after = {
        line["client"]: line for line in json.loads(run("ledger", "balance", *place, "--json").out)
    }
    for before in expected["named.db"]["balances"]:
        line = after[before["client"]]
        assert line["spent"] <= line["budget"] == before["budget"]
        assert (line["spent"] == pytest.approx(before["spent"])) == (before["client"] == "south")
