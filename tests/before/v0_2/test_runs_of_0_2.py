"""Run directories of version 0.2.0 verify as they did, are reported on, and go on.

Guarantee: runs that were stopped or killed go on to their end, from a copy that is said to be
moved; seeded ones to the model and the metrics of the run that was not interrupted, with the same
bits where the machine has the same kernels, else up to rounding, never skipped.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from before.v0_2 import kept
from before.v0_2.configs import CLIENTS, PEOPLE, REAL, RECORDS
from before.v0_2.kept import marked
from before.v0_2.probed import check_same
from before.v0_2.same import differences
from safetensors.numpy import load_file

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")

SEEDED = (*CLIENTS, *RECORDS)
KILLED = ("killed-with-release", "killed-without-release")
# Seeded runs that did not come to their end
INTERRUPTED = [
    *(f"{name}-stopped" for name in SEEDED),
    *(f"{name}-{how}" for name in ("central", "adaptive-distributed", "records") for how in KILLED),
]
FINISHED = [f"{name}-finished" for name in SEEDED]
REAL_ONES = [
    f"{name}-{how}" for name in REAL for how in ("stopped", *KILLED, "replanned", "finished")
]
PEOPLES = [
    *("people-finished", "people-replanned", "people-stopped", "people-stopped-early"),
    *("people-patients-finished", "people-tuned"),
    *("people-held-out-finished", "people-held-out-stopped"),
]
SLOW = {
    *("discrete-stopped", "records-stopped", "records-finished"),
    *("records-killed-with-release", "records-killed-without-release"),
    *(f"real-records-{how}" for how in ("stopped", *KILLED, "replanned")),
}
TUNED = ["tuned-finished", "tuned-interrupted"]
OTHERS = ["consortium-finished", "consortium-stopped", "silos-stopped", "records-charged-finished"]
ALL = [*INTERRUPTED, *FINISHED, *REAL_ONES, *PEOPLES, *TUNED, *OTHERS]

# What 0.2.0 got wrong, so that a later version may say otherwise: it found fault with the metrics
# of rounds before a replan, of runs whose first plan was read by privacy loss distributions.
MENDABLE = {"people-replanned": {"metrics"}, "real-replanned": {"metrics"}}
# They depend on the folder, not on the run.
OF_THE_PLACE = {"place", "other files"}
VERIFIED = [  # one of each kind: the accountants take their time
    *("central-finished", "central-killed-without-release", "adaptive-distributed-stopped"),
    *("votes-finished", "metric-stopped", "stopping-finished", "fedsgd-stopped"),
    *("plain-finished", "records-by-norm-stopped", "records-killed-with-release"),
    *("real-finished", "real-replanned", "real-records-finished", "real-records-replanned"),
    *("tuned-finished", "tuned-interrupted", "people-held-out-stopped"),
]
REPORTED = [
    *("central-finished", "adaptive-distributed-killed-with-release", "votes-stopped"),
    *("plain-stopped", "records-by-norm-finished", "real-replanned", "people-stopped-early"),
    *("people-patients-finished", "consortium-stopped", "silos-stopped"),
]
CHARGED_OUTSIDE = ["people-stopped-early", "people-patients-finished", "consortium-finished"]


def config_of(name: str) -> str:
    known = sorted((*CLIENTS, *RECORDS, *REAL, *PEOPLE), key=len)
    return f"{next(one for one in reversed(known) if name.startswith(one))}.toml"


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_model(found, stored, about):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (found, stored))
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        check_same(ours[key], value, f"{key} of {about}")


def same_metrics(found, stored, about):
    ours, theirs = lines(found), lines(stored)
    assert [line["round"] for line in ours] == [line["round"] for line in theirs]
    for key in ("accuracy", "private_accuracy", "loss"):
        values = [
            [line[key] for line in one if line.get(key) is not None] for one in (ours, theirs)
        ]
        check_same(*map(np.array, values), f"{key} of {about}")


def test_every_run_is_in_a_list_and_none_was_left_open(original, said):
    there = {path.name for path in (original / "runs").iterdir()}
    assert {name for name in there if not name.endswith(".clients")} == {*ALL} == {*said["runs"]}
    assert not [path for path in original.rglob("*") if path.name.endswith(("-wal", "-shm"))]
    assert kept.ARCHIVE.stat().st_size < 1_500_000
    good = {name for name in ALL if said["runs"][name]["code"] == 0}
    plain = {"plain-finished", "plain-stopped"}  # without a plan nothing is promised
    assert {*ALL} - good == {*MENDABLE, *plain, "tuned-interrupted"}


def checks_of(document, name):
    skipped = OF_THE_PLACE | MENDABLE.get(name, set())
    return {one["check"]: one["ok"] for one in document["checks"] if one["check"] not in skipped}


@pytest.mark.full(but=["central-finished", "records-by-norm-stopped"])
@pytest.mark.parametrize("name", VERIFIED)
def test_a_run_verifies_as_it_did(run, files, said, name):
    stored = said["runs"][name]
    outcome = run("verify", files.run(name), "--json")
    found = json.loads(outcome.out)
    if name not in MENDABLE:
        assert outcome.code == stored["code"]
    assert checks_of(found, name).items() >= checks_of(stored, name).items()
    assert found["simulation"] == stored["simulation"]
    if stored["plan"] is not None:
        told = found["plan"]["epsilon"]
        assert not differences(told, stored["plan"]["epsilon"], 1e-6)


@pytest.mark.full(but=["people-stopped-early"])
@pytest.mark.parametrize("name", marked(CHARGED_OUTSIDE, {"consortium-finished"}))
def test_a_run_whose_ledger_was_moved_verifies_with_it(run, files, said, name):
    files.bring("ledgers")
    folder = files.run(name)
    assert run("verify", folder, "--json").code == 1, "its ledger is not where it was"
    if name == "people-stopped-early":  # its report said less than its accounts were charged
        outcome = run("verify", folder, "--ledger", "ledgers/clients.db", "--json")
        [wrong] = [one for one in json.loads(outcome.out)["checks"] if one["ok"] is False]
        assert (outcome.code, wrong["check"]) == (1, "report")
        said_before, charged = "strict: 0.5311 of 1 · open: 1.072 of 2", "strict: 1 of 1"
        assert said_before in wrong["detail"]
        assert f"but the account was charged all 6 ({charged}" in wrong["detail"]
        assert wrong["detail"].endswith(f"write it anew with: fedspend report {folder}")
        assert run("report", folder).code == 0
    outcome = run("verify", folder, "--ledger", "ledgers/clients.db", "--json")
    assert outcome.code == 0, outcome
    assert (
        checks_of(json.loads(outcome.out), name).items()
        >= checks_of(said["runs"][name], name).items()
    )


@pytest.mark.full(only=["real-finished"])
@pytest.mark.parametrize("name", ["central-finished", "real-finished"])
def test_a_run_with_lines_in_another_order_does_not_verify(run, files, name):
    folder = files.run(name)
    path = folder / "metrics.jsonl"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))
    assert run("verify", folder).code == 1


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", marked(REPORTED, {"consortium-stopped"}))
def test_a_run_is_reported_on(done, files, name):
    files.bring("ledgers")
    folder = files.run(name)
    done("report", folder)
    page = (folder / "report.html").read_text()
    assert "<html" in page
    assert os.path.realpath(files.folder) not in page, "a report may be handed on"


@pytest.mark.full(but=["plain-stopped", "central-killed-with-release"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", marked(INTERRUPTED, SLOW))
def test_a_seeded_run_ends_with_the_model_of_the_uninterrupted_one(run, done, files, name):
    config = config_of(name)
    folder, whole = files.run(name), files.run(f"{config.removesuffix('.toml')}-finished")
    before = lines(folder)
    assert len(before) == 2
    if name != "plain-stopped":  # nobody charges it
        refused = run("train", config, "-o", folder, "--resume", "--quiet")
        assert refused.code == 1
        assert "--moved" in refused.err
    moved = [] if name == "plain-stopped" else ["--moved"]
    done("train", config, "-o", folder, "--resume", "--quiet", *moved)
    assert lines(folder)[:2] == before, "rounds that were committed are not told again"
    same_model(folder, whole, name)
    same_metrics(folder, whole, name)
    if name != "plain-stopped":
        done("ledger", "verify", "--ledger", folder / "ledger.db", "--runs", folder)


@pytest.mark.full(but=["adaptive-finished", "metric-finished", "plain-finished"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", marked(FINISHED, SLOW))
def test_a_seeded_run_gives_the_same_model_from_the_start(done, files, name):
    whole = files.run(name)
    done("train", config_of(name), "-o", "again", "--quiet")
    same_model(files.folder / "again", whole, name)
    same_metrics(files.folder / "again", whole, name)


@pytest.mark.full(but=["central-finished"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", ["central-finished", "records-by-norm-finished", "real-finished"])
def test_a_finished_run_stays_as_it_is(done, files, name):
    folder = files.run(name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done("train", config_of(name), "-o", folder, "--resume", "--quiet")
    for file in ("metrics.jsonl", "model.safetensors", "ledger.db", "plan.json"):
        assert (folder / file).read_bytes() == before[file], file


def balances(told, ledger, unit, *more):
    return told("ledger", "balance", "--ledger", ledger, "--unit", unit, *more)


@pytest.mark.full(but_every=4)
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize(
    "name", marked([name for name in REAL_ONES if not name.endswith("-finished")], SLOW)
)
def test_a_real_run_goes_on_to_its_end(done, told, files, name):
    """What was charged stays charged; a round that was lost is skipped."""
    folder, unit = files.run(name), "record" if "records" in name else "client"
    ledger, before = folder / "ledger.db", lines(folder)
    spent = [line["spent"] for line in balances(told, ledger, unit)]
    done("train", config_of(name), "-o", folder, "--resume", "--moved", "--quiet")
    after = lines(folder)
    rounds = 4 if unit == "record" else 5
    assert [line["round"] for line in after] == list(
        range(1, rounds + 1 + (name.endswith("replanned")))
    )
    assert after[: len(before)] == before
    lost = [3] if name.endswith(("without-release", "replanned")) else []
    assert [line["round"] for line in after if line.get("skipped")] == lost
    assert (folder / "model.safetensors").exists()
    for was, now in zip(spent, balances(told, ledger, unit), strict=True):
        assert was <= now["spent"] <= now["budget"]
        assert now["reserved"] == 0
    done("ledger", "verify", "--ledger", ledger, "--runs", folder)


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", ["real-killed-without-release"])
def test_a_lost_round_is_made_up_for(done, told, files, name):
    folder = files.run(name)
    done("train", config_of(name), "-o", folder, "--resume", "--moved", "--replan", "--quiet")
    after = lines(folder)
    assert [line["round"] for line in after] == [1, 2, 3, 4, 5, 6]
    assert [line["round"] for line in after if line.get("skipped")] == [3]
    for line in balances(told, folder / "ledger.db", "client"):
        assert 0.8 * line["budget"] < line["spent"] <= line["budget"]


def test_models_predict_what_they_predicted(told, files, said):
    for name, rows in (("people-finished", "public.csv"), ("real-records-finished", "rows.npz")):
        found = told("predict", files.run(name), rows, "--outputs")
        assert not differences(found, said["predictions"][name], 1e-6), name


@pytest.mark.usefixtures("quick_verify")
def test_a_tune_that_was_interrupted_stays_charged_and_does_not_go_on(run, told, files):
    folder = files.run("tuned-interrupted")
    spent = balances(told, folder / "ledger.db", "client")
    assert all(line["spent"] > 0 for line in spent)
    refused = run("train", "central.toml", "-o", folder, "--resume", "--quiet")
    assert refused.code == 2
    assert not differences(balances(told, folder / "ledger.db", "client"), spent, 0)
    # its winner, if it had one, goes on as little; what is left of it is a model
    finished = files.run("tuned-finished")
    assert run("train", "central.toml", "-o", finished, "--resume", "--quiet").code == 2


# --- runs on rows of one's own, which 0.2.0 finds by absolute names ---


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize(
    ("name", "config", "outside"),
    [
        ("people-stopped", "people-rest.toml", True),
        ("people-held-out-stopped", "people-held-out.toml", False),
    ],
)
def test_a_run_on_files_goes_on_where_it_was_made(
    run, done, told, in_its_place, name, config, outside
):
    folder = in_its_place / "runs" / name
    ledger = in_its_place / "ledgers/clients.db" if outside else folder / "ledger.db"
    project = ("--project", "clinics") if outside else ()
    before = lines(folder)
    assert run("train", config, "-o", folder, "--resume", "--quiet").code == 1
    done("train", config, "-o", folder, "--resume", "--moved", "--quiet")
    assert lines(folder)[:2] == before
    assert [line["round"] for line in lines(folder)] == [1, 2, 3, 4]
    for line in balances(told, ledger, "client", *project):
        assert line["spent"] <= line["budget"]
        assert line["reserved"] == 0
    done("ledger", "verify", "--ledger", ledger, "--runs", folder)
    done("verify", folder, *(("--ledger", ledger) if outside else ()))


def test_a_run_on_files_that_are_elsewhere_is_refused(run, told, files):
    """Its rows are known by an absolute name. (0.2.0 enters the move before it notices.)"""
    folder = files.run("people-held-out-stopped")
    kept = ("metrics.jsonl", "checkpoint.safetensors", "release.safetensors", "run.json")
    before = [(folder / name).read_bytes() for name in kept]
    spent = [line["spent"] for line in balances(told, folder / "ledger.db", "client")]
    outcome = run("train", "people-held-out.toml", "-o", folder, "--resume", "--moved", "--quiet")
    assert outcome.code == 2
    assert "data.path" in outcome.err
    assert [(folder / name).read_bytes() for name in kept] == before
    assert [line["spent"] for line in balances(told, folder / "ledger.db", "client")] == spent
