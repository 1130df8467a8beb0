"""`fedspend records` as users type it."""

import csv
import json
import stat
import subprocess
import sys

import numpy as np
import pytest
from lib.configs import changed, small, write_toml

from fedspend import records

PAPER = {"delta": 1e-3, "rounds": 20, "local_steps": 5, "client_rate": 0.5, "noise_multiplier": 1.0}
TERMS = ["--delta", "1e-3", "--rounds", "20", "--local-steps", "5", "--client-rate", "0.5"]
NOISE = ["--noise", "1"]


@pytest.fixture
def budgets(tmp_path):
    path = tmp_path / "budgets.csv"
    path.write_text(
        "record,client,epsilon\np1,north,0.01\np2,north,0.02\np3,south,0.1\np4,south,1\np5,south,500\n"
    )
    return path


@pytest.mark.full
def test_rates_are_written_and_told(run, budgets, tmp_path):
    out, plot = tmp_path / "rates.csv", tmp_path / "rates.png"
    outcome = run("records", "rates", budgets, *TERMS, *NOISE, "-o", out, "--plot", plot)
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader(out.open()))
    assert [row["record"] for row in rows] == ["p1", "p2", "p3", "p4", "p5"]
    rates = np.array([float(row["rate"]) for row in rows])
    assert rates.tolist() == records.rates([0.01, 0.02, 0.1, 1, 500], **PAPER).tolist()
    assert [float(row["spent"]) for row in rows] == pytest.approx(
        records.epsilon(rates, **PAPER).tolist()
    )
    assert (
        "Left out at rate 0 because no rate can meet the budget: 2 records: p1, p2." in outcome.out
    )
    assert "Clients without any usable record: north" in outcome.out
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
    assert (
        by_observer["public"]
        == by_observer["sees-participation"]
        < by_observer["picks-participants"]
    )


def test_the_papers_rates_are_called_over_budget(run, budgets):
    outcome = run("records", "rates", budgets, *TERMS, *NOISE, "--method", "scf")
    assert outcome.code == 0
    assert "OVER BUDGET: 4 of 5 records" in outcome.out
    clamped = run("records", "rates", budgets, *TERMS, *NOISE, "--method", "scf-clamped")
    assert "OVER BUDGET" not in clamped.out


@pytest.mark.full
def test_noise_is_suggested(run, tmp_path):
    path, plot = tmp_path / "b.csv", tmp_path / "n.svg"
    assert run("records", "draw", "three-levels", 200, "-o", path, "--seed", 3).code == 0
    outcome = run("records", "noise", path, *TERMS, "--plot", plot)
    assert outcome.code == 0, outcome.err
    assert "Suggested noise multiplier" in outcome.out
    document = json.loads(run("records", "noise", path, *TERMS, "--json").out)
    best = min(
        (one for one in document["candidates"] if one["step_noise"]),
        key=lambda one: one["step_noise"],
    )
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
        ("record,epsilon\n", "no row below it"),
        ("record,epsilon\na,\n", "budgets.csv:2: epsilon is empty"),
        ("record,epsilon\na,-1\n", "budgets.csv:2: epsilon must be a positive number, got '-1'"),
        ("record,epsilon\na,1\nb,nan\n", "budgets.csv:3"),
        ("record,epsilon\na,inf\n", "budgets.csv:2"),
        (
            "record,epsilon\na,1\na,2\n",
            "budgets.csv:3: record 'a' is listed twice, first on line 2",
        ),
        ("record,epsilon\n,1\n", "record is empty"),
        ("record,client,epsilon\na,,1\n", "client is empty"),
        ("record,budget\na,1\n", "unknown column"),
        ("record\na\n", "'epsilon' is missing"),
        ("record epsilon\na 1\n", "unknown column"),
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
    assert "did you mean 'three-levels'" in refused(
        "records", "draw", "three-level", 5, "-o", tmp_path / "x.csv"
    )
    assert "records" in refused("records", "draw", "three-levels", 0, "-o", tmp_path / "x.csv")
    assert "exists" in refused("records", "rates", budgets, *TERMS, *NOISE, "-o", budgets)
    line = refused("records", "rates", budgets, *TERMS, "--noise", "0.3", "--method", "scf", code=1)
    assert "use method exact" in line


# --- plans ---

DATA = {
    "name": "csv",
    "path": "patients.csv",
    "classes": 2,
    "label": "sick",
    "client": "hospital",
    "split": "split",
    "partition": "natural",
}
PRIVACY = {
    "budgets": "budgets.csv",
    "delta": 1e-5,
    "rate": 0.8,
    "noise_multiplier": 8.0,
    "randomness": "seeded",
}
CONFIG = small(
    "record", data=DATA, privacy=PRIVACY, train={"rounds": 3, "local_steps": 4, "lr": 0.3}
)


