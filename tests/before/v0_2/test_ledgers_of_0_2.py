"""Ledgers of version 0.2.0 open, say what they said, verify, and are written to.

Guarantee: every kind of entry that version 0.2.0 knows is in each of the two ledgers of real
accounts, of which one was on SQLite and one on PostgreSQL, where the same happened; entries about
clients and about records, in projects.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import zlib

import pytest
from before.v0_2.same import differences

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")

KINDS = {
    *("ledger", "project", "register", "change", "withdraw", "rows", "accept-rows"),
    *("keys", "rotate-key", "open", "tune", "reserve", "commit", "lost", "replan"),
    *("move", "close", "stop"),
}
BOTH_UNITS = {"register", "change", "withdraw", "rows", "accept-rows", "open"}
ROWS = re.compile(r"INSERT INTO fedspend_entries VALUES \((\d+), '\\x([0-9a-f]+)', ")


def bodies(original, name):
    """The entries of a file, read without fedspend."""
    if name == "postgres":
        rows = ROWS.findall((original / "ledgers/postgres.sql").read_text())
        packed = [bytes.fromhex(body) for _, body in rows]
    else:
        with contextlib.closing(sqlite3.connect(original / f"ledgers/{name}.db")) as connection:
            rows = connection.execute("SELECT body FROM fedspend_entries ORDER BY number")
            packed = [body for (body,) in rows.fetchall()]
    return [json.loads(one if one[:1] == b"{" else zlib.decompress(one)) for one in packed]


@pytest.mark.parametrize("name", ["clients", "postgres"])
def test_every_kind_of_entry_is_there(original, said, name):
    found = bodies(original, name)
    assert len(KINDS) == 18
    assert {one["kind"] for one in found} == KINDS
    assert [one["kind"] for one in found] == said["ledgers"][name]["kinds"]
    units = {(one["kind"], one.get("unit")) for one in found}
    assert units >= {(kind, unit) for kind in BOTH_UNITS for unit in ("client", "record")}
    assert {one.get("project") for one in found} >= {"clinics", "patients", "consortium"}


def test_the_evidence_has_accounts_in_every_state(said):
    for name in ("clients", "postgres"):
        clinics = said["ledgers"][name]["accounts"]["clinics/client"]["balances"]
        assert [line["client"] for line in clinics if line["withdrawn"]] == ["south"]
        assert all(0 < line["spent"] < line["budget"] for line in clinics)
        assert all(line["reserved"] > 0 for line in clinics if not line["withdrawn"])
        patients = said["ledgers"][name]["accounts"]["patients/record"]["balances"]
        assert {line["record"] for line in patients if line["withdrawn"]} == {"p7", "p9"}


@pytest.fixture(params=["clients", "left", "simulated", "silos", "postgres"])
def ledger(request, files, monkeypatch):
    """A name, and where a copy of the ledger of that name is."""
    name = request.param
    if name != "postgres":
        files.bring("ledgers")
        return name, f"ledgers/{name}.db"
    place = request.getfixturevalue("postgres").new_database()
    import psycopg

    sql = files.bring("ledgers/postgres.sql").read_text()
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(sql.encode())
    monkeypatch.setenv("FEDSPEND_ROWS", str(files.bring("ledgers/rows")))
    return name, place


def named(accounts):
    """The flags of a project and a unit."""
    project, _, unit = accounts.partition("/")
    return (*(("--project", project) if project else ()), "--unit", unit)


@pytest.mark.full(but_every=3)
def test_it_says_what_it_said(told, ledger, said):
    name, place = ledger
    at = ("--ledger", place)
    shown = told("ledger", "show", *at)
    before = said["ledgers"][name]["show"]
    for one in before["runs"]:
        if (
            one["status"] == "closed: stopped early by its own rule"
        ):  # it did not say what that means
            one["status"] += "; all of its rounds stay spent"
    assert not differences(shown, before | {"location": shown["location"]}, 0)
    for accounts, stored in said["ledgers"][name]["accounts"].items():
        balances = told("ledger", "balance", *at, *named(accounts))
        assert not differences(balances, stored["balances"], 1e-9), accounts
        history = told("ledger", "history", *at, *named(accounts))
        assert not differences(history, stored["history"], 1e-9), accounts


@pytest.mark.full
@pytest.mark.parametrize("ledger", ["clients", "simulated", "silos", "postgres"], indirect=True)
def test_it_verifies_and_is_written_to(run, told, done, ledger, said):
    name, place = ledger
    at = ("--ledger", place)
    head = said["ledgers"][name]["head"]
    assert told("ledger", "verify", *at)["head"] == head
    for accounts, stored in said["ledgers"][name]["accounts"].items():
        unit = accounts.partition("/")[2]
        line = next(one for one in stored["balances"] if not one["withdrawn"])
        who, why = line[unit], ("--reason", "written later")
        more = line["budget"] + 5
        done("ledger", "change", who, "--epsilon", more, *why, *at, *named(accounts))
        less = line["spent"] / 2
        refused = run("ledger", "change", who, "--epsilon", less, *why, *at, *named(accounts))
        assert refused.code == 1, refused
        after = told("ledger", "balance", *at, *named(accounts))
        (now,) = [one for one in after if one[unit] == who]
        assert now["budget"] == more
        assert now["spent"] == pytest.approx(line["spent"], rel=1e-9)
        done("ledger", "accept-rows", who, *why, *at, *named(accounts))
        done("ledger", "withdraw", who, *why, *at, *named(accounts))
    assert told("ledger", "verify", *at, "--head", head)["ok"] is True
    done("ledger", "export", "-o", "account.json", *at)
    done("ledger", "verify", "account.json")


def close_the_open_run(done, place, said, name):
    (run,) = [
        one["run"]
        for one in said["ledgers"][name]["show"]["runs"]
        if one["status"] == "open" and one["project"] == "clinics"
    ]
    at = ("--ledger", place, "--project", "clinics")
    done("ledger", "close-run", run, "--reason", "the server is gone", *at)


@pytest.mark.full(only=["clients"])
@pytest.mark.parametrize("ledger", ["clients", "postgres"], indirect=True)
def test_what_an_open_run_held_is_free_once_it_is_closed(told, done, ledger, said):
    name, place = ledger
    close_the_open_run(done, place, said, name)
    before = said["ledgers"][name]["accounts"]["clinics/client"]["balances"]
    after = told("ledger", "balance", "--ledger", place, "--project", "clinics")
    for line, now in zip(before, after, strict=True):
        assert now["reserved"] == 0
        assert now["spent"] == pytest.approx(line["spent"], rel=1e-9)
        freed = not line["withdrawn"]
        assert (now["remaining"] > line["remaining"] + 0.1) == freed


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("ledger", ["clients", "postgres"], indirect=True)
def test_a_run_on_the_same_rows_is_charged_and_one_on_other_rows_is_refused(
    run, told, done, files, ledger, said
):
    name, place = ledger
    at = ("--ledger", place, "--project", "clinics")
    close_the_open_run(done, place, said, name)
    rows = files.folder / "people-left.csv"
    kept = rows.read_text()
    lines = kept.splitlines()
    rows.write_text("\n".join([*lines[:-1], lines[-1].replace(".", ".1", 1)]) + "\n")
    command = ("train", "people-rest.toml", "--quiet", "--set", "train.rounds=2", *at)
    refused = run(*command, "-o", "other")
    assert refused.code == 1
    assert "accept-rows" in refused.err
    rows.write_text(kept)
    done(*command, "-o", "same")
    before = said["ledgers"][name]["accounts"]["clinics/client"]["balances"]
    for line, now in zip(before, told("ledger", "balance", *at), strict=True):
        assert now["spent"] <= now["budget"] == line["budget"]
        assert (now["spent"] > line["spent"] + 0.1) == (not line["withdrawn"])
    done("ledger", "verify", "--ledger", place, "--runs", "same")


@pytest.mark.full
@pytest.mark.parametrize("ledger", ["clients"], indirect=True)
def test_an_old_copy_of_a_ledger_is_noticed(run, files, ledger):
    """The head beside the file, and the one that a run has seen."""
    _, place = ledger
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("DELETE FROM fedspend_entries WHERE number > 20")
    assert run("ledger", "balance", "--ledger", place, "--project", "clinics").code == 1
    (files.folder / f"{place}.head").unlink()
    assert run("ledger", "balance", "--ledger", place, "--project", "clinics").code == 0
    folder = files.run("people-stopped")
    assert run("ledger", "verify", "--ledger", place, "--runs", folder).code == 1


@pytest.mark.full
def test_exports_verify(run, told, files):
    files.bring("ledgers")
    found = told("ledger", "verify", "ledgers/clients.json", "--head", "ledgers/clients.db.head")
    assert found["ok"] is True
    damaged = (files.folder / "ledgers/clients.json").read_text().replace("61.0", "62.0", 1)
    (files.folder / "damaged.json").write_text(damaged)
    assert run("ledger", "verify", "damaged.json").code == 1
    again = files.folder / "again.csv"
    assert (
        run(
            *(
                "ledger",
                "export",
                "-o",
                again,
                "--ledger",
                "ledgers/simulated.db",
                "--unit",
                "record",
            )
        ).code
        == 0
    )
    assert again.read_text() == (files.folder / "ledgers/simulated.csv").read_text()


@pytest.mark.full
@pytest.mark.parametrize("ledger", ["clients"], indirect=True)
def test_a_statement_of_a_new_key_is_entered_at_the_server_once(run, done, files, ledger):
    """South's node has a new key, which the server has not heard of."""
    _, place = ledger
    files.bring("consortium/keys.csv", "consortium/nodes/south/rotation.json")
    enter = (
        *("ledger", "rotate-key", "consortium/nodes/south/rotation.json"),
        *("--keys", "consortium/keys.csv", "--reason", "yearly change"),
        *("--ledger", place, "--project", "consortium"),
    )
    new = files.bring("consortium/nodes/south/node.key.pub").read_text().strip()
    before = (files.folder / "consortium/keys.csv").read_text()
    assert new not in before
    done(*enter)
    assert new in (files.folder / "consortium/keys.csv").read_text()
    statement = files.folder / "consortium/nodes/south/rotation.json"
    forged = json.loads(statement.read_text()) | {"client": "west"}
    statement.write_text(json.dumps(forged))
    assert run(*enter).code == 1
    assert run("ledger", "verify", "--ledger", place).code == 0
    shutil.rmtree(files.folder / "consortium")
