"""A private tune from its price to its winner: charged once and beforehand, and nothing but the
winner remains.
"""

import json
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from lib.runs import killed
from owners import verify_run

import fedspend.tuning.private as private
from fedspend import train, tune
from fedspend.basics.toml_text import config_text
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.ledger.export import export_csv, export_json
from fedspend.ledger.export_check import audit_export
from fedspend.tuning.plan import load_tune_plan

GRID = ["train.lr=0.1,0.4", "privacy.saving_rate=0.3,0.6"]
pytestmark = pytest.mark.usefixtures("quick")


def names_under(*folders):
    """All files, but those that SQLite keeps while a ledger is open."""
    return sorted(
        str(place.relative_to(folder))
        for folder in folders
        for place in folder.rglob("*")
        if not place.name.endswith(("-wal", "-shm"))
    )


def tuned(config, folder, **options):
    options = {"trials_mean": 3.0} | options
    return tune(config, GRID[:1], private=True, output=folder, **options)


def test_the_winner_is_a_run_directory_that_verifies(short, tmp_path):
    found = tune(short, GRID, private=True, output=tmp_path / "w", trials_mean=3.0)
    assert found.setting in found.plan.settings
    assert 0 <= found.score <= 1
    checked = verify_run(tmp_path / "w")
    assert [one for one in checked.checks if one.good is False] == []
    stored = json.loads((tmp_path / "w" / "run.json").read_text())
    assert stored["tuned"]["setting"] == list(found.setting)
    assert stored["tuned"]["epsilon"] == pytest.approx(12.0, rel=1e-4)


def test_clients_are_charged_the_whole_price_before_the_first_trial(short, tmp_path, monkeypatch):
    seen = []

    def look(*_, **__):
        with Ledger.open(tmp_path / "w" / "ledger.db") as ledger:
            seen.append([row["spent"] for row in ledger.balances().rows()])
        raise KeyboardInterrupt

    monkeypatch.setattr(private, "play", look)
    with pytest.raises(KeyboardInterrupt):
        tuned(short, tmp_path / "w")
    assert seen[0] == pytest.approx([4, 4, 12, 12, 12, 12], rel=1e-4)