@pytest.fixture
def config(tmp_path):
    """Ten patients of two hospitals; p0 asks for more than any rate can give."""
    folder = tmp_path / "study"
    folder.mkdir()
    rows = [
        f"{n / 12},{n % 2},{'north' if n < 6 else 'south'},{'train' if n < 10 else 'test'}"
        for n in range(12)
    ]
    (folder / "patients.csv").write_text("age,sick,hospital,split\n" + "\n".join(rows) + "\n")
    (folder / "budgets.csv").write_text(
        "record,epsilon\np0,0.001\n" + "".join(f"p{n},{[0.5, 2][n % 2]}\n" for n in range(1, 10))
    )
    return write_toml(folder / "run.toml", CONFIG)


@pytest.mark.full
def test_a_plan_is_made_checked_and_trained_under(run, config, tmp_path, monkeypatch):
    plan, plot, elsewhere = tmp_path / "plan.json", tmp_path / "plan.png", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    outcome = run("plan", config, "-o", plan, "--plot", plot)
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("10 records of 2 clients", "rpdp", "zero-out", "does not choose", "server picks"):
        assert words in outcome.out
    assert (
        "At rate 0 in every round, since no rate can meet their budgets: 1 record: p0."
        in outcome.out
    )
    assert [
        line.split()[:3] for line in outcome.out.splitlines() if line.split()[:1] == ["north"]
    ] == [["north", "6", "1"]]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE(plan.stat().st_mode) == 0o600, "a plan tells budgets"
    made = records.RecordPlan.load(plan)
    assert made.records == tuple(f"p{n}" for n in range(10))
    assert made.clients == ("north", "south")
    assert run("verify", plan).code == 0
    outcome = run("train", config, "--plan", plan, "-o", "run", "--quiet")
    assert outcome.code == 0, outcome.err
    assert records.RecordPlan.load(elsewhere / "run" / "plan.json").hash == made.hash
    assert (
        run("plan", config, "-o", plan)
        .out.splitlines()[-2]
        .endswith("(unchanged: it already holds this plan)")
    )


def test_a_plan_as_json(run, config):
    document = json.loads(run("plan", config, "--json").out)
    assert (document["unit"], document["records"], document["clients"], document["method"]) == (
        "record",
        10,
        2,
        "rpdp",
    )
    assert document["left_out"] == ["p0"]
    assert document["active_records"] == [9, 9, 9]
    assert [level["budget"]["mean"] for level in document["levels"]] == [0.001, 0.5, 2.0]
    level = document["levels"][2]
    rate, terms = (
        level["rate"]["first"]["mean"],
        {"delta": 1e-5, "rounds": 3, "local_steps": 4, "client_rate": 0.8, "noise_multiplier": 8},
    )
    for observer, spent in level["epsilon"].items():
        assert spent["high"] == pytest.approx(
            records.epsilon(rate, **terms, observer=observer), rel=1e-6
        )
    assert level["epsilon"]["public"] == level["epsilon"]["sees-participation"]
    assert level["epsilon"]["picks-participants"]["high"] > level["epsilon"]["public"]["high"]
    plan = records.rates([0.5, 2.0], **terms)
    north = next(one for one in document["by_client"] if one["client"] == "north")
    assert north["expected_batch"] == pytest.approx([2 * plan[0] + 3 * plan[1]] * 3)
    assert (north["records"], north["left_out"]) == (6, 1)
    assert north["step_noise"] == pytest.approx(8 / north["expected_batch"][0])


@pytest.mark.full
def test_flags_stand_for_values_of_the_config(run, refused, config, tmp_path):
    flags = (
        "--rounds",
        2,
        "--rate",
        0.5,
        "--delta",
        1e-4,
        "--clip",
        0.3,
        "--method",
        "minimum",
        "--epsilon",
        1.5,
    )
    document = json.loads(run("plan", config, *flags, "--json").out)
    found = [document[name] for name in ("rounds", "client_rate", "delta", "clip", "method")]
    assert found == [2, 0.5, 1e-4, 0.3, "minimum"]
    assert [level["budget"]["mean"] for level in document["levels"]] == [1.5]
    other = tmp_path / "other [1].csv"
    other.write_text("record,epsilon\n" + "".join(f"q{n},3\n" for n in range(10)))
    assert (
        json.loads(run("plan", config, "--budgets", other, "--json").out)["levels"][0]["budget"][
            "mean"
        ]
        == 3
    )
    assert "--rounds 0: rounds in [train] must be" in refused("plan", config, "--rounds", 0)
    assert "--epsilon 1:3,2:4: epsilon in [privacy] must be" in refused(
        "plan", config, "--epsilon", "1:3,2:4"
    )
    for flag in ("--policy", "--weights", "--saving-rate", "--accountant", "--compare"):
        assert f"{flag} is for client-level methods" in refused("plan", config, flag, "rdp")
    assert "data.csv" in refused("plan", config, "--set", "data.path=data.csv")
    assert "10 training records" in refused(
        "plan", config, "--set", f"privacy.budgets={budget_file(tmp_path, 9)}"
    )
    assert "did you mean" in refused("plan", config, "--set", "method.common_rat=0.5")
    assert "scf-clamped" in refused("plan", config, "--set", "method.rates=scf", code=1)
    assert "no record of client 'north'" in refused("plan", config, "--epsilon", 1e-6)


