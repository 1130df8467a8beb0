"""The ledger of this user: every real run is charged, whoever starts it and however."""

import json
import os
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from lib.runs import stopped

import fedspend
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger, default
from fedspend.ledger.audit import audit
from fedspend.runs import run_ledger
from fedspend.runs.running import COUNTS_AS_A_WHOLE
from fedspend.runs.training import train

pytestmark = pytest.mark.usefixtures("quick_verify")
BUDGETS = {"north": 2.0, "south": 5.0}


def arrays(**changes):
    """A real run on rows in memory: randomness is the operating system's unless told otherwise."""
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    torch.manual_seed(0)
    return {
        "clients": {name: (rows, [0, 1] * 4) for name in BUDGETS},
        "model": torch.nn.Linear(4, 2),
        "plan": fedspend.plan(BUDGETS, delta=1e-3, rounds=3, rate=0.9),
        "test": (rows, [0, 1] * 4),
        "lr": 0.1,
        "batch_size": 4,
        "local_steps": 1,
    } | changes


def spent(location, project):
    with Ledger.open(location, project=project) as ledger:
        return dict(zip(ledger.accounts().names, ledger.balances().spent, strict=True))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory that lasts, and nothing else that says where a ledger could be."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("FEDSPEND_LEDGER", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(default, "file_system", lambda _: "ext4")
    return home


# --- charged ---


@pytest.mark.full
def test_a_real_run_from_python_is_charged_to_the_ledger_of_this_user(ledger_of_this_user):
    notes = []
    result = train(**arrays(), project="clinics", on_note=notes.append)
    assert (result.ledger, result.project) == (str(ledger_of_this_user), "clinics")
    assert notes == [
        f"charged to {ledger_of_this_user}, project 'clinics', which is new there",
        COUNTS_AS_A_WHOLE,
    ]
    with Ledger.open(ledger_of_this_user, project="clinics") as ledger:
        run = ledger.run(result.run)
        assert list(run.rounds.values()) == ["committed"] * 3
        assert run.closed == "finished"
        assert not ledger.simulation
        assert ledger.accounts().budget.tolist() == [2.0, 5.0]
    found = spent(ledger_of_this_user, "clinics")
    assert found["north"] == pytest.approx(2.0, rel=1e-5)
    assert audit(str(ledger_of_this_user)).ok


@pytest.mark.full
def test_a_loop_spends_one_budget_and_not_ten(ledger_of_this_user):
    half = fedspend.plan({"north": 1.0, "south": 2.0}, delta=1e-3, rounds=2, rate=0.9)
    with Ledger.create(ledger_of_this_user, simulation=False, project="clinics") as ledger:
        ledger.register(list(BUDGETS), list(BUDGETS.values()), delta=1e-3)
    ended = []
    for _ in range(10):
        with suppress(Refused):
            ended.append(train(**arrays(plan=half), project="clinics").run)
    assert 2 <= len(ended) < 10
    assert spent(ledger_of_this_user, "clinics")["north"] <= 2.0


def test_two_projects_may_both_have_a_client_north(ledger_of_this_user):
    train(**arrays(), project="clinics")
    train(**arrays(), project="schools")
    for project in ("clinics", "schools"):
        assert spent(ledger_of_this_user, project)["north"] == pytest.approx(2.0, rel=1e-5)
    with Ledger.open(ledger_of_this_user) as ledger:
        assert ledger.state.projects == ["clinics", "schools"]
        assert len(ledger.accounts()) == 0
    assert audit(str(ledger_of_this_user)).ok


@pytest.mark.full(only=["None-clinics"])
@pytest.mark.parametrize(("first", "then"), [("clinics", None), (None, "clinics")])
def test_a_project_left_out_or_put_in_gives_no_budget_out_again(tmp_path, first, then):
    """In a ledger that is named a project is optional, and a slip is easy."""
    ledger = tmp_path / "accounts.db"
    train(**arrays(), ledger=ledger, project=first)
    change = "name it with project 'clinics'" if first else "drop project="
    with pytest.raises(Refused, match=change) as refused:
        train(**arrays(), ledger=ledger, project=then)
    assert "\n" not in str(refused.value)
    with Ledger.open(ledger) as book:
        assert book.state.projects == (["clinics"] if first else [])
        assert len(book.state.runs) == 1


