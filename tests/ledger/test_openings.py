"""A command opens its ledger once, makes it only to charge it, and notices what happens to it while
it is open.
"""

import sqlite3
from pathlib import Path

import pytest
from lib.runs import killed

import fedspend.runs.certifying
from fedspend import train
from fedspend.cli.main import main
from fedspend.errors import FedspendError
from fedspend.ledger import Damaged, Ledger, Unavailable

QUICKSTART = str(Path(__file__).parents[2] / "examples" / "quickstart.toml")
pytestmark = pytest.mark.usefixtures("quick_verify")


@pytest.fixture
def opened(monkeypatch):
    """Every connection to an SQLite file, in the order in which they were opened."""
    real, places = sqlite3.connect, []

    def connect(database, *arguments, **options):
        places.append(str(database))
        return real(database, *arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", connect)
    return places


def quickstart(*arguments):
    return main(["train", QUICKSTART, "--quiet", *map(str, arguments)])


def registered(place, budget=60.0):
    """A ledger in which the quickstart's clients have more than one run needs."""
    with Ledger.create(place, simulation=True) as ledger:
        ledger.register([str(n) for n in range(100)], budget, delta=1e-5)
    return place


@pytest.mark.full
def test_the_ledger_in_the_run_directory_is_opened_once(tmp_path, opened):
    assert quickstart("-o", tmp_path / "run") == 0
    assert len(opened) == 1
    assert "run/ledger.db" in opened.pop()
    assert quickstart("-o", tmp_path / "run", "--resume") == 0
    assert len(opened) == 1


@pytest.mark.full
@pytest.mark.parametrize("there", [False, True])
def test_a_ledger_in_a_file_is_opened_once(tmp_path, opened, there):
    place = tmp_path / "accounts.db"
    if there:
        registered(place)
        opened.clear()
    assert quickstart("-o", tmp_path / "one", "--ledger", place) == 0
    assert len(opened) == 1
    opened.clear()
    assert quickstart("-o", tmp_path / "one", "--ledger", place, "--resume") == 0
    assert len(opened) == 1
    if there:
        opened.clear()
        assert quickstart("-o", tmp_path / "two", "--ledger", place, "--remaining") == 0
        assert len(opened) == 1


@pytest.mark.full
def test_a_refused_run_opens_the_ledger_once_and_leaves_no_trace(tmp_path, opened):
    place = registered(tmp_path / "accounts.db", budget=3.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    opened.clear()
    assert quickstart("-o", tmp_path / "run", "--ledger", place) == 1
    assert len(opened) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_replanning_opens_it_once_too(tiny, tmp_path, opened):
    tiny["privacy"]["randomness"] = "os"
    with killed(at="play"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert len(opened) == 1
    opened.clear()
    notes = []
    train(tiny, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append)
    assert any("were replanned" in note for note in notes)
    assert len(opened) == 1


def test_a_run_that_does_not_verify_makes_no_ledger(tiny, tmp_path, monkeypatch):
    class Bad:
        ok, failures = False, ("no",)

        def __init__(self, _plan):
            pass

    monkeypatch.setattr(fedspend.runs.certifying, "verify", Bad)
    with pytest.raises(FedspendError, match="failed verification"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert list(tmp_path.iterdir()) == []


# --- what happens to a ledger while it is open ---


def meanwhile(monkeypatch, act):
    """Do something to the ledger between planning and charging."""
    real = fedspend.runs.certifying.verify

    def verify(plan):
        act()
        return real(plan)

    monkeypatch.setattr(fedspend.runs.certifying, "verify", verify)


@pytest.fixture
def place(tmp_path):
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register([str(n) for n in range(6)], 30.0, delta=1e-3)
    return tmp_path / "accounts.db"


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_is_not_charged(tiny, tmp_path, place, monkeypatch, how):
    """What is written to a file that has no name any more is lost."""
    copy = place.read_bytes()

    def act():
        place.unlink()
        if how == "replaced":
            (tmp_path / "other").write_bytes(copy)
            (tmp_path / "other").rename(place)

    meanwhile(monkeypatch, act)
    played = []
    with pytest.raises(Unavailable, match="moved, removed or replaced"):
        train(tiny, output=tmp_path / "run", ledger=place, on_round=lambda *_: played.append(1))
    assert played == []


def test_a_chain_that_was_cut_off_is_noticed(tiny, tmp_path, place, monkeypatch):
    def act():
        connection = sqlite3.connect(place)
        connection.execute("DELETE FROM fedspend_entries WHERE number = 2")
        connection.commit()
        connection.close()

    meanwhile(monkeypatch, act)
    with pytest.raises(Damaged, match="changed while it was open"):
        train(tiny, output=tmp_path / "run", ledger=place)


def test_what_another_run_took_meanwhile_counts(tiny, tmp_path, place, monkeypatch):
    """The plan was made for a budget that is no longer there."""

    def act():
        with Ledger.open(place, write=True) as ledger:
            ledger.change(ledger.accounts().names, 1.0, reason="asked by letter")

    meanwhile(monkeypatch, act)
    with pytest.raises(FedspendError, match="lifetime budget"):
        train(tiny, output=tmp_path / "run", ledger=place)
    with Ledger.open(place) as ledger:
        assert ledger.state.runs == {}


def test_a_database_of_somebody_else_is_left_as_it_was(tiny, tmp_path):
    connection = sqlite3.connect(tmp_path / "accounts.db")
    connection.execute("CREATE TABLE invoices (n INTEGER)")
    connection.close()
    before = (tmp_path / "accounts.db").read_bytes()
    with pytest.raises(Damaged, match="holds no ledger"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert (tmp_path / "accounts.db").read_bytes() == before
