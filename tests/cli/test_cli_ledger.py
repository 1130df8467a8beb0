"""`fedspend ledger`, and `--ledger` of plan and train, as users type them."""

import csv
import json
import random
import stat
import subprocess
import sys

import pytest
from lib.configs import small, write_toml
from places import forge

from fedspend.ledger import Ledger
from fedspend.ledger.rules import Proposal


@pytest.fixture
def clients(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text("client,epsilon\nnorth,10\nsouth,10\neast,20\n")
    return path


@pytest.fixture
def book(run, tmp_path, clients):
    """A real ledger with three clients."""
    place = tmp_path / "accounts.db"
    assert run("ledger", "init", "--ledger", place).code == 0
    assert run("ledger", "register", clients, "--delta", "1e-5", "--ledger", place).code == 0
    return place


@pytest.fixture
def half_spent(book):
    """One run of ten rounds, stopped after five."""
    import fedspend

    names = ["north", "south", "east"]
    with Ledger.open(book, write=True) as ledger:
        plan = fedspend.plan(
            [10.0, 10.0, 20.0],
            delta=1e-5,
            rounds=10,
            rate=0.5,
            clients=names,
            policy="uniform",
            past=ledger.past(names),
        )
        ledger.admit("first", Proposal.of_plan(plan), simulation=False)
        for round in range(5):
            ledger.reserve("first", round)
            ledger.commit("first", round, "x" * 43)
        ledger.close_run("first", reason="stopped early")
    return book


def balance(run, place, *more):
    outcome = run("ledger", "balance", "--ledger", place, "--json", *more)
    assert outcome.code == 0
    return json.loads(outcome.out)


def test_init_register_balance(run, book):
    found = balance(run, book)
    assert [line["client"] for line in found] == ["north", "south", "east"]
    assert (
        [line["budget"] for line in found]
        == [line["remaining"] for line in found]
        == [10.0, 10.0, 20.0]
    )
    assert {"client", "budget", "spent", "reserved", "remaining"} <= found[0].keys()
    assert stat.S_IMODE(book.stat().st_mode) == 0o600
    table = run("ledger", "balance", "--ledger", book).out
    assert "north" in table
    assert "remaining" in table


@pytest.mark.full
def test_plan_with_what_is_left(run, half_spent, tmp_path):
    before = half_spent.read_bytes()
    outcome = run(
        "plan",
        "--ledger",
        half_spent,
        "--rounds",
        8,
        "--rate",
        0.5,
        "-o",
        tmp_path / "next.json",
        "--json",
    )
    assert outcome.code == 0, outcome.err
    assert half_spent.read_bytes() == before, "planning charges nothing"
    assert run("verify", tmp_path / "next.json").code == 0
    import fedspend

    plan = fedspend.Plan.load(tmp_path / "next.json")
    assert plan.clients == ("north", "south", "east")
    assert plan.delta == 1e-5, "the delta of the accounts"
    with Ledger.open(half_spent, write=True) as ledger:
        ledger.admit("second", Proposal.of_plan(plan), simulation=False)
        for round in range(8):
            ledger.reserve("second", round)
    for line in balance(run, half_spent):
        assert line["budget"] * 0.999 <= line["spent"] <= line["budget"]
        assert line["remaining"] == 0
    words = run("plan", "--ledger", half_spent, "--rounds", 8, "--rate", 0.5)
    assert words.code == 1
    assert "client 'north' and 2 more cannot take part" in words.err


def test_plan_with_ledger_in_words(run, half_spent):
    outcome = run("plan", "--ledger", half_spent, "--rounds", 8, "--rate", 0.5)
    assert "budgets are for a lifetime" in outcome.out
    assert "unspent" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "10:3"), "--epsilon sets budgets, but the ledger already has them"),
        (("--budgets", "x.csv"), "--budgets sets budgets"),
        (("--compare", "uniform,geometric"), "cannot go with --ledger"),
        (("--clients", 7), "--clients says 7 clients"),
    ],
)
def test_plan_with_ledger_refuses(run, half_spent, arguments, message):
    outcome = run("plan", "--ledger", half_spent, "--rounds", 8, "--rate", 0.5, *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_another_delta_for_a_plan_is_refused(run, half_spent):
    outcome = run("plan", "--ledger", half_spent, "--rounds", 8, "--rate", 0.5, "--delta", "1e-6")
    assert (outcome.code, "one delta" in outcome.err) == (1, True)


def test_change_withdraw_close(run, book):
    assert (
        run(
            "ledger", "change", "north", "--epsilon", 12, "--reason", "new form", "--ledger", book
        ).code
        == 0
    )
    assert (
        run("ledger", "withdraw", "south", "--reason", "asked by letter", "--ledger", book).code
        == 0
    )
    found = balance(run, book)
    assert [line["budget"] for line in found] == [12.0, 10.0, 20.0]
    assert [line["withdrawn"] for line in found] == [False, True, False]
    history = json.loads(run("ledger", "history", "--ledger", book, "--json").out)
    assert [line["kind"] for line in history] == ["ledger", "register", "change", "withdraw"]
    assert history[-1]["reason"] == "asked by letter"
    again = run("ledger", "withdraw", "south", "--reason", "asked", "--ledger", book)
    assert (again.code, "already withdrawn" in again.err) == (1, True)


def test_show_and_history(run, half_spent):
    whole = json.loads(run("ledger", "show", "--ledger", half_spent, "--json").out)
    assert whole["runs"][0]["run"] == "first"
    assert whole["runs"][0]["begun"] == 5
    one = json.loads(run("ledger", "show", "--run", "first", "--ledger", half_spent, "--json").out)
    assert [line["members"] for line in one["classes"]] == [2, 1]
    client = json.loads(
        run("ledger", "show", "--client", "east", "--ledger", half_spent, "--json").out
    )
    assert client["runs"][0]["begun"] == "5 of 10"
    for arguments in ((), ("--run", "first"), ("--client", "east")):
        assert "first" in run("ledger", "show", *arguments, "--ledger", half_spent).out
    of_run = json.loads(
        run(
            "ledger", "history", "--run", "first", "--last", 2, "--ledger", half_spent, "--json"
        ).out
    )
    assert [line["kind"] for line in of_run] == ["commit", "close"]
    assert (
        "stopped early" in run("ledger", "history", "--client", "east", "--ledger", half_spent).out
    )


def test_verify_and_heads(run, half_spent):
    good = run("ledger", "verify", "--ledger", half_spent, "--json")
    assert good.code == 0
    head = json.loads(good.out)["head"]
    assert run("ledger", "verify", "--ledger", half_spent, "--head", head).code == 0
    later = f"{int(head.split(':')[0]) + 1}:{head.split(':')[1]}"
    cut = run("ledger", "verify", "--ledger", half_spent, "--head", later)
    assert cut.code == 1
    assert "cut off" in cut.out
    other = run(
        "ledger",
        "verify",
        "--ledger",
        half_spent,
        "--head",
        head[:-1] + ("0" if head[-1] != "0" else "1"),
    )
    assert other.code == 1
    assert run("ledger", "verify", "--ledger", half_spent, "--head", f"{half_spent}.head").code == 0


def test_verify_finds_an_overdrawn_account(run, half_spent):
    """A sound chain that says too much: written by a program that does not check."""
    with Ledger.open(half_spent, write=True) as ledger:
        forge(
            ledger,
            {
                "kind": "change",
                "unit": "client",
                "names": ["north"],
                "budgets": [1.0],
                "reason": "forged",
            },
        )
    outcome = run("ledger", "verify", "--ledger", half_spent)
    assert outcome.code == 1
    assert "FAIL" in outcome.out
    assert "'north' has a budget of 1" in outcome.out


def test_export(run, half_spent, tmp_path):
    assert run("ledger", "export", "-o", tmp_path / "x.csv", "--ledger", half_spent).code == 0
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows].count("given back") == 15
    assert len(rows) == 30
    assert rows[0] == rows[0] | {
        "name": "north",
        "run": "first",
        "round": "1",
        "state": "committed",
        "rate": "0.5",
        "steps": "1",
    }
    assert run("ledger", "export", "-o", tmp_path / "x.json", "--ledger", half_spent).code == 0
    document = json.loads((tmp_path / "x.json").read_text())
    import hashlib

    previous = bytes(32)
    for entry in document["entries"]:
        previous = hashlib.sha256(
            previous + entry["number"].to_bytes(8, "big") + entry["text"].encode()
        ).digest()
        assert entry["hash"] == previous.hex()
    assert document["head"] == f"{len(document['entries'])}:{previous.hex()}"
    assert document["balances"]["client"] == balance(run, half_spent)
    again = run("ledger", "export", "-o", tmp_path / "x.csv", "--ledger", half_spent)
    assert (again.code, "--force" in again.err) == (2, True)
    assert (
        run("ledger", "export", "-o", tmp_path / "x.csv", "--force", "--ledger", half_spent).code
        == 0
    )


