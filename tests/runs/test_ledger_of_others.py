"""A run directory from somebody else makes nobody connect anywhere, or read or write elsewhere."""

import json
import os
import shutil
import socket
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from published import train_real

from fedspend import publish, verify_run
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.runs.signed import check_signature
from fedspend.signing.keys import new_keys, public_key


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """A real, signed run whose ledger is in its own directory."""
    place = tmp_path_factory.mktemp("theirs")
    new_keys(place)
    (place / "first").mkdir()
    train_real(place / "first", ledger=place / "first" / "ledger.db", sign=place / "fedspend.key")
    return place


@pytest.fixture
def theirs(inside, tmp_path):
    """A copy of the run."""
    shutil.copytree(inside / "first", tmp_path / "run")
    return tmp_path / "run"


def asks_for(run, location):
    facts = json.loads((run / "run.json").read_text())
    facts["ledger"]["location"] = location
    (run / "run.json").write_text(json.dumps(facts))


def words_of(run, check="ledger", **named):
    return next(one for one in verify_run(run, **named).checks if one.check == check)


def standing(folder):
    """Every file of a folder: its content, and when it and the folder were last changed."""
    found = {one: (one.read_bytes(), one.stat().st_mtime_ns) for one in folder.iterdir()}
    return found | {folder: folder.stat().st_mtime_ns}


@contextmanager
def hanging_up():
    """A port of a server, and who has come: it hangs up at once, so nobody waits for an answer."""
    came = []

    def hang_up(server):
        with suppress(OSError):  # the test is over
            while True:
                connection, who = server.accept()
                came.append(who)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = Thread(target=hang_up, args=(server,), daemon=True)
        waiting.start()
        yield server.getsockname()[1], came
        server.shutdown(socket.SHUT_RDWR)
        waiting.join(10)


def test_a_directory_that_names_a_server_makes_nobody_connect(theirs, capsys):
    with hanging_up() as (port, came):
        place = f"postgresql://127.0.0.1:{port}/accounts"
        asks_for(theirs, place)
        said = words_of(theirs)
        assert said.good is False
        assert f"add --ledger '{place}'" in said.words
        assert "not checked" in words_of(theirs, "account").words
        assert place in check_signature(theirs, None).words
        with pytest.raises(InvalidInput, match=r"add ledger='postgresql://127"):
            publish(theirs)
        assert main(["publish", str(theirs)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert main(["verify", str(theirs), "--quiet"]) == 1
    assert came == []


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize("how", ["absolute", "above", "link", "link of a folder", "circle"])
def test_a_ledger_outside_of_the_directory_is_opened_only_if_it_is_named(theirs, monkeypatch, how):
    shutil.move(theirs / "ledger.db", theirs.parent / "x.db")
    shutil.move(theirs / "ledger.db.head", theirs.parent / "x.db.head")
    location = "ledger.db"
    if how == "absolute":
        location = str(theirs.parent / "x.db")
    elif how == "above":
        location = "../x.db"
    elif how == "link":
        (theirs / "ledger.db").symlink_to(theirs.parent / "x.db")
    elif how == "circle":
        (theirs / "ledger.db").symlink_to(theirs / "ledger.db")
    else:
        (theirs / "sub").symlink_to(theirs.parent)
        location = "sub/x.db"
    asks_for(theirs, location)
    found, opened = Ledger.find, []
    monkeypatch.setattr(Ledger, "find", lambda *a, **k: opened.append(a) or found(*a, **k))
    assert "outside of its directory" in words_of(theirs).words or how == "circle"
    assert not words_of(theirs).good
    with pytest.raises((InvalidInput, Refused)):
        publish(theirs)
    assert not opened or how == "circle"
    assert words_of(theirs, ledger=theirs.parent / "x.db").good


@pytest.mark.full(but=["killed"])
@pytest.mark.parametrize("ends", ["finished", "killed"])
def test_a_directory_that_is_checked_stays_as_it_is(theirs, tmp_path, ends):
    if ends == "killed":  # while the ledger was open: entries are in the write-ahead file alone
        with Ledger.open(theirs / "ledger.db", write=True) as book:
            book.register(["somebody"], [1.0], delta=1e-3)
            killed = tmp_path / "killed"
            shutil.copytree(theirs, killed)
        assert (killed / "ledger.db-wal").stat().st_size
        theirs = killed
    before = standing(theirs)
    assert words_of(theirs).good
    assert words_of(theirs, ledger=theirs / "ledger.db").good
    check_signature(theirs, None)
    if ends == "finished":
        publish(theirs, tmp_path / "public")
    assert standing(theirs) == before
    if ends == "killed":
        with Ledger.find(theirs / "ledger.db", copied=True) as book:
            assert "somebody" in book.accounts().names
        assert standing(theirs) == before


@pytest.mark.parametrize("end", ["", "-wal"])
def test_only_regular_files_are_read(theirs, end):
    path = theirs / f"ledger.db{end}"
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # opening it as a file would wait for ever
    assert not words_of(theirs).good


def test_a_ledger_that_is_named_is_enough_to_publish_and_to_check_a_signature(
    theirs, inside, tmp_path
):
    run, accounts = theirs, tmp_path / "accounts.db"
    for end in ("", ".head"):
        shutil.move(run / f"ledger.db{end}", f"{accounts}{end}")
    assert not words_of(run).good
    assert check_signature(run, public_key(inside / "fedspend.pub"), str(accounts)).good
    assert main(["publish", str(run), "--ledger", str(accounts)]) == 0


def test_what_a_directory_asks_for_cannot_write_to_the_terminal(theirs):
    asks_for(theirs, "postgresql://\x1b[2J';reboot '")
    with pytest.raises(InvalidInput) as refused:
        publish(theirs)
    assert str(refused.value).isprintable()
    assert "ledger='postgresql://?[2J?;reboot ?'" in str(refused.value)
