"""Plans of version 0.2.0 load, verify as they did, are what planning gives, and are trained under.

Guarantee: every method, policy, kind of noise and accountant that a plan may have is among them.
"""

from __future__ import annotations

import pytest
from before.v0_2.configs import CONFIGS, PLANS
from before.v0_2.kept import marked, read_json
from before.v0_2.probed import machine, same_machine
from before.v0_2.same import differences

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")
# For the accountants that verify, these are like others, and take long.
LIKE_OTHERS = {
    *("literal.json", "geometric.json", "clip-schedule.json", "discrete.json", "named.json"),
    *("optimal-by-default.json.gz", "remaining.json"),
}
GONE = {"grouped.json"}  # a policy that is no more
SLOW = {
    "discrete-distributed.json",
    "optimal.json",
    "spend-as-you-go.json",
    "weights.json",
    "bits.json",
    "votes.json",
}
# Under these something is trained: plan -> config
TRAINED = {
    "bits.json": "adaptive",
    "bits-distributed.json": "adaptive-distributed",
    "distributed.json": "distributed",
    "votes.json": "votes",
    "metric.json": "metric",
    "rows-of-files.json": "people",
    "records-rpdp.json": "patients",
    "records-filter-norm.json": "records-by-norm",
}


def test_every_plan_is_there_and_all_kinds_are(original, said):
    assert {path.name for path in (original / "plans").iterdir()} == {*PLANS} == {*said["plans"]}
    plans = [read_json(original / "plans" / name) for name in PLANS]
    policies = {plan["parameters"].get("policy") for plan in plans}
    assert policies >= {
        *("uniform", "optimal", "strictest", "spend-as-you-go", "spend-as-you-go-literal"),
        *("weights", "geometric", "individual-rates", "grouped"),
    }
    assert {plan["guarantee"]["accountant"] for plan in plans} >= {"rdp", "pld"}
    assert {plan["guarantee"]["unit"] for plan in plans} == {"client", "record"}
    assert all(one["ok"] is True for one in said["plans"].values())


@pytest.mark.full(but=["records-rpdp.json", "records-filter-clip.json"])
@pytest.mark.parametrize("name", marked([name for name in PLANS if name not in LIKE_OTHERS], SLOW))
def test_a_plan_verifies_as_it_did(told, files, said, name):
    files.bring(f"plans/{name}")
    found = told("verify", f"plans/{name}")
    assert not differences(found, said["plans"][name], 1e-9 if same_machine() else 1e-6), machine()


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", marked(sorted({*PLANS} - GONE), {"records-remaining.json"}))
def test_planning_gives_the_plan_again(done, files, name):
    """To twelve digits, or to six where functions round otherwise."""
    files.bring(f"plans/{name}", "ledgers")
    done("plan", *PLANS[name], "-o", f"again-{name}", "--quiet")
    found, stored = (
        read_json(files.folder / f"again-{name}"),
        read_json(files.folder / "plans" / name),
    )
    for of_the_whole in ("hash", "version"):
        stored.pop(of_the_whole)
    assert not differences(found, stored, 1e-12 if same_machine() else 1e-6), machine()


@pytest.mark.parametrize("name", ["uniform-rdp.json", "records-filter-norm.json"])
def test_a_plan_with_another_number_is_refused(run, files, name):
    path = files.bring(f"plans/{name}")
    text = path.read_text()
    path.write_text(text.replace('"delta": 0.001', '"delta": 0.002'))
    assert path.read_text() != text
    assert run("verify", path).code == 1


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", TRAINED)
def test_a_plan_is_trained_under(run, done, files, name):
    config = f"{TRAINED[name]}.toml"
    assert TRAINED[name] in CONFIGS
    files.bring(f"plans/{name}")
    done(
        *("train", config, "--plan", f"plans/{name}", "-o", "run", "--quiet"),
        *("--ledger", "accounts.db"),
    )
    assert read_json(files.folder / "run" / "plan.json") == read_json(files.folder / "plans" / name)
    assert run("ledger", "verify", "--ledger", "accounts.db", "--runs", "run").code == 0
