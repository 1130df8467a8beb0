"""The ledger page shows what the ledger says, to its reader alone, and changes nothing."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from pages.ledgers import DELTA, admitted, filled
from places import tamper

from fedspend.cli.main import main
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger import Damaged, Ledger, documents
from fedspend.pages.ledger.reading import PAGE, SHOWN, SORTED, Reader
from fedspend.pages.ledger.site import ledger_site
from fedspend.pages.serving import HOST, serving

CLIENTS = {"unit": "client"}


@pytest.fixture
def ledger(tmp_path):
    return filled(tmp_path / "ledger.db")


def test_balances_are_those_of_the_ledger(place):
    reader = Reader(filled(place))
    with Ledger.open(place) as opened:
        expected = list(opened.balances().rows(unit="name"))
    found = reader.accounts(CLIENTS)
    assert found["rows"] == expected
    assert found["lacking"] == 0
    assert found["total"] == {"accounts": 5, "exhausted": 1, "withdrawn": 1, "runs": 2, "open": 1}
    one = reader.account({**CLIENTS, "name": "south"})
    assert one["balance"]["spent"] == expected[1]["spent"]
    assert [run["run"] for run in one["balance"]["runs"]] == ["first", "second"]
    assert reader.verify({})["ok"]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("", ["north", "south", "östlich", "West", "<b>x"]),
        ("ORTH", ["north"]),
        ("O\N{COMBINING DIAERESIS}STLICH", ["östlich"]),
        ("west", ["West"]),
        ("st", ["östlich", "West"]),
        ("nobody", []),
    ],
)
def test_search_by_client(ledger, search, expected):
    found = Reader(ledger).accounts({**CLIENTS, "search": search})
    assert [row["name"] for row in found["rows"]] == expected
    assert found["count"] == len(expected)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"show": "withdrawn"}, ["östlich"]),
        ({"show": "exhausted"}, ["north"]),
        ({"show": "active"}, ["south", "West", "<b>x"]),
        ({"sort": "budget"}, ["<b>x", "West", "östlich", "south", "north"]),
        ({"sort": "name"}, ["<b>x", "West", "north", "south", "östlich"]),
        ({"sort": "used", "show": "active"}, ["south", "West", "<b>x"]),
        ({"sort": "remaining", "search": "st"}, ["West", "östlich"]),
    ],
)
def test_filters_and_order(ledger, asked, expected):
    rows = Reader(ledger).accounts({**CLIENTS, **asked})["rows"]
    assert [row["name"] for row in rows] == expected


def test_pages_hold_everyone_once(tmp_path):
    place, names = tmp_path / "many.db", [f"c{n:04d}" for n in range(2 * PAGE + 3)]
    with Ledger.create(place, simulation=True) as opened:
        opened.register(names, np.linspace(1, 9, len(names)), delta=DELTA)
    reader = Reader(str(place))
    pages = [reader.accounts({**CLIENTS, "page": n}) for n in (1, 2, 3)]
    assert [row["name"] for page in pages for row in page["rows"]] == names
    assert {page["pages"] for page in pages} == {3}
    beyond = reader.accounts({**CLIENTS, "page": 99})  # others may have gone meanwhile
    assert beyond["page"] == 3
    assert beyond["rows"] == pages[2]["rows"]


def test_history_is_that_of_the_command(ledger):
    reader = Reader(ledger)
    with Ledger.open(ledger) as opened:
        whole = documents.history(opened, None, None, "client")
        south = documents.history(opened, "south", None, "client")
        second = documents.history(opened, None, "second", "client")
    assert reader.history({})["rows"] == whole[::-1]
    assert reader.account({**CLIENTS, "name": "south"})["history"]["rows"] == south[::-1]
    run = reader.run({**CLIENTS, "run": "second"})
    assert run["history"]["rows"] == second[::-1]
    assert run["members"] == ["south", "West"]
    assert [line["kind"] for line in reader.history({"search": "moved"})["rows"]] == ["withdraw"]
    assert "names" not in json.dumps(reader.history({}))


def test_what_is_added_is_shown_and_read_once(ledger, monkeypatch):
    reader = Reader(ledger)
    before = reader.overview({})
    read = []
    real = Ledger.entries
    monkeypatch.setattr(
        Ledger, "entries", lambda self, *after: read.append(after[0]) or real(self, *after)
    )
    with Ledger.open(ledger, write=True) as opened:
        opened.reserve("second", 1)
        opened.commit("second", 1, "1" * 64)
    after = reader.overview({})
    assert after["entries"] == before["entries"] + 2
    assert read == [before["entries"]]  # only what was added
    assert reader.history({})["rows"][0]["about"].startswith("round 2, release 1111")
    with Ledger.open(ledger) as opened:
        assert reader.accounts(CLIENTS)["rows"] == list(opened.balances().rows(unit="name"))


def test_an_answer_does_not_change_when_the_ledger_does(ledger):
    reader = Reader(ledger)
    found, _ = reader._balances_of(reader_state(reader), asked(reader))
    kept = (list(found.names), found.budget.copy(), found.withdrawn.copy())
    with Ledger.open(ledger, write=True) as opened:
        opened.register(["new"], [3.0], delta=DELTA)
        opened.change(["West"], 9.0, reason="more")
        opened.withdraw(["West"], reason="left")
    reader.overview({})
    assert found.names == kept[0]
    np.testing.assert_array_equal(found.budget, kept[1])
    np.testing.assert_array_equal(found.withdrawn, kept[2])


def reader_state(reader):
    with reader._reading() as state:
        return state


def asked(reader):
    from fedspend.pages.ledger.reading import Asked

    return Asked.of(CLIENTS, reader_state(reader))


def test_until_pld_is_ready_spending_is_a_bound(tmp_path):
    reader = Reader(filled(tmp_path / "ledger.db", accountant="pld"))
    quick = reader.accounts(CLIENTS)
    assert quick["lacking"] > 0
    assert reader.exact(CLIENTS) == {"exact": True}
    exact = reader.accounts(CLIENTS)
    assert exact["lacking"] == 0
    with Ledger.open(tmp_path / "ledger.db") as opened:
        assert exact["rows"] == list(opened.balances().rows(unit="name"))
    spent = [
        (one["spent"], other["spent"])
        for one, other in zip(quick["rows"], exact["rows"], strict=True)
    ]
    assert all(rough >= fine for rough, fine in spent)
    assert spent[0][0] > spent[0][1]


def test_record_accounts_and_projects(place):
    with Ledger.create(place, simulation=True, project="trial") as opened:
        opened.register(["r1", "r2"], [1.0, 2.0], delta=DELTA, unit="record")
    with Ledger.open(place, write=True) as opened:
        opened.register(["c1"], [3.0], delta=DELTA)
    reader = Reader(place)
    assert reader.overview({})["holders"] == [
        {"project": "", "unit": "client", "accounts": 1},
        {"project": "trial", "unit": "record", "accounts": 2},
    ]
    mine = {"project": "trial", "unit": "record"}
    assert [row["name"] for row in reader.accounts(mine)["rows"]] == ["r1", "r2"]
    assert reader.account({**mine, "name": "r2"})["balance"]["budget"] == 2.0
    with pytest.raises(InvalidInput, match="not in the ledger"):
        reader.account({**CLIENTS, "name": "r2"})


def test_keys_of_nodes_are_shown_as_people_compare_them(ledger):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    with Ledger.open(ledger, write=True) as opened:
        opened.enter_keys({"south": pem})
    one = Reader(ledger).account({**CLIENTS, "name": "south"})
    assert len(one["keys"]) == 1
    assert one["keys"][0].startswith("SHA256:")
    assert one["history"]["rows"][0]["kind"] == "keys"


BAD = [
    ("accounts", {}, "unit"),
    ("accounts", {"unit": "house"}, "unit"),
    ("accounts", {**CLIENTS, "project": "other"}, "other"),
    ("accounts", {**CLIENTS, "page": 0}, "page"),
    ("accounts", {**CLIENTS, "page": "x"}, "page"),
    ("accounts", {**CLIENTS, "search": 7}, "search"),
    ("accounts", {**CLIENTS, "search": "x" * 2000}, "search"),
    ("accounts", {**CLIENTS, "sort": "colour"}, "sort"),
    ("accounts", {**CLIENTS, "show": ["all"]}, "show"),
    ("account", CLIENTS, "name"),
    ("account", {**CLIENTS, "name": "nobody"}, "nobody"),
    ("run", {**CLIENTS, "run": "none"}, "none"),
    ("exact", {"unit": 3}, "unit"),
    ("history", {"page": True}, "page"),
]


@pytest.mark.parametrize(("what", "body", "why"), BAD)
def test_bad_questions_are_named(ledger, what, body, why):
    with pytest.raises(FedspendError, match=why) as refusal:
        getattr(Reader(ledger), what)(body)
    assert "\n" not in str(refusal.value)


def test_a_ledger_that_is_altered_cut_off_or_gone_is_not_shown(ledger):
    reader = Reader(ledger)
    reader.overview({})
    whole = Path(ledger).read_bytes()
    with Ledger.open(ledger) as opened:
        last = opened.state.entries
    tamper(ledger, "UPDATE fedspend_entries SET hash = ? WHERE number = ?", b"0" * 32, last)
    with pytest.raises(Damaged):
        reader.overview({})
    with pytest.raises(Damaged):  # and not from what was read before
        reader.accounts(CLIENTS)
    Path(ledger).write_bytes(whole)
    assert reader.overview({})["entries"] == last  # restored, it is read from its beginning
    Path(ledger).unlink()
    with pytest.raises(InvalidInput, match="no ledger"):
        reader.accounts(CLIENTS)


def test_who_may_not_read_the_file_any_longer_sees_nothing(ledger, monkeypatch):
    reader = Reader(ledger)
    reader.accounts(CLIENTS)
    monkeypatch.setattr("sqlite3.connect", refuse_to_open)
    with pytest.raises(FedspendError, match="unable to open"):
        reader.accounts(CLIENTS)


def refuse_to_open(*_, **__):
    import sqlite3

    raise sqlite3.OperationalError("unable to open database file")


def test_looking_changes_nothing(ledger):
    def seen():
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in Path(ledger).parent.iterdir()
        }

    before = seen()
    site = ledger_site(ledger)
    site.pages[""]()
    for what, ask in site.asks.items():
        ask({**CLIENTS, "name": "south", "run": "first"})
        assert seen() == before, what


@pytest.mark.full
def test_many_readers_at_once(ledger):
    reader, failed = Reader(ledger), []

    def look():
        try:
            for page in range(6):
                assert len(reader.accounts({**CLIENTS, "sort": SORTED[page]})["rows"]) >= 5
                assert reader.history({"page": 1})["count"] >= 12
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    with Ledger.open(ledger, write=True) as opened:
        for n in range(5):
            opened.register([f"late{n}"], [2.0], delta=DELTA)
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_question_is_answered_at_once_among_many_accounts(tmp_path):
    """20,000 accounts; the bound leaves room for a busy machine."""
    place, names = tmp_path / "many.db", [f"clinic {n}" for n in range(20_000)]
    with Ledger.create(place, simulation=True) as opened:
        opened.register(names, np.full(len(names), 5.0), delta=DELTA)
        admitted(opened, "first", names[:5000], 1.0, begun=3)
    reader = Reader(str(place))
    reader.accounts(CLIENTS)
    began = time.process_time()
    found = reader.accounts({**CLIENTS, "search": "c 1999", "sort": "used"})
    assert time.process_time() - began < 0.3
    assert found["count"] == 11


# --- over the wire, and on the command line -------------------------------------------------------


@pytest.mark.full
def test_nobody_without_the_token_gets_a_name(ledger):
    with serving(ledger_site(ledger)) as served:
        at = urlsplit(served.address)
        for path, code in ((at.path, 200), ("/", 404), ("/wrong/", 404)):
            for what in ("accounts", "account", "history", "verify", "exact", "overview"):
                line = http.client.HTTPConnection(HOST, at.port, timeout=120)
                body = json.dumps({**CLIENTS, "name": "south"})
                line.request("POST", path + what, body, {"Content-Type": "application/json"})
                reply = line.getresponse()
                assert reply.status == code
                assert (b"south" in reply.read()) <= (code == 200)


def test_the_page_itself_holds_no_account(ledger):
    page = ledger_site(ledger).pages[""]()
    assert "south" not in page
    assert "protect nobody" in page
    assert "connect-src &#x27;self&#x27;" in page
    choices = set(re.findall(r'<option value="(\w+)"', page))
    assert choices == {*SHOWN, *SORTED}


def test_a_name_of_a_project_cannot_end_the_data(ledger):
    page = ledger_site(ledger, "</script><script>x").pages[""]()
    assert "</script" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]


@pytest.mark.full
def test_a_password_is_not_shown(postgres):
    place = postgres.new_database()
    with Ledger.create(place, simulation=True) as opened:
        opened.register(["c"], [1.0], delta=DELTA)
    secret = place.replace("postgresql://postgres:@", "postgresql://postgres:hunter2@")
    assert secret != place
    site = ledger_site(secret)
    shown = site.pages[""]() + json.dumps(site.asks["overview"]({}))
    shown += json.dumps(site.asks["verify"]({}))
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--ledger", "missing.db"], 2, "missing.db"),
        (["--port", "70000", "--ledger", "{}"], 2, "65535"),
        (["--ledger", "{}", "--project", "other"], 2, "other"),
    ],
)
def test_bad_flags_are_named(ledger, capsys, tmp_path, monkeypatch, arguments, code, why):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    given = [one.format(ledger) for one in arguments]
    assert main(["ledger", "page", "--no-browser", *given]) == code
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert sorted(os.listdir()) == before


@pytest.mark.full
def test_the_command_serves_the_page(ledger, monkeypatch, capsys):
    from urllib.request import urlopen

    import fedspend.pages.serving as pages

    met = []

    def visit(served):
        met.append(urlopen(served.door).read().decode())
        return True

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, "open_browser", visit)
    monkeypatch.setattr(pages.Served, "forever", interrupt)
    assert main(["ledger", "page", "--ledger", ledger]) == 0
    assert "fedspend · ledger" in met[0]
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


@pytest.mark.full
def test_a_nodes_own_ledger_is_a_ledger(tmp_path, quick_verify):  # noqa: ARG001
    from approval.offers import offered
    from approval.test_node_ledger import account

    mine = account(tmp_path)
    mine.approve(offered().slice_of(0))
    reader = Reader(mine.location)
    (row,) = reader.accounts(CLIENTS)["rows"]
    assert (row["name"], row["budget"]) == ("north", 3.0)
    assert row["reserved"] > 0
    one = reader.account({**CLIENTS, "name": "north"})
    assert reader.run({**CLIENTS, "run": one["balance"]["runs"][0]["run"]})["members"] == ["north"]
