"""`fedspend records` as users type it."""

import csv
import json
import stat
import subprocess
import sys

import numpy as np
import pytest

from fedspend import records

PAPER = {"delta": 1e-3, "rounds": 20, "local_steps": 5, "client_rate": 0.5, "noise_multiplier": 1.0}
TERMS = ["--delta", "1e-3", "--rounds", "20", "--local-steps", "5", "--client-rate", "0.5"]
NOISE = ["--noise", "1"]


@pytest.fixture
def budgets(tmp_path):
    path = tmp_path / "budgets.csv"
    path.write_text("record,client,epsilon\np1,north,0.01\np2,north,0.02\np3,south,0.1\np4,south,1\np5,south,500\n")
    return path


def test_rates_are_written_and_told(run, budgets, tmp_path):
    out, plot = tmp_path / "rates.csv", tmp_path / "rates.png"
    outcome = run("records", "rates", budgets, *TERMS, *NOISE, "-o", out, "--plot", plot)
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader(out.open()))
    assert [row["record"] for row in rows] == ["p1", "p2", "p3", "p4", "p5"]
    rates = np.array([float(row["rate"]) for row in rows])
    assert rates.tolist() == records.rates([0.01, 0.02, 0.1, 1, 500], **PAPER).tolist()
    assert [float(row["spent"]) for row in rows] == pytest.approx(records.epsilon(rates, **PAPER).tolist())
    assert "Left out at rate 0, since no rate can meet the budget: 2 records: p1, p2." in outcome.out
    assert "Clients without a single usable record: north" in outcome.out
    assert "R^2 0.99" in outcome.out
    assert "overspend" in outcome.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600, "rates tell budgets"


def test_json_has_everything(run, budgets):
    document = json.loads(run("records", "rates", budgets, *TERMS, *NOISE, "--json").out)
    assert document["left_out"] == ["p1", "p2"]
    assert document["idle_clients"] == ["north"]
    assert document["overspent"] == 0
    assert document["fit"]["r_squared"] > 0.99
    assert document["fit"]["worst_overspending"] == pytest.approx(83.7, rel=0.01)
    assert document["fit"]["worst_budget"] == 0.01
    by_observer = document["levels"][3]["spent"]
    assert by_observer["public"] == by_observer["sees-participation"] < by_observer["picks-participants"]


def test_the_papers_rates_are_called_over_budget(run, budgets):
    outcome = run("records", "rates", budgets, *TERMS, *NOISE, "--method", "scf")
    assert outcome.code == 0
    assert "OVER BUDGET: 4 of 5 records" in outcome.out
    clamped = run("records", "rates", budgets, *TERMS, *NOISE, "--method", "scf-clamped")
    assert "OVER BUDGET" not in clamped.out


def test_noise_is_suggested(run, tmp_path):
    path, plot = tmp_path / "b.csv", tmp_path / "n.svg"
    assert run("records", "draw", "three-levels", 200, "-o", path, "--seed", 3).code == 0
    outcome = run("records", "noise", path, *TERMS, "--plot", plot)
    assert outcome.code == 0, outcome.err
    assert "Suggested noise multiplier" in outcome.out
    document = json.loads(run("records", "noise", path, *TERMS, "--json").out)
    best = min((one for one in document["candidates"] if one["step_noise"]), key=lambda one: one["step_noise"])
    assert document["noise_multiplier"] == best["noise_multiplier"]
    assert plot.exists()


def test_drawn_budgets_can_be_read_and_repeat(run, tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    for path in (first, second):
        assert run("records", "draw", "bounded-pareto", 50, "-o", path, "--seed", 1).code == 0
    assert first.read_bytes() == second.read_bytes()
    assert run("records", "rates", first, *TERMS, *NOISE).code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("record,epsilon\n", "no row under it"),
        ("record,epsilon\na,\n", "budgets.csv:2: epsilon is empty"),
        ("record,epsilon\na,-1\n", "budgets.csv:2: epsilon must be a positive number, got '-1'"),
        ("record,epsilon\na,1\nb,nan\n", "budgets.csv:3"),
        ("record,epsilon\na,inf\n", "budgets.csv:2"),
        ("record,epsilon\na,1\na,2\n", "budgets.csv:3: record 'a' stands there twice, first on line 2"),
        ("record,epsilon\n,1\n", "record is empty"),
        ("record,client,epsilon\na,,1\n", "client is empty"),
        ("record,budget\na,1\n", "unknown column"),
        ("record\na\n", "'epsilon' is missing"),
        ("record;epsilon\na;1\n", "unknown column"),
    ],
)
def test_bad_files(refused, tmp_path, text, told):
    path = tmp_path / "budgets.csv"
    path.write_text(text)
    assert told in refused("records", "rates", path, *TERMS, *NOISE, "-o", tmp_path / "rates.csv")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--noise", "nan"], "noise_multiplier"),
        (["--noise", "0"], "noise_multiplier"),
        ([], "--noise"),
        ([*NOISE, "--method", "exakt"], "did you mean 'exact'"),
        ([*NOISE, "-o", "rates.txt"], "must end in .csv"),
        ([*NOISE, "--plot", "rates.gif"], "must end in"),
        ([*NOISE, "--delta", "2"], "delta"),
        ([*NOISE, "--rounds", "0"], "rounds"),
        ([*NOISE, "--client-rate", "1.5"], "client_rate"),
    ],
)
def test_bad_arguments(refused, budgets, arguments, told):
    assert told in refused("records", "rates", budgets, *TERMS, *arguments)


def test_other_refusals(refused, budgets, tmp_path):
    assert "needs an action: rates, noise, draw" in refused("records")
    assert "did you mean 'three-levels'" in refused("records", "draw", "three-level", 5, "-o", tmp_path / "x.csv")
    assert "records" in refused("records", "draw", "three-levels", 0, "-o", tmp_path / "x.csv")
    assert "exists" in refused("records", "rates", budgets, *TERMS, *NOISE, "-o", budgets)
    line = refused("records", "rates", budgets, *TERMS, "--noise", "0.3", "--method", "scf", code=1)
    assert "use method exact" in line


def test_no_torch(budgets):
    code = (
        "import sys; from fedspend.cli.main import main; "
        f"assert main(['records', 'rates', {str(budgets)!r}, *{TERMS + NOISE!r}, '--json']) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
