"""Runs that are planned by privacy loss distributions, which is what `auto` does for few budgets:
admitted, stopped and followed by a run that spends the rest, replanned after a loss, checked. Where
another accountant is needed, one line says so. One that uses up its accounts is their only run.
"""

import copy
import json

import numpy as np
import pytest
from lib.configs import small
from lib.runs import killed

import fedspend
import fedspend.server.rounds
from fedspend import train
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.ledger.rules import Proposal
from fedspend.records import plan_of
from fedspend.runs.verifying import verify_run

pytestmark = pytest.mark.usefixtures("quick_verify")
EARLIER = "auto: what was spent before is composed at one Rényi order"


@pytest.fixture
def auto(tiny):
    """A run with real randomness whose accountant is left to the plan."""
    del tiny["privacy"]["accountant"]
    tiny["privacy"]["randomness"] = "os"
    tiny["train"]["rounds"] = 6
    return tiny


def close(place, folder):
    run = json.loads((folder / "run.json").read_text())["ledger"]["run"]
    with Ledger.open(place, write=True) as ledger:
        ledger.close_run(run, reason="stopped early")


def balances(place):
    with Ledger.open(place) as ledger:
        return ledger.balances()


def spent_by_renyi_curves(place):
    with Ledger.open(place) as ledger:
        accounts = ledger.accounts()
        past = ledger.past(accounts.names)
        return past.bound_to(np.zeros(past.histories)).best(accounts.delta)[0]


def with_room(place):
    """A ledger whose accounts have room for more than one run of `auto`."""
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register([str(n) for n in range(6)], [8.0] * 2 + [24.0] * 4, delta=1e-3)
    return place


# --- admission ---


@pytest.mark.full(only=["discrete"])
@pytest.mark.parametrize("noise", ["central", "discrete"])
def test_a_run_by_pld_spends_its_budgets_and_not_more(auto, tmp_path, noise):
    auto["privacy"]["noise"] = noise
    place = tmp_path / "accounts.db"
    result = train(auto, output=tmp_path / "run", ledger=place)
    assert result.plan.accountant == "pld"
    found = balances(place)
    assert np.all(found.order == 0), "read by PLD: by Rényi curves it would be over"
    assert np.all(found.spent <= found.budget)
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-5)
    assert noise == "central" or verify_run(tmp_path / "run", ledger=place).ok
    with pytest.raises(Refused, match="lifetime budget"):
        train(auto, output=tmp_path / "again", ledger=place)
    assert not (tmp_path / "again").exists()


def test_a_run_by_renyi_curves_after_one_by_pld_is_read_with_it(tmp_path):
    """An account with both is read at its own order, at which both were admitted."""
    terms = {"delta": 1e-3, "rounds": 2, "rate": 0.5}
    by_pld, by_rdp = (fedspend.plan([2.0] * 3, **terms, accountant=name) for name in ("pld", "rdp"))
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register([str(n) for n in range(3)], 4.0, delta=1e-3)
        for name, plan in (("one", by_pld), ("two", by_rdp)):
            ledger.admit(name, Proposal.of_plan(plan), simulation=True)
            for round in range(2):
                ledger.reserve(name, round)
            found = ledger.balances()
            if name == "one":
                assert np.all(found.order == 0)
                assert np.all(found.spent == by_pld.epsilon)
        assert np.all(found.order == ledger.accounts().order)
        assert np.all((by_pld.epsilon < found.spent) & (found.spent < 4.0))
    assert audit(str(tmp_path / "accounts.db")).ok


# --- what is left ---


@pytest.mark.full
def test_the_rest_of_a_run_by_pld_is_planned_by_renyi_curves(auto, tmp_path):
    place, rest = with_room(tmp_path / "accounts.db"), auto | {"ledger": {"spend": "remaining"}}
    with killed(at="play", round=3):
        train(auto, output=tmp_path / "one", ledger=place)
    close(place, tmp_path / "one")
    before = balances(place)
    assert np.all(before.spent < before.budget)
    assert np.all(before.remaining > 0)
    result = train(rest, output=tmp_path / "two", ledger=place)
    assert result.plan.accountant == "rdp"
    assert result.plan.parameters["accountant"] == EARLIER
    found = balances(place)
    assert np.all(found.spent <= found.budget)
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-5)
    assert np.all(spent_by_renyi_curves(place) <= found.budget)
    assert audit(str(place), runs=[str(tmp_path / "one"), str(tmp_path / "two")]).ok


