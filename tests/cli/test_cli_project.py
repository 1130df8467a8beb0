"""Real runs from the command line: charged to the ledger of this user, project by project."""

import json

import pytest
from lib.configs import changed, small, write_toml

from fedspend.ledger import Ledger

pytestmark = pytest.mark.usefixtures("quick_verify")
DATA = {
    "name": "csv",
    "path": "rows.csv",
    "test_path": "public.csv",
    "label": "sick",
    "client": "hospital",
    "classes": 2,
}
CONFIG = small(
    "plain",
    data=DATA,
    privacy={"budgets": "budgets.csv", "delta": 1e-3, "rate": 0.9},
    train={"rounds": 3, "local_steps": 1, "batch_size": 4, "lr": 0.1},
)


@pytest.fixture
def config(tmp_path):
    """Two hospitals' own rows: the run is real by default."""
    lines = [f"{hospital},{n}.5,{n % 2}" for hospital in ("north", "south") for n in range(6)]
    for name in ("rows.csv", "public.csv"):
        (tmp_path / name).write_text("\n".join(["hospital,age,sick", *lines]) + "\n")
    (tmp_path / "budgets.csv").write_text("client,epsilon\nnorth,3\nsouth,6\n")
    return write_toml(tmp_path / "clinics.toml", CONFIG)


def test_a_real_run_asks_for_its_project(refused, config, tmp_path, ledger_of_this_user):
    line = refused("train", config, "-o", tmp_path / "run")
    assert "--project NAME" in line
    assert str(ledger_of_this_user) in line
    assert not ledger_of_this_user.exists()


@pytest.mark.full
def test_what_was_charged_is_said_and_can_be_looked_up(run, config, tmp_path, ledger_of_this_user):
    outcome = run("train", config, "-o", tmp_path / "one", "--project", "clinics")
    assert outcome.code == 0, outcome.err
    assert f"Charged to: {ledger_of_this_user}, project 'clinics', run " in outcome.out
    assert f"charged to {ledger_of_this_user}, project 'clinics'" in outcome.err
    found = json.loads(run("ledger", "balance", "--project", "clinics", "--json").out)
    assert [line["client"] for line in found] == ["north", "south"]
    assert found[0]["spent"] == pytest.approx(3.0, rel=1e-4)
    shown = run("ledger", "show").out
    assert "clinics" in shown
    assert run("ledger", "verify").code == 0
    exported = tmp_path / "account.json"
    assert run("ledger", "export", "-o", exported).code == 0
    assert list(json.loads(exported.read_text())["projects"]) == ["clinics"]
    assert "clinics" in run("ledger", "history").out
    again = run("train", config, "-o", tmp_path / "two", "--project", "clinics")
    assert again.code == 1
    assert "lifetime budget" in again.err
    assert not (tmp_path / "two").exists()


def test_json_says_where_it_was_charged(run, config, tmp_path, ledger_of_this_user):
    outcome = run("train", config, "-o", tmp_path / "run", "--project", "clinics", "--json")
    summary = json.loads(outcome.out.splitlines()[-1])
    assert (summary["ledger"], summary["project"]) == (str(ledger_of_this_user), "clinics")
    with Ledger.open(ledger_of_this_user, project="clinics") as ledger:
        assert summary["run"] in ledger.state.runs


def test_the_config_may_name_the_project(run, config, tmp_path, ledger_of_this_user):
    write_toml(config, changed(CONFIG, ledger__project="clinics"))
    assert run("train", config, "-o", tmp_path / "run", "--quiet").code == 0
    with Ledger.open(ledger_of_this_user) as ledger:
        assert ledger.state.projects == ["clinics"]


