"""Rows that are no longer those that an account was charged for are noticed, in real runs."""

from __future__ import annotations

import csv
import json
import shutil
import stat

import numpy as np
import pytest
from lib.configs import small
from lib.runs import Killed, killed
from published import BUDGETS, rows, train_real

from fedspend import train
from fedspend.cli.main import main
from fedspend.client.row_digests import digest, digests
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.row_seals import RowSeals, file_elsewhere
from fedspend.runs.row_checks import seals_file

pytestmark = pytest.mark.usefixtures("quick_verify")


def clients(**changes):
    return {name: rows(n) for n, name in enumerate(BUDGETS)} | changes


@pytest.fixture
def book(tmp_path):
    """A ledger in which everybody can pay for several runs."""
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(list(BUDGETS), 100.0, delta=1e-3)
    return place


def entries(place):
    with Ledger.open(place) as ledger:
        return [json.loads(text) for _, text, _ in ledger.entries()]


def test_the_same_rows_in_another_order_are_the_same(book, tmp_path):
    train_real(tmp_path / "one", ledger=book)
    features, labels = rows(1)
    turned = clients(south=(features[::-1], labels[::-1]))
    train_real(tmp_path / "two", ledger=book, clients=turned)
    sealed = [one for one in entries(book) if one["kind"] == "rows"]
    assert len(sealed) == 1
    assert sealed[0]["names"] == list(BUDGETS)


def other_value():
    features, labels = rows(1)
    features[3, 1] += 1e-3
    return features, labels


def other_label():
    features, labels = rows(1)
    return features, np.where(np.arange(labels.size) == 5, 1 - labels, labels)


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    "south",
    [
        other_value(),
        other_label(),
        tuple(part[:-1] for part in rows(1)),
        tuple(np.concatenate([part, part[:1]]) for part in rows(1)),
        rows(2),
    ],
    ids=["value", "label", "row less", "row more", "another client's"],
)
def test_changed_rows_are_refused_by_name_and_nothing_is_written(book, tmp_path, south):
    train_real(tmp_path / "one", ledger=book)
    before = entries(book), sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused, match="the rows of client 'south' are not those") as refused:
        train_real(tmp_path / "two", ledger=book, clients=clients(south=south))
    assert "\n" not in str(refused.value)
    assert "accept-rows south" in str(refused.value)
    assert (entries(book), sorted(tmp_path.rglob("*"))) == before


@pytest.mark.full
def test_accepted_rows_are_recorded_and_then_held_to(book, tmp_path, capsys):
    train_real(tmp_path / "one", ledger=book)
    assert (
        main(["ledger", "accept-rows", "south", "--reason", "new year", "--ledger", str(book)]) == 0
    )
    new = clients(south=rows(7))
    train_real(tmp_path / "two", ledger=book, clients=new)
    with pytest.raises(Refused, match="rows of client 'south'"):
        train_real(tmp_path / "three", ledger=book)
    with pytest.raises(Refused, match="rows of client 'north'"):
        train_real(tmp_path / "three", ledger=book, clients=new | {"north": rows(8)})
    train_real(tmp_path / "three", ledger=book, clients=new)
    kinds = [one["kind"] for one in entries(book) if one["kind"].endswith("rows")]
    assert kinds == ["rows", "accept-rows", "rows"]
    capsys.readouterr()
    assert main(["ledger", "history", "--ledger", str(book), "--client", "south"]) == 0
    assert "new year" in capsys.readouterr().out
    assert main(["ledger", "verify", "--ledger", str(book)]) == 0
    for names, code in ((["nobody"], 2), (["south", "south"], 2)):
        arguments = ["ledger", "accept-rows", *names, "--reason", "x", "--ledger", str(book)]
        assert main(arguments) == code


