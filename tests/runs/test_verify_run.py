"""`fedspend verify RUN_DIR`: passes for every kind of run, and notices any change to any file."""

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from before.old_files import RUNS, copied
from lib.configs import small
from lib.runs import killed, stopped
from lib.verdicts import remembering
from owners import verify_run

from fedspend import train
from fedspend.basics.files import one_at_a_time
from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.planning.plan import Plan
from fedspend.report.html import write_report
from fedspend.stored.files import FILES, OLD_NORMS, REPORT

pytestmark = pytest.mark.filterwarnings("ignore:noise on a class")


VERIFY = remembering(Plan.verify)


@pytest.fixture(autouse=True)
def quick_accountants(monkeypatch):
    """The accountants read each plan once: what they find depends on the plan alone."""
    monkeypatch.setattr(Plan, "verify", VERIFY)


def finished(config, folder, **options):
    train(config, output=folder, **options)
    write_report([folder], REPORT.of(folder))
    return folder


def failed(result):
    return {one.check: one.words for one in result.checks if one.good is False}


def notes(result):
    return {one.check: one.words for one in result.checks if one.good is None}


# --- runs that pass ---


def test_a_finished_run_passes_and_everything_is_checked(tiny, tmp_path):
    result = verify_run(finished(tiny, tmp_path / "run"))
    assert result.ok, failed(result)
    assert set(notes(result)) == {"signature"}, "nobody signed it"
    assert result.plan.ok
    assert result.simulation is True


@pytest.mark.full
def test_a_real_run_on_a_ledger_of_its_own_passes(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    folder = finished(tiny, tmp_path / "run", ledger=tmp_path / "accounts.db")
    result = verify_run(folder)
    assert result.ok, failed(result)
    assert result.simulation is False
    assert set(notes(result)) == {"signature"}
    (tmp_path / "accounts.db").rename(tmp_path / "moved.db")
    (tmp_path / "accounts.db.head").rename(tmp_path / "moved.db.head")
    gone = verify_run(folder)
    assert not gone.ok
    assert "--ledger" in failed(gone)["ledger"]
    assert "not checked, because the ledger" in notes(gone)["account"]
    assert verify_run(folder, ledger=tmp_path / "moved.db").ok


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "ae-dpfl"])
def test_runs_of_records_and_of_votes_pass(tiny, tmp_path, method):
    tiny["method"] = {"name": method}
    del tiny["privacy"]["saving_rate"]
    if method == "ae-dpfl":
        tiny["votes"] = {"queries": 1}
        tiny["data"]["public_share"] = 0.3
        for key in ("server_momentum", "tail_average"):
            del tiny["train"][key]
    else:
        tiny["privacy"] = {"preferences": "three-levels", "noise_multiplier": 2.0, "delta": 1e-3}
        tiny["privacy"]["clip"] = 1.0
        del tiny["train"]["batch_size"]
    result = verify_run(finished(tiny, tmp_path / "run"))
    assert result.ok, failed(result)