def budget_file(folder, count):
    path = folder / f"{count}.csv"
    path.write_text("record,epsilon\n" + "".join(f"p{n},1\n" for n in range(count)))
    return path


def tampered(path, change):
    """A plan file whose content was changed and whose hash was made anew, as a careful forger
    would.
    """
    from fedspend.planning.plan_json import canonical, hash_of

    content = json.loads(path.read_text())
    content.pop("hash")
    change(content)
    path.write_text(json.dumps(content | {"hash": hash_of(canonical(content))}))


def test_a_forged_plan_fails(run, refused, config, tmp_path):
    plan = tmp_path / "plan.json"
    run("plan", config, "-o", plan, "--quiet")
    good = json.loads(run("verify", plan, "--json").out)
    assert (good["ok"], good["failure_count"]) == (True, 0)
    text = plan.read_text()
    first = json.loads(text)["classes"][1]["rate"][0][0]
    plan.write_text(text.replace(repr(first), repr(first * 1.01)))
    outcome = run("verify", plan)
    assert outcome.code == 1
    assert "does not match its hash" in outcome.out
    plan.write_text(text)
    tampered(plan, lambda content: content["classes"][1]["rate"][0].__setitem__(0, first * 1.01))
    outcome = run("verify", plan)
    assert outcome.code == 1
    assert "FAIL" in outcome.out
    assert "claims epsilon" in outcome.out
    assert json.loads(run("verify", plan, "--json").out)["ok"] is False
    line = refused("train", config, "--plan", plan, "-o", tmp_path / "run", "--quiet", code=1)
    assert "failed verification, so nothing is trained" in line


def test_a_plan_goes_with_its_config(refused, run, config, tmp_path):
    plan, clients = tmp_path / "plan.json", tmp_path / "clients.json"
    run("plan", config, "-o", plan, "--quiet")
    run(
        "plan",
        "--epsilon",
        "1:2",
        "--delta",
        "1e-5",
        "--rounds",
        3,
        "--rate",
        0.8,
        "-o",
        clients,
        "--quiet",
    )
    train = ("train", config, "-o", tmp_path / "run", "--plan")
    assert "the plan has clip 1.0, and the config 0.5" in refused(
        *train, plan, "--set", "privacy.clip=0.5"
    )
    assert "the plan is for clients" in refused(*train, clients)
    for colluders in (0, 2):
        said = refused("verify", plan, "--colluders", colluders)
        assert "--colluders is only for client-level plans" in said
    assert "holds something else" in refused("plan", config, "--rate", 0.5, "-o", plan)


@pytest.mark.full
def test_a_plan_of_a_filter_says_what_it_charges_and_how_long_records_last(
    run, refused, config, tmp_path
):
    by_norm = ("--set", "method.name=filter", "--set", "method.charge=norm", "--rate", 1)
    plan, plot = tmp_path / "norm.json", tmp_path / "norm.png"
    outcome = run("plan", config, *by_norm, "-o", plan, "--plot", plot)
    assert outcome.code == 0, outcome.err
    assert "filter by norm" in outcome.out
    assert "shorter ones cost less" in outcome.out
    assert "→" not in outcome.out, "rates do not fall: who is left is not planned"
    assert plot.read_bytes().startswith(b"\x89PNG")
    made = records.RecordPlan.load(plan)
    lasts = made.steps.sum(axis=0)[made.schedules.of_client]
    (line,) = [line for line in outcome.out.splitlines() if line.split()[:1] == ["0.5"]]
    assert float(line.split()[3]) == pytest.approx(lasts[2], rel=1e-3)
    assert "filter by norm" in run("verify", plan).out
    train = (
        "train",
        config,
        "--plan",
        plan,
        "-o",
        tmp_path / "run",
        "--set",
        "method.name=filter",
        "--set",
        "privacy.rate=1",
    )
    assert "the plan has charge norm, and the config clip" in refused(*train)
    outcome = run(
        "plan", config, "--set", "method.name=filter", "--plot", plot, "-o", tmp_path / "clip.json"
    )
    assert "filter by clip" in outcome.out
    assert "of 12, after which a record stops" in outcome.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    # what it would do anyhow
    named = ("--set", "method.name=filter", "--set", "method.charge=clip")
    assert (
        run(
            "train",
            config,
            *named,
            "--plan",
            tmp_path / "clip.json",
            "-o",
            tmp_path / "run",
            "--quiet",
        ).code
        == 0
    )


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "filter"])
def test_without_client_sampling_there_is_nothing_to_pick(run, config, tmp_path, method):
    plan = tmp_path / "plan.json"
    run("plan", config, "--rate", 1, "--method", method, "-o", plan, "--quiet")
    told = {
        one["name"]: one["largest"]
        for one in json.loads(run("verify", plan, "--json").out)["observers"]
    }
    assert told["plan"] == told["server picks who takes part"] > 0


