"""What was spent is one number: every view of a run says what its accounts say."""

import csv
import json
import re

import numpy as np
import pytest

import fedspend
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.cli.train import print_summary, summary_of
from fedspend.explanation.leaving import leaving
from fedspend.ledger import Ledger
from fedspend.ledger.documents import run_document
from fedspend.ledger.export import export_csv, export_json
from fedspend.ledger.export_check import audit_export
from fedspend.report.html import summary
from fedspend.report.run_data import load_run
from fedspend.report.sections import spent
from fedspend.runs.verifying import verify_run

pytestmark = pytest.mark.usefixtures("quick_verify")

STOP = {"patience": 1, "least": 0.9}  # nothing is ever so much better: it stops after 2 rounds
RECORDS = {
    "data": {"name": "synthetic", "examples": 60, "features": 3, "classes": 2, "clients": 3},
    "model": {"name": "logistic"},
    "method": {"name": "rpdp"},
    "privacy": {
        "preferences": "three-levels",
        "delta": 1e-3,
        "rate": 0.9,
        "noise_multiplier": 6.0,
        "clip": 0.5,
    },
    "train": {"rounds": 4, "local_steps": 2, "lr": 0.3, "seed": 1},
}


class Killed(Exception):
    pass


@pytest.fixture
def config(tiny):
    """Everybody has a budget of 4, so that one number says it all."""
    del tiny["privacy"]["groups"]
    tiny["method"] = {"name": "idp-fedavg"}
    tiny["privacy"]["epsilon"] = 4.0
    del tiny["privacy"]["saving_rate"]
    tiny["train"] |= {"rounds": 5, "tail_average": 1}
    return tiny


def largest_of(text):
    """The largest amount in "4.41 of 5"."""
    return max(map(float, re.findall(r"(?<![\d.])(?<!of )([\d.]+)\s+of", text)))


def recomputed(ledger, unit, folder):
    """The largest epsilon of an account, from nothing but the rows of the CSV export."""
    export_csv(ledger, folder / "account.csv", unit)
    rows = list(csv.DictReader((folder / "account.csv").open()))
    accounts = ledger.accounts(unit)
    return max(
        max(
            epsilon_of([row for row in mine if row["state"] != "given back"], delta, order),
            # of a run that gave rounds back, all of its plan is a statement
            *(epsilon_of([row for row in mine if row["run"] == run], delta) for run in runs),
        )
        for name, delta, order in zip(accounts.names, accounts.delta, accounts.order, strict=True)
        for mine in ([row for row in rows if row["name"] == name],)
        for runs in ({row["run"] for row in mine},)
    )


def epsilon_of(rows, delta, order=0.0):
    """At the account's order, where there are several runs."""
    parts = [
        Mechanisms.of_schedules(
            np.array([[float(row["noise_multiplier"])]]),
            np.array([[float(row["rate"])]]),
            float(row["client_rate"]),
            np.array([[float(row["steps"])]]),
            False,
        )
        for row in rows
    ]
    several = len({row["run"] for row in rows}) > 1
    together = Mechanisms.joined(parts, 1).bound_to(np.array([order if several else 0.0]))
    return float(together.best(np.array([delta]))[0][0])


def says_one_number(result, capsys, tmp_path, unit="client"):
    """The largest epsilon that accounts have spent, after every view was compared with it."""
    with Ledger.open(result.ledger, project=result.project) as ledger:
        balance = float(ledger.balances(unit).spent.max())
        exported = recomputed(ledger, unit, tmp_path)
    run, folder = load_run(result.folder, "run"), result.folder
    print_summary(result, folder)
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "epsilon spent" in line)
    exact = {
        "last line": max(result.metrics[-1]["epsilon"].values()),
        "--json": max(summary_of(result, folder)["epsilon"].values()),
        "report --json": max(summary(run)["epsilon"].values()),
        "csv export": exported,
    }
    if result.by_client is not None:
        exact["each client"] = max(row["epsilon"] for row in result.by_client())
    assert exact == pytest.approx(dict.fromkeys(exact, balance), rel=1e-6)
    for view in (told, " ".join(spent(run))):
        assert largest_of(view) == pytest.approx(balance, abs=0.006), view
    assert run.disagreement() is None
    return balance


def test_after_the_last_round(config, capsys, tmp_path):
    result = fedspend.train(config, output=tmp_path / "run")
    assert says_one_number(result, capsys, tmp_path) == pytest.approx(4, rel=1e-5)