def test_an_interrupted_run_passes_and_says_what_is_not_tied_yet(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    result = verify_run(folder)
    assert result.ok, failed(result)
    assert "when the next round begins" in notes(result)["checkpoint"]
    train(tiny, output=folder, resume=True)
    assert verify_run(folder).ok


@pytest.mark.full(only=["play"])
@pytest.mark.parametrize("when", ["play", "kept"])
def test_a_killed_run_passes(tiny, tmp_path, when):
    """Killed while a round was under way, and after its release was stored."""
    tiny["privacy"]["randomness"] = "os"
    folder = stopped(tiny, tmp_path / "run", ledger=tmp_path / "accounts.db")
    with killed(at=when):
        train(tiny, output=folder, resume=True)
    result = verify_run(folder)
    assert result.ok, failed(result)
    train(tiny, output=folder, resume=True, replan=True)
    result = verify_run(folder)
    assert result.ok, failed(result)


def test_a_run_without_a_plan_is_not_passed(tiny, tmp_path):
    tiny["method"] = {"name": "fedavg"}
    del tiny["privacy"]["saving_rate"]
    train(tiny, output=tmp_path / "run")
    result = verify_run(tmp_path / "run")
    assert not result.ok
    assert "promises nothing" in failed(result)["run"]


@pytest.mark.full(but=["simulated-finished"])
@pytest.mark.parametrize("name", RUNS)
def test_runs_of_version_0_1_pass_and_say_what_is_missing(tmp_path, name):
    folder = copied(tmp_path) / "runs" / name
    result = verify_run(folder)
    if name.startswith("plain"):
        assert not result.ok
        return
    assert result.ok, failed(result)
    assert "version 0.1 did not record it" in notes(result)["checkpoint"]


def test_a_folder_that_is_no_run_is_a_wrong_question(tmp_path):
    with pytest.raises(InvalidInput, match="holds no run"):
        verify_run(tmp_path)
    assert main(["verify", str(tmp_path)]) == 2


@pytest.mark.full
def test_the_command(tiny, tmp_path, capsys):
    folder = finished(tiny, tmp_path / "run")
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS")
    assert "SIMULATION" in out
    assert main(["verify", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {"plan", "ledger", "model", "report"} <= {one["check"] for one in found["checks"]}
    assert found["plan"]["ok"] is True
    (folder / "model.safetensors").unlink()
    assert main(["verify", str(folder), "--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["verify", str(folder), "--colluders", "3"]) == 2
    assert main(["verify", str(folder / "plan.json"), "--ledger", "x"]) == 2


# --- runs that do not ---


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two finished runs of the same config."""
    place = tmp_path_factory.mktemp("pair")
    config = small()
    config["privacy"]["randomness"] = "os"
    return [finished(config, place / name, ledger=place / f"{name}.db") for name in ("one", "two")]


@pytest.fixture
def copy(pair, tmp_path):
    """A copy of the first run that may be changed; its ledger is elsewhere, and is not."""
    return Path(shutil.copytree(pair[0], tmp_path / "one"))


IN_THE_FOLDER = [
    file.name for file in FILES if file != OLD_NORMS and not file.name.startswith("ledger.db")
]


def present(folder):
    return [name for name in IN_THE_FOLDER if (folder / name).exists()]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_changed_byte_in_any_file_is_noticed(copy, seed):
    """Only the date of the report is not tied to anything."""
    chance = random.Random(seed)
    assert verify_run(copy).ok
    for name in present(copy):
        path = copy / name
        body = path.read_bytes()
        date = body.find(b"report of ") if name == REPORT.name else -1
        places = [
            n for n in chance.sample(range(len(body)), 4) if not date <= n < date + 20 or date < 0
        ]
        for place in places:
            changed = bytearray(body)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            assert not verify_run(copy).ok, f"{name}, byte {place} of {len(body)}"
        path.write_bytes(body)
    assert verify_run(copy).ok


@pytest.mark.full
def test_every_file_must_be_there_and_be_whole(copy):
    for name in present(copy):
        path = copy / name
        body = path.read_bytes()
        path.unlink()
        if name == REPORT.name:
            assert "there is none" in notes(verify_run(copy))["report"]
        else:
            assert not verify_run(copy).ok, f"without {name}"
        for part in (b"", body[: len(body) // 2], body + b"\n", body + body):
            path.write_bytes(part)
            assert not verify_run(copy).ok, f"{name} with {len(part)} of {len(body)} bytes"
        path.write_bytes(body)
    assert verify_run(copy).ok


@pytest.mark.full
def test_files_of_another_run_of_the_same_config_do_not_fit(copy, pair):
    for name in present(copy):
        body = (copy / name).read_bytes()
        other = (pair[1] / name).read_bytes()
        if body == other:  # the plan and its certificate are the same
            assert name in ("plan.json", "certificate.json")
            continue
        (copy / name).write_bytes(other)
        assert not verify_run(copy).ok, name
        (copy / name).write_bytes(body)


@pytest.mark.full
def test_a_changed_byte_of_the_ledger_is_noticed_or_says_nothing(tiny, tmp_path):
    """SQLite leaves bytes unused in its pages: they may change as long as no entry does."""
    folder = finished(tiny, tmp_path / "run")
    path, chance, noticed = folder / "ledger.db", random.Random(1), 0
    body = path.read_bytes()
    with Ledger.open(path) as ledger:
        entries = list(ledger.entries())
    for _ in range(20):
        changed = bytearray(body)
        changed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        for left in ("ledger.db-wal", "ledger.db-shm"):
            (folder / left).unlink(missing_ok=True)
        if verify_run(folder).ok:
            with Ledger.open(path) as ledger:
                assert list(ledger.entries()) == entries
        else:
            noticed += 1
    assert noticed > 1


def test_entries_of_the_ledger_that_are_cut_off_are_noticed(tiny, tmp_path):
    folder = finished(tiny, tmp_path / "run")
    connection = sqlite3.connect(folder / "ledger.db")
    connection.execute("DELETE FROM fedspend_entries WHERE number > 8")
    connection.commit()
    connection.close()
    assert "cut off" in failed(verify_run(folder))["ledger"]
    (folder / "ledger.db.head").unlink()
    assert "cut off" in failed(verify_run(folder))["ledger"]


@pytest.mark.full
def test_a_report_that_is_not_of_this_state_is_noticed(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    write_report([folder], REPORT.of(folder))
    assert verify_run(folder).ok
    train(tiny, output=folder, resume=True)
    assert "fedspend report" in failed(verify_run(folder))["report"]
    write_report([folder], REPORT.of(folder))
    assert verify_run(folder).ok


def test_a_copy_of_an_interrupted_run_is_told_where_the_run_is(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    shutil.copytree(folder, tmp_path / "copy")
    result = verify_run(tmp_path / "copy")
    assert result.ok
    assert str(folder) in notes(result)["place"]


def test_a_run_that_is_going_on_is_not_judged(copy):
    with one_at_a_time(copy):
        result = verify_run(copy)
    assert "another process is at work" in failed(result)["run"]


def test_files_that_others_may_read_are_named(copy):
    (copy / "report.html").chmod(0o644)
    (copy / "remarks.txt").write_text("mine")
    words = notes(verify_run(copy))["other files"]
    assert "report.html: chmod 600" in words
    assert "remarks.txt" in words