@pytest.mark.full
def test_accounts_of_the_other_unit_are_named(run, refused, config, tmp_path):
    place, clients = tmp_path / "accounts.db", tmp_path / "clients.db"
    assert run("train", config, "--ledger", place, "-o", tmp_path / "one", "--quiet").code == 0
    assert "accounts of records only; add --unit record" in refused(
        "ledger", "balance", "--ledger", place
    )
    (tmp_path / "clients.csv").write_text("client,epsilon\nnorth,1\n")
    run("ledger", "init", "--ledger", clients, "--simulation")
    run("ledger", "register", tmp_path / "clients.csv", "--ledger", clients, "--delta", 1e-5)
    assert "clients.db has no record accounts" in refused("plan", config, "--ledger", clients)


def test_a_plan_made_without_a_ledger_does_not_spend_what_remains(run, refused, config, tmp_path):
    plan = tmp_path / "plan.json"
    run("plan", config, "-o", plan, "--quiet")
    assert "drop --remaining" in refused(
        "train", config, "--plan", plan, "--remaining", "-o", tmp_path / "run"
    )


@pytest.mark.full
def test_what_a_ledger_has_left_is_planned(run, refused, config, tmp_path):
    place, plan = tmp_path / "accounts.db", tmp_path / "next.json"
    train = ("train", config, "--ledger", place, "--quiet")
    assert "accounts.db" in refused("plan", config, "--ledger", place)
    assert (
        run(
            *train,
            "-o",
            tmp_path / "one",
            "--set",
            "privacy.noise_multiplier=20",
            "--set",
            "train.rounds=1",
        ).code
        == 0
    )
    outcome = run("plan", config, "--ledger", place, "-o", plan)
    assert outcome.code == 0, outcome.err
    assert "budgets are for a lifetime" in outcome.out
    assert "with too little left: 1 record: p0" in outcome.out
    assert "claims are what this plan adds" in run("verify", plan).out
    assert "name that ledger" in refused(
        "train", config, "--plan", plan, "-o", tmp_path / "x", "--quiet", code=1
    )
    assert run(*train, "--plan", plan, "-o", tmp_path / "two").code == 0
    assert run("ledger", "verify", "--ledger", place).code == 0
    rows = json.loads(run("ledger", "balance", "--unit", "record", "--ledger", place, "--json").out)
    assert len(rows) == 10
    assert all(row["spent"] <= row["budget"] for row in rows)
    assert "lifetime budget" in refused(*train, "-o", tmp_path / "three", code=1)


@pytest.mark.full
def test_a_config_that_spends_what_remains_names_its_ledger(run, refused, config, tmp_path):
    write_toml(config, changed(CONFIG, ledger__location="accounts.db"))
    assert (
        run(
            "train",
            config,
            "-o",
            tmp_path / "one",
            "--quiet",
            "--set",
            "train.rounds=1",
            "--set",
            "privacy.noise_multiplier=20",
        ).code
        == 0
    )
    assert (config.parent / "accounts.db").exists(), "beside the config that names it"
    outcome = run("plan", config, "--set", "ledger.spend=remaining", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["ledger"]
    assert "no.db" in refused(
        "plan", config, "--set", "ledger.spend=remaining", "--set", "ledger.location=no.db"
    )
    write_toml(config, CONFIG)
    assert "needs a ledger with record accounts" in refused(
        "plan", config, "--set", "ledger.spend=remaining"
    )


@pytest.mark.full
def test_no_torch(budgets, config):
    code = (
        "import sys; from fedspend.cli.main import main; assert main(['records', 'rates', "
        f"{str(budgets)!r}, *{TERMS + NOISE!r}, '--json']) == 0; assert main(['plan', "
        f"{str(config)!r}, '--json']) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