def test_a_client_that_joins_later_is_sealed_then(book, tmp_path):
    import fedspend

    some = {name: rows(n) for n, name in enumerate(BUDGETS) if name != "west"}
    plan = fedspend.plan([3.0] * 3, delta=1e-3, rounds=3, rate=0.8, clients=list(some))
    train_real(tmp_path / "one", ledger=book, clients=some, plan=plan)
    train_real(tmp_path / "two", ledger=book)
    sealed = [one["names"] for one in entries(book) if one["kind"] == "rows"]
    assert sealed == [list(some), ["west"]]
    with pytest.raises(Refused, match="rows of client 'west'"):
        train_real(tmp_path / "three", ledger=book, clients=clients(west=rows(20)))


def test_a_client_without_rows_stands_for_nobody_and_its_old_rows_may_come_back(book, tmp_path):
    train_real(tmp_path / "one", ledger=book)
    train_real(tmp_path / "two", ledger=book, clients=clients(south=([], [])))
    train_real(tmp_path / "three", ledger=book)
    with pytest.raises(Refused, match="rows of client 'south'"):
        train_real(tmp_path / "four", ledger=book, clients=clients(south=rows(7)))
    sealed = [one["names"] for one in entries(book) if one["kind"] == "rows"]
    assert sealed == [list(BUDGETS)]


def test_projects_have_rows_of_their_own(tmp_path):
    """Two projects in one ledger may both have a client called south."""
    book = tmp_path / "accounts.db"
    Ledger.create(book, simulation=False).close()
    for project in ("first", "second"):
        with Ledger.open(book, write=True, project=project) as ledger:
            ledger.register(list(BUDGETS), 100.0, delta=1e-3)
    train_real(tmp_path / "one", ledger=book, project="first")
    train_real(tmp_path / "two", ledger=book, project="second", clients=clients(south=rows(7)))
    for project, mine in (("first", rows(7)), ("second", rows(1))):
        with pytest.raises(Refused, match=f"rows of client 'south' .* --project {project}"):
            train_real(
                tmp_path / "three", ledger=book, project=project, clients=clients(south=mine)
            )
    sealed = [one for one in entries(book) if one["kind"] == "rows"]
    assert [one["project"] for one in sealed] == ["first", "second"]
    arguments = ["--reason", "new", "--ledger", str(book), "--project", "first"]
    assert main(["ledger", "accept-rows", "south", *arguments]) == 0
    for project in ("first", "second"):
        with Ledger.open(book, project=project) as ledger:
            assert ("south" in ledger.accounts().rows_of) == (project == "second")


def test_what_is_kept_is_private_and_the_ledger_cannot_be_used_to_try_rows(book, tmp_path):
    train_real(tmp_path / "one", ledger=book)
    kept = tmp_path / "accounts.db.rows"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    content = json.loads(kept.read_text())
    (sealed,) = [one for one in entries(book) if one["kind"] == "rows"]
    ledger = json.dumps(entries(book))
    for secret in (content["key"], *content["groups"]["client"][0]["macs"].values()):
        assert secret not in ledger
    assert content["groups"]["client"][0]["opening"] not in ledger
    # nor an unkeyed digest, in either
    x, y = rows(1)
    plain = digest(x, y, np.arange(len(y))).hex()
    assert plain not in ledger
    assert plain not in kept.read_text()
    assert set(sealed) == {"kind", "unit", "names", "holder", "seal", "time"}
    # the same rows under another key give another seal
    train_real(tmp_path / "two", ledger=tmp_path / "other.db")
    (again,) = [one for one in entries(tmp_path / "other.db") if one["kind"] == "rows"]
    assert again["seal"] != sealed["seal"]
    names = [path.name for path in (tmp_path / "one").iterdir()]
    assert not any("rows" in name for name in names)