@pytest.mark.full(only=["None"])
@pytest.mark.parametrize("first", ["clinics", None])
def test_a_lookalike_across_the_border_of_a_project_gets_no_second_budget(tmp_path, first):
    ledger = tmp_path / "accounts.db"
    train(**arrays(), ledger=ledger, project=first)
    given = arrays()
    renamed = fedspend.plan(
        {name.title(): float(budget) for name, budget in BUDGETS.items()},
        delta=1e-3,
        rounds=3,
        rate=0.9,
    )
    given |= {"plan": renamed, "clients": {n.title(): r for n, r in given["clients"].items()}}
    with pytest.raises(Refused, match="'north', which 'North' looks like, has an account") as told:
        train(**given, ledger=ledger, project=None if first else "clinics")
    # another project would be refused, too, where the account is outside of projects
    assert ("use another project or ledger" in str(told.value)) == (first is not None)


def test_without_a_project_one_line_asks_for_it(ledger_of_this_user):
    with pytest.raises(InvalidInput, match=r"project=, ledger\.project in the config") as refused:
        train(**arrays())
    assert "\n" not in str(refused.value)
    assert str(ledger_of_this_user) in str(refused.value)
    assert not ledger_of_this_user.exists()


def test_a_project_that_looks_like_another_is_refused(ledger_of_this_user):
    """A slip must not open accounts with all budgets anew."""
    train(**arrays(), project="clinics")
    before = ledger_of_this_user.read_bytes()
    for slip in ("Clinics", "clinics\u200b"):
        with pytest.raises(InvalidInput, match="project"):
            train(**arrays(), project=slip)
    assert ledger_of_this_user.read_bytes() == before
    assert spent(ledger_of_this_user, " clinics ")["north"] > 0, "space at the ends is no slip"


def test_a_list_has_no_names_that_last(ledger_of_this_user):
    given = arrays(plan=fedspend.plan([2.0, 5.0], delta=1e-3, rounds=3, rate=0.9))
    given["clients"] = list(given["clients"].values())
    with pytest.raises(InvalidInput, match="a list has no names"):
        train(**given, project="clinics")
    assert train(**given | {"randomness": "seeded"}).ledger is None
    assert not ledger_of_this_user.exists()


def test_a_simulation_charges_nobody_but_its_own_directory(tiny, tmp_path, ledger_of_this_user):
    assert train(tiny).ledger is None
    result = train(tiny, output=tmp_path / "run")
    assert result.ledger == str(tmp_path / "run" / "ledger.db")
    assert not ledger_of_this_user.exists()