def test_the_rest_cannot_be_planned_by_pld(auto, tmp_path):
    place, rest = with_room(tmp_path / "accounts.db"), copy.deepcopy(auto)
    with killed(at="play", round=2):
        train(auto, output=tmp_path / "one", ledger=place)
    close(place, tmp_path / "one")
    rest |= {"ledger": {"spend": "remaining"}}
    rest["privacy"]["accountant"] = "pld"
    with pytest.raises(InvalidInput) as refused:
        train(rest, output=tmp_path / "two", ledger=place)
    assert str(refused.value) == (
        "planning with past spending needs accountant 'rdp' or 'auto', got 'pld'; drop that "
        "accountant"
    )
    assert not (tmp_path / "two").exists()


def test_after_a_whole_run_by_pld_nothing_is_left(auto, tmp_path):
    """By Rényi curves the accounts are over their budgets, and one line says that."""
    place = tmp_path / "accounts.db"
    train(auto, output=tmp_path / "one", ledger=place)
    assert balances(place).remaining.tolist() == [0.0] * 6
    with pytest.raises(Refused) as refused:
        train(auto | {"ledger": {"spend": "remaining"}}, output=tmp_path / "two", ledger=place)
    assert "its lifetime budget is used up" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "two").exists()


def test_closing_a_run_that_used_up_its_accounts_frees_nothing(auto, tmp_path):
    """Only its plan as a whole, fixed beforehand, is known to stay within the budgets."""
    place = tmp_path / "accounts.db"
    with killed(at="play", round=2):
        train(auto, output=tmp_path / "one", ledger=place)
    with Ledger.open(place) as ledger:
        (run,) = ledger.state.runs.values()
        assert run.alone
        assert np.all(ledger.balances().spent < ledger.accounts().budget)
    close(place, tmp_path / "one")
    found = balances(place)
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-5)
    assert found.remaining.tolist() == [0.0] * 6
    assert audit(str(place), runs=[str(tmp_path / "one")]).ok
    with pytest.raises(Refused, match="lifetime budget"):
        train(auto, output=tmp_path / "two", ledger=place)


# --- replanning ---


def test_a_run_that_used_up_its_accounts_is_not_replanned(auto, tmp_path):
    place = tmp_path / "accounts.db"
    with killed(at="play", round=1):
        train(auto, output=tmp_path / "run", ledger=place)
    before = (tmp_path / "run" / "plan.json").read_bytes()
    with pytest.raises(Refused) as refused:
        train(auto, output=tmp_path / "run", resume=True, replan=True)
    assert "fits its accounts only as it was planned" in str(refused.value)
    assert "drop replan=True" in str(refused.value)
    assert (tmp_path / "run" / "plan.json").read_bytes() == before
    result = train(auto, output=tmp_path / "run", resume=True)
    assert [line["round"] for line in result.metrics if line.get("skipped")] == [1]


@pytest.mark.full(only=["discrete"])
@pytest.mark.parametrize("noise", ["central", "discrete"])
def test_lost_rounds_of_a_run_by_pld_are_replanned_by_renyi_curves(auto, tmp_path, noise):
    auto["privacy"]["noise"] = noise
    place, notes = with_room(tmp_path / "accounts.db"), []
    with killed(at="play", round=1):
        train(auto, output=tmp_path / "run", ledger=place)
    old = fedspend.Plan.load(tmp_path / "run" / "plan.json")
    assert old.accountant == "pld"
    result = train(auto, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append)
    assert "1 lost round is made up for: rounds 2 to 7 were replanned" in notes
    plan = result.plan
    assert (plan.accountant, plan.rounds) == ("rdp", 7)
    assert plan.parameters["accountant"] == "Rényi curves, since it was replanned"
    np.testing.assert_array_equal(plan.noise_multiplier[0], old.noise_multiplier[0])
    assert np.all(plan.noise_multiplier[1:6] > old.noise_multiplier[1:])
    assert np.all(plan.epsilon <= old.epsilon)
    found = balances(place)
    assert np.all(found.spent <= old.epsilon)
    np.testing.assert_allclose(spent_by_renyi_curves(place), old.epsilon, rtol=1e-5)
    assert np.all(spent_by_renyi_curves(place) <= old.epsilon)
    assert noise == "central" or verify_run(tmp_path / "run", ledger=place).ok