@pytest.mark.full
def test_a_file_that_is_gone_old_or_damaged_is_not_taken_for_a_new_one(book, tmp_path):
    kept, old = tmp_path / "accounts.db.rows", tmp_path / "old"
    train_real(tmp_path / "one", ledger=book)
    shutil.copy(kept, old)
    for n, name in enumerate(("a", "b")):  # two more entries: the file keeps one state before
        main(["ledger", "accept-rows", "south", "--reason", name, "--ledger", str(book)])
        train_real(tmp_path / name, ledger=book, clients=clients(south=rows(30 + n)))
    now = clients(south=rows(31))
    shutil.move(kept, tmp_path / "right")
    with pytest.raises(Refused, match="another file than the one that noted them"):
        train_real(tmp_path / "c", ledger=book, clients=now)
    assert not kept.exists()
    shutil.copy(old, kept)
    with pytest.raises(Refused, match="an older file than the one that noted them"):
        train_real(tmp_path / "c", ledger=book, clients=now)
    for body in ("", "{}", "[]", json.dumps(json.loads(old.read_text()) | {"key": "xyz"})):
        kept.write_text(body)
        with pytest.raises((InvalidInput, Refused), match=r"accounts\.db\.rows"):
            train_real(tmp_path / "c", ledger=book, clients=now)
    # whoever accepts goes on with a new key
    kept.unlink()
    main(["ledger", "accept-rows", *BUDGETS, "--reason", "file lost", "--ledger", str(book)])
    train_real(tmp_path / "c", ledger=book, clients=now)
    train_real(tmp_path / "d", ledger=book, clients=now)


def test_a_kill_between_file_and_ledger_leaves_a_file_that_fits(book, tmp_path, monkeypatch):
    real = RowSeals.sealed

    def sealed(*arguments):
        real(*arguments)
        raise Killed

    train_real(tmp_path / "one", ledger=book)
    main(["ledger", "accept-rows", "south", "--reason", "new", "--ledger", str(book)])
    monkeypatch.setattr(RowSeals, "sealed", sealed)
    with pytest.raises(Killed):
        train_real(tmp_path / "two", ledger=book, clients=clients(south=rows(7)))
    monkeypatch.setattr(RowSeals, "sealed", real)
    with pytest.raises(Refused, match="rows of client 'north'"):
        train_real(tmp_path / "three", ledger=book, clients=clients(north=rows(8)))
    train_real(tmp_path / "three", ledger=book, clients=clients(south=rows(9)))


def test_rows_that_change_in_the_middle_of_a_run_are_noticed(book, tmp_path):
    with killed(round=1):
        train_real(tmp_path / "run", ledger=book)
    with pytest.raises(Refused, match="rows of client 'east'"):
        train_real(tmp_path / "run", ledger=book, resume=True, clients=clients(east=rows(11)))
    train_real(tmp_path / "run", ledger=book, resume=True)


def test_a_run_with_a_ledger_of_its_own_keeps_it_with_its_clients(book, tmp_path):
    """Private state is never in a run directory; runs of version 0.1 had their ledger there."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(book, folder / "ledger.db")
    with Ledger.open(folder / "ledger.db") as inside, Ledger.open(book) as outside:
        assert seals_file(inside, folder) == tmp_path / "run.clients" / "rows.json"
        assert seals_file(inside, None) == folder / "ledger.db.rows"
        assert seals_file(outside, folder) == tmp_path / "accounts.db.rows"


def test_the_place_can_be_stated(book, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPEND_ROWS", str(tmp_path / "holder"))
    train_real(tmp_path / "one", ledger=book)
    assert not (tmp_path / "accounts.db.rows").exists()
    with Ledger.open(book) as ledger:
        kept = tmp_path / "holder" / f"{ledger.state.id}.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    with pytest.raises(Refused, match="rows of client 'south'"):
        train_real(tmp_path / "two", ledger=book, clients=clients(south=rows(7)))


def test_of_a_ledger_on_a_server_they_are_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSPEND_ROWS", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".local" / "share" / "fedspend" / "rows" / "id.json"
    assert file_elsewhere("id", needed=True) == usual
    assert file_elsewhere("id", needed=False) is None, "a file has them beside it"


def test_simulations_keep_nothing(tiny, tmp_path):
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert not (tmp_path / "accounts.db.rows").exists()
    assert all(one["kind"] != "rows" for one in entries(tmp_path / "accounts.db"))


# --- from a config --------------------------------------------------------------------------------


@pytest.fixture
def wards(tmp_path):
    """A table of three wards' patients, and a config of a real run on it."""

    def write(change=lambda lines: lines):
        generator = np.random.default_rng(3)
        lines = [
            [ward, f"{ward}{n}", *(f"{x:.3f}" for x in generator.uniform(0, 1, 2)), n % 2]
            for ward in ("a", "b", "c")
            for n in range(20)
        ]
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["ward", "id", "x", "y", "ill"], *change(lines)])

    test = "ward,id,x,y,ill\n" + "".join(f"t,t{n},0.{n},0.5,{n % 2}\n" for n in range(6))
    (tmp_path / "test.csv").write_text(test)
    write()
    data = {
        "name": "csv",
        "path": str(tmp_path / "rows.csv"),
        "test_path": str(tmp_path / "test.csv"),
        "label": "ill",
        "client": "ward",
        "classes": 2,
        "record": "id",
    }
    privacy = {"epsilon": 3.0, "delta": 1e-3, "rate": 0.8, "clip": 0.5}
    return small(data=data, method__name="dp-fedavg", privacy=privacy, train__rounds=2), write