def test_a_run_directory_is_charged_to_the_ledger_of_this_user_too(
    tiny, tmp_path, ledger_of_this_user
):
    tiny["privacy"]["randomness"] = "os"
    tiny["ledger"] = {"project": "tiny"}
    result = train(tiny, output=tmp_path / "one")
    assert not (tmp_path / "one" / "ledger.db").exists()
    assert result.ledger == str(ledger_of_this_user)
    with pytest.raises(Refused, match="lifetime budget"):
        train(tiny, output=tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_resumed_run_keeps_its_ledger_and_project(
    tiny, tmp_path, monkeypatch, ledger_of_this_user
):
    tiny["privacy"]["randomness"] = "os"
    stopped(tiny, tmp_path / "run", project="tiny")
    monkeypatch.setenv("FEDSPEND_LEDGER", str(tmp_path / "another.db"))
    with pytest.raises(InvalidInput, match="under project 'tiny', not under 'other'"):
        train(tiny, output=tmp_path / "run", project="other", resume=True)
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert (result.ledger, result.project) == (str(ledger_of_this_user), "tiny")
    assert len(result.metrics) == 4
    assert not (tmp_path / "another.db").exists()


def test_a_run_of_before_goes_on_with_the_ledger_in_its_directory(tiny, tmp_path, monkeypatch):
    """Real runs once had a ledger of their own; they are finished as they were begun."""
    tiny["privacy"]["randomness"] = "os"
    sound = run_ledger.RunLedger.of_run.__func__
    with monkeypatch.context() as before:
        before.setattr(
            run_ledger.RunLedger,
            "of_run",
            classmethod(lambda cls, *given, **named: sound(cls, *given, **named | {"charged": 0})),
        )
        stopped(tiny, tmp_path / "run")
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert result.ledger == str(tmp_path / "run" / "ledger.db")
    assert len(result.metrics) == 4


@pytest.mark.full
def test_a_password_in_the_environment_is_used_on_resuming_and_never_stored(
    tiny, tmp_path, postgres, monkeypatch
):
    tiny["privacy"]["randomness"] = "os"
    # long: two letters are in one of 200 random names of the server's folder
    word = "nobody-may-read-this"
    secret = postgres.new_database().replace("postgres:@", f"postgres:{word}@")
    assert f":{word}@" in secret
    monkeypatch.setenv("FEDSPEND_LEDGER", secret)
    stopped(tiny, tmp_path / "run", project="tiny")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["ledger"]
    assert word not in stored["location"]
    seen = []
    find = Ledger.find.__func__
    monkeypatch.setattr(
        Ledger,
        "find",
        classmethod(lambda cls, place, **more: (seen.append(place), find(cls, place, **more))[1]),
    )
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert len(result.metrics) == 4
    assert word not in result.ledger
    assert seen == [secret]


def test_a_method_without_privacy_cannot_be_put_on_an_account(tiny, tmp_path):
    tiny["privacy"] = {"randomness": "os"}
    tiny["method"] = {"name": "fedavg"}
    for named in ({"project": "tiny"}, {"ledger": tmp_path / "accounts.db"}):
        with pytest.raises(InvalidInput, match="'fedavg' adds no noise"):
            train(tiny, **named)
    assert train(tiny).ledger is None


# --- without a run directory ---


def test_a_run_in_memory_that_stops_says_what_it_holds(ledger_of_this_user):
    def stop(line, _):
        if line["round"] == 1:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError) as failed:
        train(**arrays(), project="clinics", on_round=stop)
    with Ledger.open(ledger_of_this_user, project="clinics") as ledger:
        (run,) = ledger.state.runs.values()
        assert (run.status, run.next_round) == ("open", 1)
        assert ledger.balances().reserved.min() > 0
    (note,) = failed.value.__notes__
    assert f"close-run {run.id}" in note
    assert "--project 'clinics'" in note


def test_a_run_in_memory_that_never_began_holds_nothing(ledger_of_this_user, monkeypatch):
    def die(*_):
        raise RuntimeError("no rounds today")

    monkeypatch.setattr(fedspend.server.rounds, "prepared", die)
    with pytest.raises(RuntimeError):
        train(**arrays(), project="clinics")
    with Ledger.open(ledger_of_this_user, project="clinics") as ledger:
        (run,) = ledger.state.runs.values()
        assert run.closed == "stopped before its first round"
        assert ledger.balances().total.max() == 0


def test_a_named_ledger_is_charged_without_a_run_directory(tmp_path, ledger_of_this_user):
    result = train(**arrays(), ledger=tmp_path / "accounts.db")
    assert (result.ledger, result.project) == (str(tmp_path / "accounts.db"), "")
    assert spent(tmp_path / "accounts.db", "")["south"] == pytest.approx(5.0, rel=1e-5)
    assert not ledger_of_this_user.exists()


# --- where it is ---


def test_it_is_private_in_the_users_data_folder(home):
    result = train(**arrays(), project="clinics")
    path = home / ".local" / "share" / "fedspend" / "ledger.db"
    assert result.ledger == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("ledger.db.head").stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_is_made_before_a_run_is_charged(home):
    with pytest.raises(InvalidInput, match="project="):
        train(**arrays())
    plan = arrays()["plan"]
    given = plan.replace(parameters=plan.parameters | {"ledger": f"1:{'0' * 64}"})
    with pytest.raises(Refused, match="spends what is left"):
        train(**arrays(plan=given), project="clinics")
    assert list(home.iterdir()) == []


