"""`fedspend verify`: the verdict and its exit code,
and how it says no to files that are no plans.
"""

from __future__ import annotations

import gzip
import json

import pytest
from before.since import as_it_was

import fedspend


@pytest.fixture(scope="module")
def plan():
    terms = {"delta": 1e-5, "rounds": 4, "rate": 0.9, "saving_rate": 0.5, "accountant": "rdp"}
    return fedspend.plan([10.0, 10.0, 20.0], **terms)


@pytest.fixture
def plan_file(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    return path


@pytest.mark.full
def test_a_plan_for_discrete_noise_says_what_carries_its_guarantee(run, tmp_path):
    path = tmp_path / "discrete.json"
    terms = (
        "--epsilon",
        "4:2,8:1",
        "--delta",
        "1e-3",
        "--rounds",
        "3",
        "--rate",
        "0.5",
        "--set",
        "privacy.noise=discrete",
    )
    assert run("plan", *terms, "-o", path).code == 0
    outcome = run("verify", path)
    assert outcome.code == 0
    for words in ("discrete noise", "Poisson summation", "PLD within budget"):
        assert words in outcome.out
    assert run("plan", *terms, "--accountant", "pld", "-o", tmp_path / "pld.json").code == 0
    assert run("verify", tmp_path / "pld.json").code == 0
    with as_it_was(discrete=True):
        assert run("plan", *terms, "-o", path, "--force").code == 0
    outcome = run("verify", path)
    assert outcome.code == 0
    for words in ("whole orders", "sum over the integers", "no PLD check"):
        assert words in outcome.out
    assert json.loads(run("verify", path, "--json").out)["ok"] is True


@pytest.mark.full
def test_a_sound_plan_passes(run, plan_file):
    outcome = run("verify", plan_file, "--colluders", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("PASS")
    for word in (
        "worst margin",
        "claim reproduced",
        "PLD within budget",
        "2 colluding clients",
        "participation revealed",
        "promises",
    ):
        assert word in outcome.out
    assert "FAIL" not in outcome.out


@pytest.mark.full
def test_json_is_the_verification(run, plan, plan_file):
    outcome = run("verify", plan_file, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    shown = json.loads(outcome.out)
    assert shown["ok"] is True
    assert shown["plan"] == str(plan_file)
    assert shown["plan_hash"] == plan.hash
    assert len(shown["epsilon"]) == 3
    assert 0 < shown["worst_margin"] < 1
    assert {"name", "passed", "schedules", "accountant", "worst"} <= set(shown["checks"][0])


def test_a_plan_with_less_noise_fails(run, plan, tmp_path):
    noise = plan.noise_multiplier.copy()
    noise[1] *= 0.95
    plan.replace(noise_multiplier=noise).save(tmp_path / "weak.json")
    outcome = run("verify", tmp_path / "weak.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("FAIL")
    assert "failed: client '0'" in outcome.out
    assert run("verify", tmp_path / "weak.json", "--quiet").code == 1


def test_quiet_answers_by_exit_code(run, plan_file):
    outcome = run("verify", plan_file, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def altered(text: str) -> str:
    document = json.loads(text)
    document["delta"] = 1e-6
    return json.dumps(document)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda _: "hello",
        lambda _: "[]",
        lambda _: "{}",
        lambda _: "null",
        lambda _: "\x00\xff",
        lambda text: text[: len(text) // 2],
        lambda _: "[" * 100_000,
    ],
    ids=["empty", "text", "list", "object", "null", "binary", "half", "deep"],
)
def test_files_that_are_no_plans(refused, plan_file, spoil):
    plan_file.write_text(spoil(plan_file.read_text()), encoding="latin-1")
    assert "plan.json" in refused("verify", plan_file)


def test_a_plan_that_was_altered_fails_the_check(run, refused, plan_file, tmp_path):
    """It is a plan, and the answer is no: exit code 1, wherever a plan is read."""
    plan_file.write_text(altered(plan_file.read_text()))
    outcome = run("verify", plan_file)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("FAIL  ")
    assert "plan.json: the content does not match its hash" in outcome.out
    outcome = run("verify", plan_file, "--json")
    answer = json.loads(outcome.out)
    assert (outcome.code, outcome.err, answer["ok"]) == (1, "", False)
    assert answer["plan"] == str(plan_file)
    assert "does not match its hash" in answer["failures"][0]
    outcome = run("verify", plan_file, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")
    for argv in (
        ("explain", plan_file, "--group", "10"),
        ("train", "examples/quickstart.toml", "--plan", plan_file, "-o", tmp_path / "run"),
    ):
        line = refused(*argv, code=1)
        assert "plan.json: the content does not match its hash" in line
        assert "restore it from a copy, or plan again" in line


def test_an_altered_plan_is_not_overwritten(refused, plan_file):
    plan_file.write_text(altered(plan_file.read_text()))
    terms = ("--epsilon", "2:3", "--delta", "1e-3", "--rounds", "2", "--rate", "0.5")
    assert "holds something else" in refused("plan", *terms, "-o", plan_file)


def test_help_states_the_exit_codes(run):
    for argv in (("--help",), ("verify", "--help")):
        shown = " ".join(run(*argv).out.split())
        assert "altered; 2: there is nothing" in shown or "2 bad input; 3" in shown


def test_broken_compression(refused, plan, tmp_path):
    path = tmp_path / "plan.json.gz"
    plan.save(path)
    path.write_bytes(path.read_bytes()[:-20])
    refused("verify", path)
    path.write_bytes(b"not gzip")
    refused("verify", path)
    path.write_bytes(gzip.compress(b"{}"))
    refused("verify", path)


def test_bad_arguments(refused, plan_file, tmp_path):
    assert "nowhere.json" in refused("verify", tmp_path / "nowhere.json")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused("verify", tmp_path / "empty")
    assert "PATH" in refused("verify")
    assert "--colluders" in refused("verify", plan_file, "--colluders", "-1")
    assert "at least 1, got 0" in refused("verify", plan_file, "--colluders", "0")
    assert "'x'" in refused("verify", plan_file, "--colluders", "x")
    assert "3 clients" in refused("verify", plan_file, "--colluders", "3")
    assert "did you mean '--json'" in refused("verify", plan_file, "--jsn")


def test_progress_is_shown_to_a_person_only(run, plan_file, monkeypatch):
    """On a terminal a bar moves on stderr; the table on stdout stays clean."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    outcome = run("verify", plan_file)
    assert outcome.code == 0
    assert outcome.out.startswith("PASS")


@pytest.mark.full
def test_a_delta_that_permits_exposing_a_client_is_warned_of(run, tmp_path):
    import fedspend
    from fedspend.errors import FedspendWarning

    with pytest.warns(FedspendWarning, match="1/clients"):
        plan = fedspend.plan([2.0] * 10, delta=0.1, rounds=2, rate=0.5)
    plan.save(tmp_path / "plan.json")
    outcome = run("verify", tmp_path / "plan.json")
    assert outcome.code == 0, "the claims hold"
    assert "warning: delta 0.1 is at or above 1/clients = 0.1" in outcome.out
    (warning,) = json.loads(run("verify", tmp_path / "plan.json", "--json").out)["warnings"]
    assert "exposing one client completely" in warning
    fedspend.plan([2.0] * 10, delta=0.09, rounds=2, rate=0.5).save(tmp_path / "below.json")
    assert "warning" not in run("verify", tmp_path / "below.json").out
    assert json.loads(run("verify", tmp_path / "below.json", "--json").out)["warnings"] == []


def test_of_records_the_number_of_records_counts(run, tmp_path):
    import numpy as np

    from fedspend.records import Terms
    from fedspend.records.planning import plan_records

    for delta, warned in ((0.04, True), (0.02, False)):
        terms = Terms(delta=delta, rounds=2, local_steps=1, client_rate=1.0, noise_multiplier=4.0)
        plan = plan_records(np.full(30, 2.0), [0] * 30, terms, clients=["a"])
        plan.save(tmp_path / f"{delta}.json")
        shown = run("verify", tmp_path / f"{delta}.json").out
        assert ("1/records = 0.0333333" in shown) is warned


def test_what_is_not_there_is_not_called_a_plan(refused, tmp_path):
    told = refused("verify", tmp_path / "runs", "--ledger", "accounts.db")
    assert "there is no" in told
    assert "name a plan file, a run directory or a publication" in told


@pytest.mark.parametrize("name", ["certificate.json", "run.json", "report.html"])
def test_a_file_of_a_run_is_checked_with_its_run(refused, tmp_path, name):
    folder = tmp_path / "first"
    folder.mkdir()
    for one in ("run.json", name):
        (folder / one).write_text("{}")
    assert f"it belongs to a run: fedspend verify {folder}" in refused("verify", folder / name)