def test_after_a_stop(config, capsys, tmp_path):
    result = fedspend.train(config | {"stop": STOP}, output=tmp_path / "run")
    assert len(result.metrics) == 2
    assert says_one_number(result, capsys, tmp_path) == pytest.approx(4, rel=1e-5)
    assert fedspend.train(config | {"stop": STOP}).metrics[-1] == result.metrics[-1]


def test_after_a_lost_round(config, capsys, tmp_path, monkeypatch):
    config["privacy"]["randomness"] = "os"
    given = {"output": tmp_path / "run", "ledger": tmp_path / "real.db"}
    real = fedspend.server.rounds.play

    def play(progress, *rest):
        if progress.done == 4:
            raise Killed
        return real(progress, *rest)

    with monkeypatch.context() as dying:
        dying.setattr(fedspend.server.rounds, "play", play)
        with pytest.raises(Killed):
            fedspend.train(config, **given)
    result = fedspend.train(config, **given, resume=True)
    assert result.metrics[-1]["skipped"]
    assert says_one_number(result, capsys, tmp_path) == pytest.approx(4, rel=1e-5)


@pytest.mark.full(only=["stop0"])
@pytest.mark.parametrize("stop", [{}, {"stop": STOP}])
def test_of_what_was_left_of_lifetime_budgets(config, stop, capsys, tmp_path):
    book = tmp_path / "book.db"
    with Ledger.create(book, simulation=True) as ledger:
        ledger.register([str(n) for n in range(6)], 5.0, delta=1e-3)
    fedspend.train(config | {"train": config["train"] | {"rounds": 2}}, ledger=book)
    config |= {"ledger": {"spend": "remaining"}} | stop
    result = fedspend.train(config, ledger=book, output=tmp_path / "run")
    alone = float(result.plan.epsilon.max())
    found = says_one_number(result, capsys, tmp_path)
    assert alone < found <= 5
    assert (found < 4.9) == bool(stop), "a stopped run gives back what it left out"


@pytest.mark.full
def test_of_records(capsys, tmp_path):
    for name, stop in ("whole", {}), ("stopped", {"stop": STOP}):
        result = fedspend.train(RECORDS | stop, output=tmp_path / name)
        says_one_number(result, capsys, tmp_path, "record")
        found = {one.check: one.good for one in verify_run(result.folder).checks}
        assert found["account"] is True
        rows = result.by_client()
        assert all(row["budget"] >= row["epsilon"] for row in rows)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_what_leaving_gives_back_is_what_closing_does(config, tmp_path, run, accountant):
    """Also of a run with a stopping rule that has begun; not of one that fits only as a whole."""
    config = config | {"stop": {"patience": 9}}
    config["privacy"] |= {"randomness": "os", "accountant": accountant}
    book = tmp_path / "real.db"

    def stop(line, _rounds):
        if line["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        fedspend.train(config, output=tmp_path / "run", ledger=book, on_round=stop)
    plan = fedspend.Plan.load(tmp_path / "run" / "plan.json")
    with Ledger.open(book) as ledger:
        (name,) = ledger.state.runs
        told = leaving(plan, "client", plan.clients[0], 2, ledger.state)
    words = ("explain", tmp_path / "run" / "plan.json", "--client", plan.clients[0])
    page = " ".join(run(*words, "--leaves", "2", "--ledger", book).out.split())
    with Ledger.open(book, write=True) as ledger:
        ledger.close_run(name, reason="a machine broke")
        balances = ledger.balances()
        shown = run_document(ledger.state, name)
    assert told.given_back == told.left == balances.remaining[0]
    assert told.if_closed == balances.spent[0] == pytest.approx(4, rel=1e-4)
    alone = accountant == "pld"
    assert (told.given_back == 0) == alone
    assert ("nothing: once it has begun, the run counts as a whole" in page) == alone
    assert ("free again" in page) != alone
    kept = "; all of its rounds stay spent" if alone else ""
    assert shown["status"] == f"closed: a machine broke{kept}"


def test_a_result_shows_the_model_that_it_hands_back(config):
    result = fedspend.train(config | {"stop": STOP})
    assert result.value != result.metrics[-1]["accuracy"]
    assert f"accuracy {result.value:.1%}" in repr(result)


def test_an_export_names_records_as_records(tmp_path):
    with Ledger.create(tmp_path / "book.db", simulation=True) as ledger:
        ledger.register(["p1"], 1.0, delta=1e-3, unit="record")
        export_json(ledger, tmp_path / "book.json", "record")
    (row,) = json.loads((tmp_path / "book.json").read_text())["balances"]["record"]
    assert row["record"] == "p1"
    assert "client" not in row
    assert audit_export(tmp_path / "book.json").ok