def test_plots_of_few_and_of_many(run, half_spent, tmp_path):
    assert (
        run(
            "ledger", "balance", "--ledger", half_spent, "--plot", tmp_path / "few.svg", "--json"
        ).code
        == 0
    )
    text = (tmp_path / "few.svg").read_text()
    assert text.startswith("<?xml")
    assert stat.S_IMODE((tmp_path / "few.svg").stat().st_mode) == 0o600, "balances are private"
    with Ledger.open(half_spent, write=True) as ledger:
        ledger.register([f"c{n}" for n in range(100)], [1.0 + n for n in range(100)], delta=1e-5)
    outcome = run("ledger", "balance", "--ledger", half_spent, "--plot", tmp_path / "many.png")
    assert outcome.code == 0
    assert "40 of 102 different balances" in outcome.out
    assert (tmp_path / "many.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), "needs an action"),
        (("balance",), "--ledger"),
        (("fly", "--ledger", "BOOK"), "fly"),
        (("balance", "--ledger", "nowhere.db"), "no ledger 'nowhere.db'"),
        (("balance", "--ledger", "mysql://x/y"), "mysql://"),
        (("balance", "--ledger", ""), "not a path"),
        (("balance", "--ledger", "FOLDER"), "is a directory"),
        (("init", "--ledger", "BOOK"), "already holds a ledger"),
        (("init", "--ledger", "FOLDER/none/x.db"), "there is no directory"),
        (("verify", "--ledger", "nowhere.db"), "no ledger"),
        (("verify", "--ledger", "BOOK", "--head", "12:xyz"), "neither a file nor a head"),
        (("verify", "--ledger", "BOOK", "--runs", "FOLDER"), "keeps no head of a ledger"),
        (("register", "nowhere.csv", "--delta", "1e-5", "--ledger", "BOOK"), "nowhere.csv"),
        (("register", "CLIENTS", "--delta", "nan", "--ledger", "BOOK"), "delta"),
        (("register", "CLIENTS", "--delta", "0", "--ledger", "BOOK"), "delta"),
        (
            ("change", "zoe", "--epsilon", "5", "--reason", "x", "--ledger", "BOOK"),
            "'zoe' is not in the ledger",
        ),
        (("change", "north", "--epsilon", "nan", "--reason", "x", "--ledger", "BOOK"), "nan"),
        (("change", "north", "--epsilon", "-3", "--reason", "x", "--ledger", "BOOK"), "-3"),
        (("change", "north", "--epsilon", "5", "--ledger", "BOOK"), "--reason"),
        (
            ("change", "north", "--epsilon", "5", "--reason", " ", "--ledger", "BOOK"),
            "reason is missing",
        ),
        (("withdraw", "north", "north", "--reason", "x", "--ledger", "BOOK"), "twice"),
        (("close-run", "nope", "--reason", "x", "--ledger", "BOOK"), "no run 'nope'"),
        (("show", "--run", "nope", "--ledger", "BOOK"), "no run 'nope'"),
        (("show", "--client", "zoe", "--ledger", "BOOK"), "'zoe'"),
        (("show", "--client", "north", "--run", "x", "--ledger", "BOOK"), "give one of them"),
        (("history", "--last", "0", "--ledger", "BOOK"), "--last"),
        (("balance", "--client", "zoe", "--ledger", "BOOK"), "'zoe'"),
        (("balance", "--plot", "x.bmp", "--ledger", "BOOK"), ".png"),
        (("export", "-o", "x.xml", "--ledger", "BOOK"), ".csv"),
    ],
)
def test_bad_input(refused, book, clients, tmp_path, arguments, names):
    places = {"BOOK": str(book), "CLIENTS": str(clients), "FOLDER": str(tmp_path)}
    given = [
        places.get(argument, argument).replace("FOLDER", str(tmp_path)) for argument in arguments
    ]
    assert names in refused("ledger", *given)