def test_an_interrupted_tune_stays_charged_and_leaves_nothing(short, tmp_path, monkeypatch):
    calls, real = [], private.play

    def stop_later(*arguments):
        calls.append(real(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(private, "play", stop_later)
    with pytest.raises(KeyboardInterrupt):
        tuned(short, tmp_path / "w")
    assert names_under(tmp_path / "w") == [
        "ledger.db",
        "ledger.db.head",
        "ledger_head.json",
        "tune.json",
    ]
    with Ledger.open(tmp_path / "w" / "ledger.db") as ledger:
        assert ledger.balances().spent.tolist() == pytest.approx([4, 4, 12, 12, 12, 12], rel=1e-4)
        [run] = ledger.state.runs.values()
        assert (run.is_tune, run.closed) == (True, None)
    monkeypatch.setattr(private, "play", real)
    with pytest.raises(InvalidInput, match="interrupted, which stays charged"):
        tuned(short, tmp_path / "w")
    with pytest.raises(InvalidInput, match="private tune, which does not go on"):
        train(short, output=tmp_path / "w", resume=True)
    checked = verify_run(tmp_path / "w")
    assert not checked.ok
    assert "without a winner" in checked.checks[0].words


def test_two_tunes_do_not_share_a_folder(short, tmp_path, monkeypatch):
    """One that comes first while another is planning keeps the folder."""
    checked = private._checked

    def come_first(*arguments, **options):
        (tmp_path / "w").mkdir()
        (tmp_path / "w" / "tune.json").write_text("{}")
        return checked(*arguments, **options)

    monkeypatch.setattr(private, "_checked", come_first)
    with pytest.raises(InvalidInput, match="choose another folder"):
        tuned(short, tmp_path / "w")
    assert names_under(tmp_path / "w") == ["tune.json"]


def test_a_tune_killed_before_its_end_is_closed_leaves_a_winner_that_is_charged(short, tmp_path):
    with killed(at="fedspend.ledger.account.RunAccount.close"):
        tuned(short, tmp_path / "w")
    checked = verify_run(tmp_path / "w")
    assert checked.ok, "what is missing is said, and nothing is wrong"
    assert {one.check for one in checked.checks if one.good is None} >= {"files", "model"}


@pytest.mark.full(but=["True"])
@pytest.mark.parametrize("real_rows", [False, True])
def test_what_is_written_does_not_depend_on_the_number_of_trials(
    short, real, tmp_path, monkeypatch, real_rows
):
    """Names, numbers of ledger entries and their keys are the same for 1 trial and for 5; and no
    file holds the number.
    """
    config = real if real_rows else short
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    told = {}
    for number in (1, 5):
        played, play = [], private.play
        monkeypatch.setattr(
            "fedspend.accounting.trials.NegativeBinomial.draw", lambda *_, n=number: n
        )
        monkeypatch.setattr(private, "play", lambda *a, p=play, c=played: c.append(1) or p(*a))
        folder, book = tmp_path / f"w{number}", tmp_path / f"accounts{number}" / "ledger.db"
        book.parent.mkdir()
        tuned(config, folder, **({"ledger": book, "project": "p"} if real_rows else {}))
        monkeypatch.setattr(private, "play", play)
        assert len(played) == number
        place = book if real_rows else folder / "ledger.db"
        with Ledger.open(place, project="p" if real_rows else "") as ledger:
            bodies = [json.loads(text) for _, text, _ in ledger.entries()]
        shape = [(body["kind"], sorted(body)) for body in bodies]
        if real_rows:
            assert all(len(body["time"]) == 10 for body in bodies[1:]), "dated to the day"
        stored = json.loads((folder / "run.json").read_text())
        keys = (sorted(stored), sorted(stored["tuned"]))
        lines = (folder / "metrics.jsonl").read_text().count("\n")
        told[number] = (names_under(folder, book.parent), shape, keys, lines, names_under(scratch))
    assert told[1] == told[5]


@pytest.mark.full
def test_a_real_tune_is_charged_to_a_ledger_that_outlives_it(real, tmp_path, ledger_of_this_user):
    with pytest.raises(InvalidInput, match="say which one it is: project="):
        tuned(real, tmp_path / "w")
    assert not (tmp_path / "w").exists()
    found = tuned(real, tmp_path / "w", project="clinics")
    assert found.ledger == str(ledger_of_this_user)
    checked = verify_run(tmp_path / "w")
    assert [one for one in checked.checks if one.good is False] == []
    stored = json.loads((tmp_path / "w" / "run.json").read_text())
    assert len(stored["began"]) == 10, "to the day"
    assert not (tmp_path / "w" / "hold_out.key").exists()
    # the budget is used up, so nothing more can be run on these clients
    with pytest.raises(Refused, match="would exceed the lifetime budget"):
        tuned(real, tmp_path / "again", project="clinics")
    assert not (tmp_path / "again").exists()
    with pytest.raises(Refused, match="cannot take part"):
        train(real, output=tmp_path / "run", project="clinics")


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_a_tune_and_runs_share_a_lifetime_budget(real, tmp_path):
    """A run, a tune with part of what is left, and a last run with all that remains."""
    book = tmp_path / "accounts.db"
    with Ledger.create(book, simulation=False) as ledger:
        names = [f"clinic {n}" for n in range(4)]
        ledger.register(names, [20.0] * 4, delta=1e-2)
    train(real, output=tmp_path / "first", ledger=book, overrides=["privacy.epsilon=5"])
    tuned(real, tmp_path / "tune", ledger=book)
    with Ledger.open(book) as ledger:
        before = ledger.balances().spent[0]
        assert 8 < before < 13, "composed, not added"
    train(real, output=tmp_path / "last", ledger=book, overrides=["ledger.spend=remaining"])
    with Ledger.open(book) as ledger:
        found = ledger.balances()
        assert np.all(found.spent <= 20.0)
        assert np.all(found.spent > 19.9)
        by_pld = ledger.balances(accountant="pld")
        assert np.array_equal(by_pld.spent, found.spent), "a tune is never read by PLD"
        assert np.all(by_pld.order > 0)
        assert export_csv(ledger, tmp_path / "rows.csv", "client") == 3 * 4 + 4 + 3 * 4
        export_json(ledger, tmp_path / "ledger.json", "client")
    assert "tuned" in (tmp_path / "rows.csv").read_text()
    assert audit(str(book)).ok
    assert audit_export(tmp_path / "ledger.json").ok


@pytest.mark.usefixtures("quick_verify")
def test_what_remains_can_be_spent_on_a_tune(real, tmp_path):
    book = tmp_path / "accounts.db"
    train(real, output=tmp_path / "first", ledger=book)
    with Ledger.open(book, write=True) as ledger:
        ledger.change([f"clinic {n}" for n in range(4)], [16.0] * 4, reason="asked by letter")
    found = tuned(real, tmp_path / "tune", ledger=book, overrides=["ledger.spend=remaining"])
    assert found.plan.ledger is not None
    with Ledger.open(book) as ledger:
        spent = ledger.balances().spent
    assert np.all(spent <= 16.0)
    assert np.all(spent > 15.9)
    assert audit(str(book)).ok
    assert verify_run(tmp_path / "tune").ok


def test_a_forged_charge_is_noticed(real, tmp_path):
    """The price of one trial in the ledger, or another file, does not pass."""
    tuned(real, tmp_path / "w", project="p")
    for name, change in (
        ("tune.json", lambda text: text.replace("0.4", "0.1")),
        ("model.safetensors", lambda text: text[:-1] + "x"),
        ("certificate.json", lambda text: text.replace('"epsilon": 7', '"epsilon": 1')),
        ("metrics.jsonl", lambda text: text.replace('"round": 1', '"round": 2')),
        ("run.json", lambda text: text.replace('"settings": 2', '"settings": 9')),
        ("plan.json", lambda text: text.replace("uniform", "uniformly")),
    ):
        path = tmp_path / "w" / name
        body = path.read_bytes()
        forged = change(body.decode("latin-1")).encode("latin-1")
        if forged == body:
            forged = body + b" "
        path.write_bytes(forged)
        assert not verify_run(tmp_path / "w").ok, name
        path.write_bytes(body)
    assert verify_run(tmp_path / "w").ok


@pytest.mark.full
def test_trials_have_their_own_noise_and_settings_are_drawn(short, tmp_path, monkeypatch):
    outcomes, play = [], private.play
    monkeypatch.setattr("fedspend.accounting.trials.NegativeBinomial.draw", lambda *_: 12)
    monkeypatch.setattr(private, "play", lambda *a: outcomes.append(play(*a)) or outcomes[-1])
    found = tuned(short, tmp_path / "w")
    assert {one.setting for one in outcomes} == {0, 1}
    first = [next(iter(one.model.values())).tobytes() for one in outcomes]
    assert len(set(first)) == 12
    assert found.score == max(one.score for one in outcomes)
    mine = next(one for one in outcomes if one.score == found.score)
    assert found.setting == found.plan.settings[mine.setting]


def test_a_private_metric_is_a_score_that_trials_pay_for(real, tmp_path):
    real["data"].pop("test_path")
    real["data"]["validation"] = 0.3
    with pytest.raises(InvalidInput, match="a score that may be seen"):
        tuned(real, tmp_path / "w", project="p")
    found = tuned(real | {"evaluation": {"mode": "private"}}, tmp_path / "w", project="p")
    assert all(one.metric_noise is not None for one in found.plan.plans)
    assert all(line["accuracy"] is None for line in found.metrics)
    assert verify_run(tmp_path / "w").ok


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["method.name=rpdp"], "protects records"),
        (["method.name=fedavg"], "protects nobody"),
        (["privacy.accountant=pld"], "read by Rényi curves"),
        (["engine.name=flower"], "would see how many trials there are"),
        (["ledger.exhausted=leave-out"], "leaves nobody out by itself"),
        (["ledger.spend=remaining"], "needs a ledger with client accounts"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(short, tmp_path, changes, said):
    with pytest.raises(InvalidInput, match=said):
        tuned(short, tmp_path / "w", overrides=changes)
    assert not (tmp_path / "w").exists()


def test_a_trials_plan_is_for_nothing_else(short, tmp_path):
    from fedspend import Plan

    tuned(short, tmp_path / "w")
    trial = Plan.load(tmp_path / "w" / "plan.json")
    with pytest.raises(InvalidInput, match="one trial of a private tune"):
        train(short, plan=trial, output=tmp_path / "run")
    assert load_tune_plan(tmp_path / "w" / "tune.json").plans[0].clients == trial.clients


def test_a_winner_is_not_published_like_a_run(short, tmp_path):
    from fedspend import publish

    tuned(short, tmp_path / "w")
    with pytest.raises(Refused, match="holds a private tune"):
        publish(tmp_path / "w", tmp_path / "public")
    assert not (tmp_path / "public").exists()


@pytest.mark.full
def test_the_report_says_what_the_tune_cost(short, tmp_path):
    from fedspend.report.html import write_report

    tuned(short, tmp_path / "w")
    write_report([tmp_path / "w"], tmp_path / "w" / "report.html")
    page = (tmp_path / "w" / "report.html").read_text()
    assert "winner of a private tune" in page
    assert "epsilon is at most 12 for every client" in page
    assert verify_run(tmp_path / "w").ok


@pytest.mark.full
def test_a_killed_process_leaves_the_charge_and_nothing_else(short, tmp_path):
    """A real kill, in the middle of a trial."""
    given = json.dumps([short, GRID[:1], str(tmp_path / "w")])
    done = subprocess.run([sys.executable, "-c", DIES], input=given, text=True, check=False)
    assert done.returncode == -9
    assert names_under(tmp_path / "w") == [
        "ledger.db",
        "ledger.db.head",
        "ledger_head.json",
        "tune.json",
    ]
    assert audit(str(tmp_path / "w" / "ledger.db")).ok


# A process of its own: one that is forked may hang on a lock that another thread held.
DIES = """
import json, os, signal, sys
import fedspend
import fedspend.tuning.trial as trial

config, grid, folder = json.load(sys.stdin)
# after the rounds of the first trial
trial.load_parameters = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
fedspend.tune(config, grid, private=True, output=folder, trials_mean=3.0)
"""


@pytest.mark.full(but=["python"])
@pytest.mark.parametrize("door", ["python", "command line"])
def test_times_of_files_do_not_tell_how_long_the_trials_took(short, tmp_path, run, door):
    folder = tmp_path / "w"
    folder.mkdir(mode=0o755)
    if door == "python":
        tuned(short, folder)
    else:
        (tmp_path / "c.toml").write_text(config_text(short))
        outcome = run(
            *("tune", tmp_path / "c.toml", "--private", "--grid", "train.lr=0.1,0.3"),
            *("-o", folder, "--trials-mean", "2", "--quiet"),
        )
        assert outcome.code == 0, outcome
    found = [folder, *folder.rglob("*")]
    assert {"report.html", "ledger.db", "run.json"} <= {path.name for path in found}
    [moment] = {path.stat().st_mtime for path in found}
    assert moment % 86_400 == 0
    assert folder.stat().st_mode & 0o777 == 0o700
