"""An exported ledger is checked without the database that it came from."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest

import fedspend
from fedspend.cli.main import main
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.ledger.chain import START, link
from fedspend.ledger.export import export_json
from fedspend.ledger.export_check import audit_export
from fedspend.ledger.rules import Proposal


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A ledger with three clients and one run, as text."""
    folder = tmp_path_factory.mktemp("export")
    names = ["north", "south", "east"]
    plan = fedspend.plan([10.0, 10.0, 20.0], delta=1e-5, rounds=4, rate=0.5, clients=names)
    with Ledger.create(folder / "accounts.db", simulation=False) as ledger:
        ledger.register(names, [12.0, 10.0, 25.0], delta=1e-5)
        ledger.admit("first", Proposal.of_plan(plan), simulation=False)
        for round in range(3):
            ledger.reserve("first", round)
            ledger.commit("first", round, "x" * 43)
        ledger.withdraw(["east"], reason="asked by letter")
        export_json(ledger, folder / "account.json", "client")
    return (folder / "account.json").read_text()


@pytest.fixture
def export(exported, tmp_path):
    path = tmp_path / "account.json"
    path.write_text(exported)
    return path


def failed(path, **more):
    return [one.check for one in audit_export(path, **more).checks if one.good is False]


def relinked(document, bodies):
    """The document with these entries in an unbroken chain, and the head that follows."""
    previous, entries = START, []
    for number, body in enumerate(bodies, 1):
        text = json.dumps(body)
        previous = link(previous, number, text.encode())
        entries.append({"number": number, "hash": previous.hex(), "text": text})
    return document | {"entries": entries, "head": f"{len(entries)}:{previous.hex()}"}