def test_registering_twice_is_refused(run, book, clients):
    outcome = run("ledger", "register", clients, "--delta", "1e-5", "--ledger", book)
    assert (outcome.code, "'north' is already registered" in outcome.err) == (1, True)


def test_passwords_are_never_shown(run):
    outcome = run(
        "ledger", "balance", "--ledger", "postgresql://ann:secret@127.0.0.1:1/none?password=hidden"
    )
    assert outcome.code == 3
    assert "cannot use the ledger" in outcome.err
    assert "ann@127.0.0.1" in outcome.err
    assert "secret" not in outcome.err + outcome.out
    assert "hidden" not in outcome.err + outcome.out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:p#secret@127.0.0.1:1/db",
        "postgresql://bob:p?secret@127.0.0.1:1/db",
        "postgresql://bob:%zzsecret@127.0.0.1:1/db",
        "postgresql://bob:se/secret@127.0.0.1:1/db",
        "postgresql://bob@127.0.0.1:1/db?sslpassword=secret",
        "postgresql://[secret/db",
        "host=127.0.0.1 port=1 password=secret",
    ],
)
def test_strange_urls_leak_nothing(run, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (("balance",), ("init",)):
        outcome = run("ledger", *command, "--ledger", url)
        assert outcome.code in (2, 3)  # a URL that cannot be read, or a server that is not there
        assert outcome.err.count("\n") == 1
        assert "secret" not in outcome.err + outcome.out
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_text(run, book):
    outcome = run(
        "ledger", "change", "north", "--epsilon", 12, "--reason", "\udcff", "--ledger", book
    )
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "UTF-8" in outcome.err


@pytest.mark.parametrize(
    "content", ['{"ledger":"x","entries":Infinity,"hash":"y"}', "[" * 100_000, "", "{}", "\udcff"]
)
def test_a_head_that_is_none(run, book, tmp_path, content):
    (tmp_path / "head").write_bytes(content.encode(errors="surrogateescape"))
    outcome = run("ledger", "verify", "--ledger", book, "--head", tmp_path / "head")
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1


def test_lowering_a_budget_under_an_open_run(run, book):
    import fedspend

    plan = fedspend.plan(
        [9.0, 9.0, 18.0],
        delta=1e-5,
        rounds=10,
        rate=0.5,
        clients=["north", "south", "east"],
        policy="uniform",
        accountant="rdp",
    )
    with Ledger.open(book, write=True) as ledger:
        ledger.admit("first", Proposal.of_plan(plan), simulation=False)
        ledger.reserve("first", 0)
    lowered = run(
        "ledger", "change", "north", "--epsilon", 8, "--reason", "stricter", "--ledger", book
    )
    assert lowered.code == 0
    assert "open runs hold more than that" in lowered.err
    checked = run("ledger", "verify", "--ledger", book)
    assert checked.code == 0, "nobody has overspent"
    assert "hold more than the budget of 1" in checked.out
    assert (
        run(
            "ledger", "close-run", "first", "--reason", "north is stricter now", "--ledger", book
        ).code
        == 0
    )
    again = run("ledger", "close-run", "first", "--reason", "again", "--ledger", book)
    assert (again.code, "was closed (north is stricter now)" in again.err) == (1, True)


def test_verify_says_when_there_is_no_head_to_hold_it_against(run, book):
    (book.parent / f"{book.name}.head").unlink()
    outcome = run("ledger", "verify", "--ledger", book)
    assert outcome.code == 0
    assert "none  heads" in outcome.out
    assert "give --head or --runs" in outcome.out


def test_help_of_every_action(run):
    for action in (
        "init",
        "register",
        "change",
        "withdraw",
        "show",
        "balance",
        "history",
        "verify",
        "export",
        "close-run",
    ):
        outcome = run("ledger", action, "--help")
        assert outcome.code == 0
        assert "--ledger" in outcome.out


@pytest.mark.full
def test_keeping_the_account_needs_no_torch(half_spent):
    commands = (
        ["verify"],
        ["balance"],
        ["change", "north", "--epsilon", "11", "--reason", "consent"],
    )
    lines = [["ledger", *command, "--ledger", str(half_spent)] for command in commands]
    lines.append(["plan", "--rounds", "3", "--rate", "0.5", "--ledger", str(half_spent)])
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from fedspend.cli.main import main\n"
        f"for line in {lines!r}:\n    assert main(line) == 0, line"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=600)


