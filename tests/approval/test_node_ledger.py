"""A client's own account: what it has not approved, it does not do; what it does, it charges."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from approval.offers import DELTA, SIZE, offered, planned, task_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.runs import Killed, die, killed

from fedspend.approval.node_ledger import NodeLedger, chance_of, verified
from fedspend.client.answering import Answered, answer
from fedspend.client.contribution import Contribution
from fedspend.client.declining import Declined
from fedspend.client.state import FolderStates
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit

pytestmark = pytest.mark.usefixtures("quick_verify")


def account(tmp_path, **changes):
    own = {
        "client": "north",
        "location": str(tmp_path / "ledger.db"),
        "folder": tmp_path / "state",
        "simulation": False,
        "budget": 3.0,
        "delta": DELTA,
        "key": None,
    }
    return NodeLedger(**(own | changes))


@pytest.fixture
def offer():
    return offered()


@pytest.fixture
def mine(tmp_path, offer):
    """An account that has approved its slice."""
    found = account(tmp_path)
    found.approve(offer.slice_of(0))
    return found


def rounds_of(mine, run="0123456789ab"):
    with mine.reading() as ledger:
        return dict(ledger.run(run).rounds)


def contribution(task):
    """Fresh noise in every answer, as from the operating system."""
    vector = np.random.default_rng().normal(size=SIZE).round(6)
    return Contribution(
        task.client, task.shared.round, vector * task.clip_norm / 9, run=task.shared.run
    )


def answered(mine, task, work=contribution):
    return answer(task, mine.client, mine, Answered(FolderStates(mine.folder)), work)


def declined(mine, task):
    with pytest.raises(Declined) as why:
        answered(mine, task)
    return why.value.reason


# --- approving ------------------------------------------------------------------------------------


def test_approving_holds_what_the_slice_costs(mine, offer, tmp_path):
    with mine.reading() as ledger:
        (line,) = ledger.balances().rows([0])
    assert line["budget"] == 3.0
    assert line["spent"] == 0.0
    assert line["reserved"] == pytest.approx(float(offer.plan.epsilon[0]))
    for path in ("ledger.db", "state/ledger_head.json", "state/0123456789ab/slice.json"):
        assert oct((tmp_path / path).stat().st_mode & 0o777) == "0o600"
    assert oct((tmp_path / "state").stat().st_mode & 0o777) == "0o700"
    assert audit(mine.location).ok


def test_approving_twice_is_approving_once(mine, offer):
    mine.approve(offer.slice_of(0))
    with mine.reading() as ledger:
        assert ledger.state.entries == 3


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"client": "west"}, "is for client 'north', and this node is 'west'"),
        ({"simulation": True}, "for a real run, and this node's rows are simulated"),
        ({"budget": 2.9}, "would exceed the lifetime budget of 2.9"),
        ({"delta": 1e-6}, "the plan is at delta 0.001"),
    ],
)
def test_a_slice_that_does_not_fit_is_refused(tmp_path, offer, changes, why):
    found = account(tmp_path, **changes)
    with pytest.raises(Refused, match=why):
        found.approve(offer.slice_of(0))
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "ledger.db").exists()
    with pytest.raises(Declined):
        found.admit(task_of(offer))
    account(tmp_path).approve(offer.slice_of(0))  # nothing of the other terms was kept


def test_the_budget_is_the_clients_own_and_must_be_stated(tmp_path, offer):
    with pytest.raises(InvalidInput, match=r"node\.budget and node\.delta are missing"):
        account(tmp_path, budget=None).approve(offer.slice_of(0))
    account(tmp_path, budget=50.0).approve(offer.slice_of(0))
    with pytest.raises(Refused, match=r"node\.budget is 60, but the ledger .* has 50"):
        account(tmp_path, budget=60.0).approve(offered(run="another").slice_of(0))


def test_a_second_run_is_on_top_of_the_first(tmp_path):
    found = account(tmp_path, budget=4.0)
    found.approve(offered(run="first").slice_of(0))
    with pytest.raises(Refused, match="would exceed"):
        found.approve(offered(run="second").slice_of(0))
    found = account(tmp_path / "roomy", budget=9.0)
    (tmp_path / "roomy").mkdir()
    for run in ("first", "second"):
        offer = offered(run=run)
        found.approve(offer.slice_of(0))
        for round in range(3):
            answered(found, task_of(offer, round=round))
    with found.reading() as ledger:
        (line,) = ledger.balances().rows([0])
    assert 3.0 < line["spent"] + line["reserved"] <= 9.0
    assert audit(found.location).ok


def test_another_plan_under_the_same_run_is_refused(mine):
    with pytest.raises(Refused, match="a run has one plan"):
        mine.approve(offered(planned(rate=0.5)).slice_of(0))


def test_a_slice_that_fails_verification_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspend.approval.node_ledger.verified", verified)
    plan = planned(rounds=2)
    cheap = plan.replace(
        noise_multiplier=plan.noise_multiplier * 0.7, clip_norm=plan.clip_norm / 0.7
    )
    with pytest.raises(Refused, match="does not keep its promise"):
        account(tmp_path, budget=99.0).approve(offered(cheap).slice_of(0))
    assert not (tmp_path / "ledger.db").exists()


def test_the_servers_ledger_is_not_a_nodes(tmp_path, offer):
    with Ledger.create(tmp_path / "ledger.db", simulation=False) as ledger:
        ledger.register(["north", "south"], [3.0, 6.0], delta=DELTA)
    with pytest.raises(Refused, match="is not the ledger of client 'north' alone"):
        account(tmp_path).approve(offer.slice_of(0))


# --- rounds ---------------------------------------------------------------------------------------


def test_nothing_is_done_without_approval(tmp_path, offer):
    found = account(tmp_path)
    assert declined(found, task_of(offer)) == "account"  # there is no ledger at all
    with pytest.raises(Declined):
        found.join(offer.root)
    found.approve(offered(run="another").slice_of(0))
    assert declined(found, task_of(offer)) == "plan"
    with pytest.raises(Declined) as why:
        found.join(offer.root)
    assert why.value.reason == "plan"


def test_joining_charges_the_first_round(mine, offer):
    mine.join(offer.root)
    mine.join(offer.root)
    assert rounds_of(mine) == {0: "reserved"}
    answered(mine, task_of(offer))
    assert rounds_of(mine) == {0: "committed"}


def test_rounds_in_which_a_client_was_not_asked_are_charged(mine, offer):
    answered(mine, task_of(offer, round=1))
    answered(mine, task_of(offer, round=4))
    states = ["reserved", "committed", "reserved", "reserved", "committed"]
    assert rounds_of(mine) == dict(enumerate(states))


@pytest.mark.full
@settings(max_examples=25)  # of 64 sets
@given(asked=st.sets(st.integers(0, 5)))
def test_whatever_rounds_are_asked_all_up_to_the_last_are_charged(tmp_path_factory, asked):
    folder = tmp_path_factory.mktemp("node")
    found, offer = account(folder), offered()
    found.approve(offer.slice_of(0))
    for round in sorted(asked):
        answered(found, task_of(offer, round=round))
    assert list(rounds_of(found)) == list(range(max(asked, default=-1) + 1))
    done = {round for round, state in rounds_of(found).items() if state == "committed"}
    assert done == asked
    with found.reading() as ledger:
        (line,) = ledger.balances().rows([0])
        mine = offer.plan.spent_by_schedule()[:, offer.plan.schedules.of_client[0]]
    planned_spent = mine[max(asked)] if asked else 0.0
    assert line["spent"] == pytest.approx(planned_spent, rel=1e-6)
    assert line["spent"] <= 3.0


def test_a_retry_has_the_same_bytes_and_is_charged_once(mine, offer):
    task = task_of(offer, round=2)
    first = answered(mine, task)
    with mine.reading() as ledger:
        entries = ledger.state.entries
    assert answered(account_again(mine), task) == first
    with mine.reading() as ledger:
        assert ledger.state.entries == entries


def account_again(mine):
    """The same account after a restart."""
    return replace(mine)


def test_tasks_that_are_replayed_are_declined(mine, offer):
    for round in (0, 3):
        answered(mine, task_of(offer, round=round))
    for round in (0, 1, 2):
        assert declined(mine, task_of(offer, round=round)) == "replayed"
    assert declined(mine, task_of(offer, round=3, lr=0.2)) == "changed"
    shutil.rmtree(mine.folder / "0123456789ab")  # the answers are gone, the account is not
    slice_lost = declined(mine, task_of(offer, round=3))
    mine.approve(offer.slice_of(0))
    assert slice_lost == "account"
    assert [declined(mine, task_of(offer, round=round)) for round in (0, 3)] == ["replayed"] * 2
    answered(mine, task_of(offer, round=4))


def test_a_task_with_other_terms_is_not_charged(mine, offer):
    assert declined(mine, task_of(offer, clip_norm=9.0)) == "terms"
    assert declined(mine, task_of(offer, plan="0" * 64)) == "plan"
    assert declined(mine, task_of(offer, run="unknown")) == "plan"
    assert rounds_of(mine) == {}


INSTANTS = {
    "keep": "fedspend.client.answering.Answered.keep",
    "commit": "fedspend.ledger.Ledger.commit",
}


@pytest.mark.full(but=["commit"])
@pytest.mark.parametrize("where", ["work", *INSTANTS])
def test_killed_between_charge_and_answer(mine, offer, where):
    """Whatever was kept is sent, and what was not kept was never sent: one answer leaves."""
    task = task_of(offer, round=1)

    if where == "work":
        with pytest.raises(Killed):
            answered(mine, task, die)
    else:
        with killed(at=INSTANTS[where]):
            answered(mine, task)
    assert rounds_of(mine) == {0: "reserved", 1: "reserved"}
    first = answered(account_again(mine), task)
    assert answered(mine, task) == first
    assert rounds_of(mine) == {0: "reserved", 1: "committed"}
    shutil.rmtree(mine.folder / "0123456789ab")
    mine.approve(offer.slice_of(0))
    assert declined(mine, task) == "replayed"


def test_a_client_that_lowers_its_budget_or_withdraws_is_asked_in_vain(mine, offer):
    answered(mine, task_of(offer))
    with Ledger.open(mine.location, write=True) as ledger:
        ledger.change(["north"], 2.0, reason="second thoughts")
    assert declined(replace(mine, budget=2.0), task_of(offer, round=1)) == "account"
    assert declined(mine, task_of(offer, round=1)) == "account"  # the config says otherwise
    with Ledger.open(mine.location, write=True) as ledger:
        ledger.change(["north"], 3.0, reason="third thoughts")
        ledger.withdraw(["north"], reason="enough")
    assert declined(mine, task_of(offer, round=1)) == "account"


def test_leaving_charges_every_round_unless_the_run_never_began(tmp_path, mine, offer):
    answered(mine, task_of(offer))
    left = mine.leave(offer.terms.run, "enough")
    assert (left.next_round, left.closed) == (6, "enough")
    assert declined(mine, task_of(offer, round=1)) == "account"
    with mine.reading() as ledger:
        (line,) = ledger.balances().rows([0])
    assert line["spent"] == pytest.approx(float(offer.plan.epsilon[0]), rel=1e-6)
    (tmp_path / "other").mkdir()
    found = account(tmp_path / "other")
    found.approve(offer.slice_of(0))
    assert found.leave(offer.terms.run, "never began").next_round == 0
    with found.reading() as ledger:
        (line,) = ledger.balances().rows([0])
    assert (line["spent"], line["reserved"]) == (0.0, 0.0)
    found.approve(offered(run="another").slice_of(0))


def test_a_nodes_run_is_not_closed_as_a_servers_is(mine, offer):
    answered(mine, task_of(offer))
    with (
        Ledger.open(mine.location, write=True) as ledger,
        pytest.raises(Refused, match="fedspend node leave"),
    ):
        ledger.close_run(offer.terms.run, reason="to have it back")


# --- the files ------------------------------------------------------------------------------------


def test_a_ledger_that_is_gone_is_not_begun_anew(mine, offer, tmp_path):
    answered(mine, task_of(offer))
    (tmp_path / "ledger.db").unlink()
    assert declined(mine, task_of(offer, round=1)) == "account"
    with pytest.raises(Refused, match="is gone"):
        mine.approve(offered(run="another").slice_of(0))
    (tmp_path / "ledger.db.head").unlink()  # the answers still know of it
    with pytest.raises(Refused, match=r"ledger_head\.json has seen"):
        mine.approve(offered(run="another").slice_of(0))


def test_an_old_copy_of_the_ledger_is_noticed(mine, offer, tmp_path):
    for name in ("ledger.db", "ledger.db.head"):
        shutil.copy(tmp_path / name, tmp_path / f"{name}.old")
    answered(mine, task_of(offer))
    for name in ("ledger.db", "ledger.db.head"):
        shutil.copy(tmp_path / f"{name}.old", tmp_path / name)
    assert declined(mine, task_of(offer, round=1)) == "account"


def test_another_clients_ledger_or_a_fresh_one_in_its_place_is_noticed(mine, offer, tmp_path):
    for name in ("ledger.db", "ledger.db.head"):
        (tmp_path / name).unlink()
    (tmp_path / "fresh").mkdir()
    fresh = account(tmp_path / "fresh")
    fresh.approve(offer.slice_of(0))
    shutil.copy(tmp_path / "fresh" / "ledger.db", tmp_path / "ledger.db")
    assert declined(mine, task_of(offer)) == "account"


def test_an_approved_slice_that_was_changed_or_lost_is_noticed(mine, offer):
    path = mine.slice_file(offer.terms.run)
    other = offered(planned(rate=0.5))
    path.write_bytes(other.slice_of(0).to_bytes())
    assert declined(mine, task_of(offer)) == "account"
    assert declined(mine, task_of(other)) == "plan"
    body = json.loads(offer.slice_of(0).to_bytes())
    body["own"]["clip_norm"] = [[9.0, 6]]
    path.write_text(json.dumps(body))
    assert declined(mine, task_of(offer, clip_norm=9.0)) == "account"
    path.unlink()
    assert declined(mine, task_of(offer)) == "account"
    mine.approve(offer.slice_of(0))
    answered(mine, task_of(offer))


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_server_that_asks_every_time_is_found_out(tmp_path):
    offer = offered(planned(rounds=40, rate=0.2))
    found = account(tmp_path)
    found.approve(offer.slice_of(0))
    for round in range(12):  # 0.2^13 < 1e-9 < 0.2^12
        answered(found, task_of(offer, round=round))
    assert declined(found, task_of(offer, round=12)) == "oversampled"


def test_where_everyone_is_asked_nobody_is_asked_too_often(tmp_path):
    offer = offered(planned(rounds=20, rate=0.2), own_coins=True)
    found = account(tmp_path)
    found.approve(offer.slice_of(0))
    for round in range(20):
        answered(found, task_of(offer, round=round))


@pytest.mark.full
def test_an_honest_server_is_not_suspected(tmp_path):
    """The bound is at least the exact chance, for every count."""
    for rounds, rate in ((1, 0.01), (7, 0.3), (40, 0.9), (25, 1.0)):
        exact = 0.0
        for asked in range(rounds, 0, -1):
            ways = float(np.prod([(rounds - i) / (i + 1) for i in range(asked)]))
            exact += ways * rate**asked * (1 - rate) ** (rounds - asked)
            assert chance_of(asked, rounds, rate) >= exact * (1 - 1e-9)
    offer = offered(planned(rounds=30, rate=1.0))
    found = account(tmp_path)
    found.approve(offer.slice_of(0))
    for round in range(30):
        answered(found, task_of(offer, round=round))
