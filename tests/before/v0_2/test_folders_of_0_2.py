"""Folders of many runs, of version 0.2.0: comparisons, tunes, searches and audits.

Guarantee: a folder goes on, and no run in it is made again or changed; or, where the code is not
the same as then, it is refused and stays as it was. (A search of 0.2.0 goes on whatever the code
is.) What programs read in it can be read.
"""

from __future__ import annotations

import json
import tomllib

import pytest
from before.v0_2.configs import FOLDERS
from before.v0_2.kept import read_json

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")
KEPT = {
    "compare": "runs.jsonl",
    "tune": "runs.jsonl",
    "search": "trainings.jsonl",
}


@pytest.mark.full
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_goes_on_with_the_same_code_and_is_refused_with_another(run, files, name):
    folder = files.bring(f"folders/{name}")
    before = (folder / KEPT[name]).read_bytes()
    assert before.count(b"\n") >= 2
    outcome = run(*FOLDERS[name])
    assert outcome.code in (0, 2), outcome
    assert (folder / KEPT[name]).read_bytes().startswith(before), "no run is made again or changed"
    if outcome.code == 2:
        assert "another folder" in outcome.err, outcome
        assert (folder / KEPT[name]).read_bytes() == before


def test_what_programs_read_can_be_read(files):
    folders = files.bring("folders")
    assert tomllib.loads((folders / "tune/best.toml").read_text())["train"]["lr"] in (0.1, 0.3)
    for path in [*folders.glob("*.json"), *folders.glob("*/*.json")]:
        assert read_json(path), path
    for name, file in KEPT.items():
        found = [json.loads(line) for line in (folders / name / file).read_text().splitlines()]
        assert all(isinstance(one, dict) for one in found)
    audits = [read_json(folders / name) for name in ("audit.json", "audit-records.json")]
    for audit in audits:
        assert all(0 <= one["measured"] <= one["claimed"] for one in audit["groups"])


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_the_best_config_of_a_tune_is_trained(done, files):
    files.bring("folders/tune/best.toml")
    done("train", "folders/tune/best.toml", "-o", "run", "--quiet")


def test_an_influence_that_was_measured_is_planned_with(done, files):
    files.bring("folders/influence.json")
    done(
        *("plan", "discrete.toml", "--influence", "folders/influence.json", "-o", "plan.json"),
        *("--set", "train.rounds=5", "--set", "privacy.accountant=rdp", "--quiet"),
    )
    plan = read_json(files.folder / "plan.json")
    assert plan["parameters"]["policy"] == "optimal"


def test_a_search_says_that_it_found_no_constant(run, files):
    """Its front lies at the limits, as it did."""
    folder = files.bring("folders/search")
    assert read_json(folder / "pareto.json")
    terms = ("--rate", "0.5", "--clients", "6", "--rounds", "6", "--max-rounds", "10")
    outcome = run("design", "theory", "--k-from", folder, *terms)
    assert outcome.code == 2
    assert "no estimate of k" in outcome.err