def test_xdg_data_home_counts_if_it_is_absolute(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default.default_ledger() == str(tmp_path / "data" / "fedspend" / "ledger.db")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert default.default_ledger() == str(home / ".local" / "share" / "fedspend" / "ledger.db")


@pytest.mark.full(but=["ramfs"])
@pytest.mark.parametrize("kind", ["tmpfs", "ramfs", "overlay"])
def test_a_home_that_does_not_last_is_refused(home, monkeypatch, kind):
    monkeypatch.setattr(default, "file_system", lambda _: kind)
    with pytest.raises(InvalidInput, match=rf"on {kind}.*FEDSPEND_LEDGER") as refused:
        train(**arrays(), project="clinics")
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("FEDSPEND_LEDGER", str(home / "chosen.db"))
    assert train(**arrays(), project="clinics").ledger == str(home / "chosen.db")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("stated", [None, "", "relative"])
def test_without_a_home_there_is_no_default(monkeypatch, stated):
    monkeypatch.delenv("HOME")
    if stated is not None:
        monkeypatch.setenv("HOME", stated)
    with pytest.raises(InvalidInput, match="HOME"):
        train(**arrays(), project="clinics")


def test_a_home_that_is_gone_or_cannot_be_written_to_is_refused(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    with pytest.raises(InvalidInput, match="does not exist"):
        default.default_ledger()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        default.default_ledger()


def test_the_file_system_is_read_from_the_mounts(tmp_path, monkeypatch):
    """The deepest mount counts; of two at one place, the later."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "20 1 0:1 / / rw - overlay overlay rw\n"
        "21 20 8:1 / /home rw shared:1 - ext4 /dev/sda1 rw\n"
        "22 21 0:9 / /home/a\\040b rw - tmpfs tmpfs rw\n"
        "23 20 0:7 / /srv rw - ext4 /dev/sdb rw\n"
        "24 23 0:8 / /srv rw - tmpfs tmpfs rw\n"
        "nonsense\n"
    )
    monkeypatch.setattr(default, "_MOUNTS", mounts)
    found = {
        path: default.file_system(Path(path))
        for path in ("/", "/home/me", "/home/a b/c", "/homes", "/srv/x")
    }
    assert found == {
        "/": "overlay",
        "/home/me": "ext4",
        "/home/a b/c": "tmpfs",
        "/homes": "overlay",
        "/srv/x": "tmpfs",
    }
    monkeypatch.setattr(default, "_MOUNTS", tmp_path / "none")
    assert default.file_system(Path("/")) is None


@pytest.mark.usefixtures("home")
def test_a_default_ledger_that_vanished_is_not_begun_anew():
    result = train(**arrays(), project="clinics")
    Path(result.ledger).unlink()
    with pytest.raises(Refused, match="is gone"):
        train(**arrays(), project="clinics")


# --- what is never free ---


def test_an_internal_run_is_not_free_either(tiny):
    from fedspend.configuration.config import any_config
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config

    tiny["privacy"]["randomness"] = "os"
    with pytest.raises(InvalidInput, match="--project"):
        run(from_config(any_config(tiny)), None)


def test_compare_design_and_audit_refuse_real_runs(tiny, tmp_path, ledger_of_this_user):
    from fedspend.auditing.entry import audit as audited
    from fedspend.configuration.config import any_config
    from fedspend.design.candidates import read_search
    from fedspend.runs.comparison import compare

    tiny["privacy"]["randomness"] = "os"
    path = tmp_path / "run.toml"
    path.write_text(to_toml(tiny))
    with pytest.raises(InvalidInput, match="simulations only"):
        compare(path, ["idp-fedavg"], 1)
    with pytest.raises(Refused, match="randomness = 'os'"):
        read_search(any_config(tiny))
    with pytest.raises(Refused, match="randomness"):
        audited(tiny)
    assert not ledger_of_this_user.exists()


def to_toml(config):
    lines = []
    for section, values in config.items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            if isinstance(value, list):
                parts = [
                    "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in one.items()) + "}"
                    for one in value
                ]
                lines.append(f"{key} = [{', '.join(parts)}]")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