@pytest.mark.full
@pytest.mark.parametrize("lowered", [False, True])
def test_a_replanned_run_by_pld_is_verified_by_what_was_said_when_it_was_played(
    auto, tmp_path, lowered
):
    """Its first rounds were told by PLD, its last ones by Rényi curves."""
    place, folder = with_room(tmp_path / "accounts.db"), tmp_path / "run"
    with killed(at="play", round=3):
        train(auto, output=folder, ledger=place)
    if lowered:
        with Ledger.open(place, write=True) as ledger:
            accounts = ledger.accounts()
            ledger.change(accounts.names, accounts.budget * 0.97, reason="asked to")
    train(auto, output=folder, resume=True, replan=True)
    assert verify_run(folder, ledger=place).ok
    told = (folder / "metrics.jsonl").read_text()
    for round in (1, 2, 4):  # told by PLD, and by Rényi curves
        line = json.loads(told.splitlines()[round - 1])
        for factor in (0.99, 1.01):
            forged = line | {"epsilon": {k: v * factor for k, v in line["epsilon"].items()}}
            (folder / "metrics.jsonl").write_text(
                told.replace(json.dumps(line), json.dumps(forged))
            )
            found = {one.check: one for one in verify_run(folder, ledger=place).checks}["metrics"]
            assert found.good is False
            assert f"Round {round}, group " in found.words
            assert "the metrics say epsilon" in found.words


@pytest.mark.full
def test_where_renyi_curves_leave_nothing_replanning_says_so(auto, tmp_path):
    """Before the last round a plan by PLD has spent, by Rényi curves, about all of its budget."""
    auto["train"]["rounds"] = 40
    auto["privacy"] |= {"saving_rate": 0.8, "groups": [{"epsilon": 2.0, "share": 1}]}
    place = with_room(tmp_path / "accounts.db")
    with killed(at="play", round=39):
        train(auto, output=tmp_path / "run", ledger=place)
    before = (tmp_path / "run" / "plan.json").read_bytes()
    with pytest.raises(Refused) as refused:
        train(auto, output=tmp_path / "run", resume=True, replan=True)
    assert str(refused.value) == (
        "the rounds that have begun were planned by privacy loss distributions, and by Rényi "
        "curves, which replanning needs, they leave too little; drop replan=True"
    )
    assert (tmp_path / "run" / "plan.json").read_bytes() == before
    result = train(auto, output=tmp_path / "run", resume=True)
    assert [line["round"] for line in result.metrics if line.get("skipped")] == [39]
    found = balances(place)
    assert np.all(found.spent <= found.budget)


# --- records ---

RECORDS = small("record")


@pytest.mark.full(but=["rdp"])
@pytest.mark.parametrize("name", ["auto", "rdp"])
def test_records_are_accounted_by_renyi_curves(name):
    found = plan_of(RECORDS, [f"privacy.accountant={name}"])
    assert found.accountant == "rdp"
    assert found.hash == plan_of(RECORDS).hash


def test_records_by_pld_are_refused_with_the_reason():
    with pytest.raises(InvalidInput) as refused:
        plan_of(RECORDS, ["privacy.accountant=pld"])
    assert str(refused.value) == (
        "privacy.accountant = 'pld' is for client-level methods: records are read by Rényi curves, "
        "because clients are sampled around them; drop it, or choose another method"
    )