@pytest.mark.full
def test_flipped_bits_are_detected_or_harmless(run, half_spent, tmp_path):
    """Every bit that is flipped either fails verification or changes nothing that can be read."""
    good, expected = half_spent.read_bytes(), balance(run, half_spent)
    dice, noticed = random.Random(11), 0
    folder = tmp_path / "flipped"
    for attempt in range(120):
        at = dice.randrange(len(good))
        flipped = bytearray(good)
        flipped[at] ^= 1 << dice.randrange(8)
        place = folder / f"{attempt}" / "accounts.db"
        place.parent.mkdir(parents=True)
        place.write_bytes(flipped)
        outcome = run("ledger", "verify", "--ledger", place)
        assert outcome.code in (0, 1), (at, outcome.err)
        if outcome.code == 0:
            assert balance(run, place) == expected, f"byte {at}"
        else:
            noticed += 1
    assert noticed > 5


# --- training from the command line ---


@pytest.fixture
def config(tmp_path):
    settings = small("plain", data__clients=5, privacy__epsilon=6.0, train__rounds=3)
    return write_toml(tmp_path / "tiny.toml", settings)


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_train_twice_then_the_rest(run, config, tmp_path):
    place = tmp_path / "accounts.db"
    assert run("train", config, "-o", tmp_path / "one", "--ledger", place, "--quiet").code == 0
    assert all(5.99 < line["spent"] <= 6 for line in balance(run, place))
    head = (tmp_path / "accounts.db.head").read_text()
    second = run("train", config, "-o", tmp_path / "two", "--ledger", place, "--quiet")
    assert second.code == 1
    assert second.err.count("\n") == 1
    assert not (tmp_path / "two").exists()
    assert (tmp_path / "accounts.db.head").read_text() == head
    for client in range(5):
        assert (
            run(
                "ledger", "change", client, "--epsilon", 9, "--reason", "consent", "--ledger", place
            ).code
            == 0
        )
    third = run("train", config, "-o", tmp_path / "three", "--ledger", place, "--remaining")
    assert third.code == 0, third.err
    assert all(8 < line["spent"] <= 9 for line in balance(run, place))
    assert (
        run(
            "ledger", "verify", "--ledger", place, "--runs", tmp_path / "one", tmp_path / "three"
        ).code
        == 0
    )