@pytest.mark.full
def test_registered_beforehand_and_spent_in_parts(run, config, tmp_path):
    lifetime = tmp_path / "lifetime.csv"
    lifetime.write_text("client,epsilon\nnorth,5\nsouth,10\n")
    assert run("ledger", "init").code == 0
    own = ("--project", "clinics")
    outcome = run("ledger", "register", lifetime, "--delta", "1e-3", *own)
    assert "under project 'clinics'" in outcome.out
    assert run("train", config, "-o", tmp_path / "one", "--quiet", *own).code == 0
    plan = tmp_path / "rest.json"
    rest = ("plan", config, "--set", "ledger.spend=remaining", "-o", plan, *own)
    assert run(*rest).code == 0
    outcome = run("train", config, "-o", tmp_path / "two", "--plan", plan, "--quiet", *own)
    assert outcome.code == 0, outcome.err
    found = json.loads(run("ledger", "balance", "--json", *own).out)
    # planned on a Rényi curve, and read by PLD, which is lower
    assert 4.0 < found[0]["spent"] <= 5.0


@pytest.mark.full
def test_a_project_that_is_not_there_does_not_look_unspent(run, refused, config, tmp_path):
    run("train", config, "-o", tmp_path / "run", "--project", "clinics", "--quiet")
    for action in (
        ("balance",),
        ("show",),
        ("change", "north", "--epsilon", "9", "--reason", "asked"),
        ("withdraw", "north", "--reason", "asked"),
    ):
        line = refused("ledger", *action, "--project", "schools")
        assert "no project 'schools'" in line
        assert "'clinics'" in line
    assert "name one with --project" in refused("ledger", "balance")
    assert "name one with --project" in refused("ledger", "export", "-o", tmp_path / "x.csv")
    line = refused("plan", config, "--project", "clinics")
    assert "--ledger" in line


def test_a_run_of_a_project_is_closed_under_its_name(run, refused, ledger_of_this_user):
    import fedspend
    from fedspend.ledger.rules import Proposal

    plan = fedspend.plan({"a": 2.0}, delta=1e-3, rounds=2, rate=0.5)
    with Ledger.create(ledger_of_this_user, simulation=False, project="clinics") as ledger:
        ledger.admit("one", Proposal.of_plan(plan), simulation=False)
    close = ("ledger", "close-run", "one", "--reason", "enough")
    assert "--project 'clinics'" in refused(*close)
    assert run(*close, "--project", "clinics").code == 0


def test_who_leaves_a_run_of_a_project(run, tmp_path, ledger_of_this_user):
    import fedspend

    plan = fedspend.plan({"a": 2.0, "b": 4.0}, delta=1e-3, rounds=4, rate=0.5)
    plan.save(tmp_path / "plan.json")
    with Ledger.create(ledger_of_this_user, simulation=False, project="clinics") as ledger:
        ledger.register(["a", "b"], [3.0, 5.0], delta=1e-3)
    asked = ("explain", tmp_path / "plan.json", "--client", "a", "--leaves", "2", "--json")
    own = ("--ledger", ledger_of_this_user, "--project", "clinics")
    found = json.loads(run(*asked, *own).out)
    assert found["budget"] == 3.0


@pytest.mark.full
def test_simulated_and_real_accounts_are_told_apart_before_balances(run, refused, config, tmp_path):
    write_toml(config, changed(CONFIG, ledger__location="accounts.db"))
    seeded = ("--set", "privacy.randomness=seeded")
    outcome = run("train", config, "-o", tmp_path / "sim", *seeded)
    assert outcome.code == 0, outcome.err
    accounts = tmp_path / "accounts.db"
    assert f"{accounts}, which the config names, becomes a ledger of simulated" in outcome.err
    assert f"Charged to: {accounts} (simulated accounts), run " in outcome.out
    line = refused("train", config, "-o", tmp_path / "real", code=1)
    assert "keeps simulated accounts, and this run is real" in line
    other = ("--ledger", tmp_path / "real.db")
    outcome = run("train", config, "-o", tmp_path / "real", *other)
    assert outcome.code == 0, outcome.err
    assert "becomes" not in outcome.err
    line = refused("train", config, "-o", tmp_path / "sim2", *seeded, *other, code=1)
    assert "keeps real accounts, and this run is a simulation" in line