@pytest.mark.full
def test_a_sound_export_passes_on_the_command_line(export, capsys):
    assert main(["ledger", "verify", str(export)]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # lines break by the length of paths
    for words in ("each linked to the one before", "second accountant", "intact; head"):
        assert words in shown
    assert main(["ledger", "verify", str(export), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    head = found["head"]
    assert main(["ledger", "verify", str(export), "--head", head]) == 0
    entries, _, hash = head.partition(":")
    assert main(["ledger", "verify", str(export), "--head", f"{entries}:{'0' * 64}"]) == 1
    assert main(["ledger", "verify", str(export), "--head", f"{int(entries) + 1}:{hash}"]) == 1


def test_projects_are_checked_one_by_one(tmp_path):
    """Each project's balances are those of its own entries."""
    place, path = tmp_path / "accounts.db", tmp_path / "account.json"
    Ledger.create(place, simulation=False).close()
    for project, budget in (("first", 2.0), ("second", 3.0)):
        with Ledger.open(place, write=True, project=project) as ledger:
            ledger.register(["north"], budget, delta=1e-5)
            export_json(ledger, path, "client")
    document = json.loads(path.read_text())
    names = [one.check for one in audit_export(path).checks]
    assert {"client balances, first", "client balances, second"} <= set(names)
    assert failed(path) == []
    projects = document["projects"]
    for forged, wrong in (
        ({"first": projects["second"], "second": projects["first"]}, "client balances, first"),
        ({"first": projects["first"]}, "statements"),
        (projects | {"third": {}}, "statements"),
        (7, "statements"),
    ):
        path.write_text(json.dumps(document | {"projects": forged}))
        assert wrong in failed(path)


def test_what_is_asked_must_be_one_thing(export, capsys):
    for arguments, words in (
        ([str(export), "--ledger", "x.db"], "an export, FILE.json, or the ledger"),
        ([str(export), "--runs", "r"], "--runs is for a ledger"),
        (["missing.json"], "cannot read the export"),
    ):
        assert main(["ledger", "verify", *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"entries": 3}', "[" * 100_000])
def test_what_is_no_export_is_bad_input(tmp_path, body, capsys):
    (tmp_path / "x.json").write_text(body)
    assert main(["ledger", "verify", str(tmp_path / "x.json")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "no export of a ledger" in shown.err


@pytest.mark.full
def test_every_statement_beside_the_entries_is_checked(export):
    document = json.loads(export.read_text())

    def changed(**changes):
        export.write_text(json.dumps(document | changes))
        return failed(export)

    assert changed(ledger="0" * 32) == ["statements"]
    assert changed(simulation=True) == ["statements"]
    assert changed(simulation=0) == ["statements"]
    assert changed(head=document["head"].replace(":", ":0", 1)[:-1]) == ["statements"]
    assert "statements" in changed(balances={})
    rows = document["balances"]["client"]
    for key, value in (
        ("spent", 0.0),
        ("spent", "0"),
        ("budget", 1e9),
        ("remaining", rows[0]["remaining"] * 1.01),
        ("withdrawn", True),
        ("client", "nobody"),
    ):
        forged = [rows[0] | {key: value}, *rows[1:]]
        assert changed(balances={"client": forged}) == ["client balances"]
    assert changed(balances={"client": rows[:2]}) == ["client balances"]
    assert changed(balances={"client": rows[::-1]}) == ["client balances"]
    assert changed() == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_changed_in_the_entries_fails_and_nothing_raises(export, seed):
    generator = random.Random(seed)
    document = json.loads(export.read_text())
    entries = document["entries"]
    at = generator.randrange(len(entries))
    match generator.randrange(5):
        case 0:
            del entries[at]
        case 1:
            entries.insert(at, entries[generator.randrange(len(entries))])
        case 2:
            text = entries[at]["text"]
            place = generator.randrange(len(text))
            other = "0" if text[place] != "0" else "1"
            entries[at]["text"] = text[:place] + other + text[place + 1 :]
        case 3:
            entries[at][generator.choice(["number", "hash", "text"])] = generator.choice(
                [None, -1, "zz", [], 10**400, "{"]
            )
        case 4:
            entries[at] = generator.choice([None, 3, "x", {}])
    export.write_text(json.dumps(document))
    assert failed(export)


@pytest.mark.full
def test_an_unbroken_chain_of_forged_entries_is_computed_anew(export):
    """Somebody who rewrites the whole chain still cannot overspend in it."""
    document = json.loads(export.read_text())
    bodies = [json.loads(entry["text"]) for entry in document["entries"]]

    def forged(change):
        new = json.loads(json.dumps(bodies))
        change(new)
        export.write_text(json.dumps(relinked(document, new)))
        return failed(export)

    assert forged(lambda _: None) == []

    def budget(new):
        new[1]["budgets"] = [1.0, 1.0, 1.0]

    assert forged(budget) == ["client balances"]

    def noise(new):
        new[2]["noise"] = [{"all": 1e-6, "rounds": 4}] * len(new[2]["noise"])

    assert "client balances" in forged(noise)

    def second(new):
        new.append(new[1])

    assert forged(second) == ["chain"]

    def unknown(new):
        new.append({"kind": "gift", "names": ["north"]})

    assert forged(unknown) == ["chain"]


@pytest.mark.parametrize(
    "huge",
    [
        {"accounts": [[0, 10**9]]},
        {"accounts": [[0, 1]] * 10 + [[0, 10**15]]},
        {"noise": [{"all": 1.0, "rounds": 10**12}], "rate": [{"all": 1.0, "rounds": 10**12}]},
        {"noise": [{"all": 1e300, "rounds": 4}] * 2},
        {"noise": [{"all": 1.0, "rounds": -4}] * 2},
    ],
)
def test_forged_sizes_do_not_fill_the_memory(export, huge):
    document = json.loads(export.read_text())
    bodies = [json.loads(entry["text"]) for entry in document["entries"]]
    bodies[2] |= huge
    export.write_text(json.dumps(relinked(document, bodies)))
    assert failed(export)


def test_a_forged_ledger_gets_a_finding_like_its_export(export, tmp_path, monkeypatch):
    """Whatever error a forged entry raises in an accountant, it is a finding."""

    def fail(*_, **__):
        raise ValueError("cannot convert float NaN to integer")

    monkeypatch.setattr("fedspend.ledger.audit.epsilon_at", fail)
    monkeypatch.setattr("fedspend.ledger.audit.pld_epsilon", fail)
    document = json.loads(export.read_text())
    assert "client balances" in failed(export)
    place = tmp_path / "accounts.db"
    Ledger.create(place, simulation=False).close()
    with sqlite3.connect(place) as database:
        database.execute("DELETE FROM fedspend_entries")
        database.executemany(
            "INSERT INTO fedspend_entries VALUES (?, ?, ?)",
            [
                (entry["number"], entry["text"].encode(), bytes.fromhex(entry["hash"]))
                for entry in document["entries"]
            ],
        )
    (tmp_path / "accounts.db.head").unlink(missing_ok=True)
    found = {one.check: one for one in audit(str(place)).checks}
    assert found["client balances"].good is False
    assert "cannot be checked (ValueError: " in found["client balances"].words