@pytest.mark.usefixtures("quick_verify")
def test_replan_needs_resume_and_resume_speaks(run, config, tmp_path):
    alone = run("train", config, "-o", tmp_path / "one", "--replan")
    assert (alone.code, "--resume" in alone.err) == (2, True)
    assert run("train", config, "-o", tmp_path / "one", "--quiet").code == 0
    again = run("train", config, "-o", tmp_path / "one", "--resume")
    assert again.code == 0
    assert "3 rounds are committed; no round was under way" in again.err
    none = run("train", config, "-o", tmp_path / "two", "--remaining")
    assert (none.code, "needs a ledger" in none.err) == (2, True)


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_train_under_a_plan_that_was_approved(run, config, tmp_path):
    place = tmp_path / "accounts.db"
    assert run("plan", config, "-o", tmp_path / "plan.json", "--quiet").code == 0
    under = ("train", config, "--plan", tmp_path / "plan.json", "--ledger", place, "--quiet")
    assert run(*under, "-o", tmp_path / "one").code == 0
    assert (tmp_path / "one" / "plan.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    over = run(*under, "-o", tmp_path / "two")
    assert (over.code, (tmp_path / "two").exists()) == (1, False)
    for client in range(5):
        run("ledger", "change", client, "--epsilon", 9, "--reason", "consent", "--ledger", place)
    assert run("plan", config, "--ledger", place, "-o", tmp_path / "rest.json", "--quiet").code == 0
    rest = (
        "train",
        config,
        "--plan",
        tmp_path / "rest.json",
        "--ledger",
        place,
        "--quiet",
        "-o",
        tmp_path / "three",
    )
    assert run(*rest).code == 0
    assert all(8 < line["spent"] <= 9 for line in balance(run, place))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("train.rounds=4", "the plan has 3 rounds, but the config says 4"),
        ("method.name=dp-fedavg", "the plan is for method 'idp-fedavg'"),
        ("privacy.epsilon=7", "the plan has a budget of 6 for client '0', but the config has 7"),
    ],
)
def test_a_plan_for_something_else(run, config, tmp_path, changes, message):
    assert run("plan", config, "-o", tmp_path / "plan.json", "--quiet").code == 0
    outcome = run(
        "train", config, "--plan", tmp_path / "plan.json", "-o", tmp_path / "one", "--set", changes
    )
    assert (outcome.code, (tmp_path / "one").exists()) == (2, False)
    assert message in outcome.err


def test_a_plan_for_other_bits_or_other_ids(run, config, tmp_path):
    """Noise that is coarser on its grid than the plan reckons with, or a plan for other clients."""
    discrete = ("--set", "privacy.noise=discrete")
    plan, folder = tmp_path / "plan.json", tmp_path / "one"
    assert run("plan", config, *discrete, "-o", plan, "--quiet").code == 0
    train = ("train", config, "--plan", plan, "-o", folder, "--quiet", *discrete)
    outcome = run(*train, "--set", "privacy.bits=14")
    assert (outcome.code, folder.exists()) == (1, False)
    assert "14 bits are too few" in outcome.err
    outcome = run(*train, "--set", "data.clients=7")
    assert (outcome.code, folder.exists()) == (2, False)
    assert "is not in the plan" in outcome.err
    assert run(*train, "--set", "privacy.bits=32").code == 0