def lasting(tmp_path, unit, names):
    with Ledger.create(tmp_path / "accounts.db", simulation=False) as ledger:
        ledger.register(names, 100.0, delta=1e-3, unit=unit)
    return tmp_path / "accounts.db"


def test_a_table_that_was_changed_is_noticed_and_a_sorted_one_is_not(wards, tmp_path):
    config, write = wards
    book = lasting(tmp_path, "client", ["a", "b", "c"])
    train(config, output=tmp_path / "one", ledger=book)
    write(lambda lines: lines[::-1])
    train(config, output=tmp_path / "two", ledger=book)
    write(lambda lines: [*lines[:-1], [*lines[-1][:2], "0.999", *lines[-1][3:]]])
    with pytest.raises(Refused, match="rows of client 'c'"):
        train(config, output=tmp_path / "three", ledger=book)
    assert not (tmp_path / "three").exists()


def test_a_hold_out_or_a_sample_is_no_change_of_rows(wards, tmp_path):
    config, _ = wards
    book = lasting(tmp_path, "client", ["a", "b", "c"])
    train(config, output=tmp_path / "one", ledger=book)
    config["data"] |= {"share": 0.5}
    train(config, output=tmp_path / "two", ledger=book)


def test_other_bounds_cannot_be_told_from_other_rows(wards, tmp_path):
    config, _ = wards
    book = lasting(tmp_path, "client", ["a", "b", "c"])
    train(config, output=tmp_path / "one", ledger=book)
    config["data"] |= {"bounds": {"x": [0, 2]}}
    with pytest.raises(Refused, match="rows of client 'a'"):
        train(config, output=tmp_path / "two", ledger=book)


@pytest.mark.full
def test_the_row_of_a_record_is_noticed_too(wards, tmp_path):
    config, write = wards
    names = [f"{ward}{n}" for ward in ("a", "b", "c") for n in range(20)]
    book = lasting(tmp_path, "record", names)
    del config["train"]["batch_size"]
    config["method"]["name"] = "rpdp"
    config["privacy"] |= {"noise_multiplier": 4.0}
    train(config, output=tmp_path / "one", ledger=book)
    write(lambda lines: [*lines[:-1], [*lines[-1][:2], "0.999", *lines[-1][3:]]])
    with pytest.raises(Refused, match=r"rows of record 'c19' are not .* --unit record"):
        train(config, output=tmp_path / "two", ledger=book)


# --- digests --------------------------------------------------------------------------------------


def test_digests_are_those_of_a_multiset():
    x, y = rows(0)
    whole = np.arange(len(y))
    one = digest(x, y, whole)
    assert one == digest(x, y, np.random.default_rng(1).permutation(whole))
    assert one != digest(x, y, np.append(whole, 0))
    assert one != digest(x.reshape(-1, 3, 1), y, whole)  # other columns, same bytes
    zero = np.zeros((1, 2), np.float32)
    assert digest(zero, y[:1], whole[:1]) == digest(-zero, y[:1], whole[:1])
    none = np.zeros(0, dtype=np.int64)
    found = digests(x, y, [whole[:6], whole[6:], none, none - 1, np.array([-1])], [*"abcde"])
    assert list(found) == ["a", "b"]
    assert found["a"] != found["b"]
