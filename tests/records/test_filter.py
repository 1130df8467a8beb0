"""The Rényi filter by step: what every record can pay for, to the step; who is active when; and
runs that keep to it.
"""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from boundary import record_engine, record_task
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.configs import small
from torch import nn

import fedspend
from fedspend.client import record_steps
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.planning.plan_json import built, canonical, hash_of
from fedspend.records import Terms
from fedspend.records.filtering import cost_of_steps
from fedspend.records.plan_file import RECORD_PLAN, to_content
from fedspend.records.planning import RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.records.verification import verify_records
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

ORDERS = np.asarray(fedspend.records.ORDERS)
TERMS = Terms(delta=1e-3, rounds=6, local_steps=5, client_rate=1.0, noise_multiplier=6.0)
CONFIG = small(
    "record",
    data__examples=120,
    data__clients=3,
    method={"name": "filter", "common_rate": 0.9},
    privacy__noise_multiplier=8.0,
    privacy__clip=0.7,
)


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


def filtered(budget, terms=TERMS, rate=0.5, clients=1):
    owner = np.arange(len(budget)) % clients
    wanted = Wanted(method="filter", common_rate=rate)
    return plan_records(
        budget, owner, terms, clients=[f"c{n}" for n in range(clients)], wanted=wanted
    )


def steps_of(plan):
    """All steps of each record."""
    return plan.steps.sum(axis=0)[plan.schedules.of_client]


def second_opinion(steps, one_step, terms):
    """Epsilon of the first `steps` steps, from the second accountant's divergence of one step at
    the plan's orders.
    """
    orders = ORDERS
    whole, rest = divmod(steps, terms.local_steps)
    total = 0.0
    for count, inside in ((whole, terms.local_steps), (1, rest)):
        exponent = (orders - 1) * inside * one_step
        p = terms.client_rate
        total = total + count * (
            exponent if p == 1 else np.logaddexp(np.log1p(-p), np.log(p) + exponent)
        ) / (orders - 1)
    return float(epsilon_at(total, orders, terms.delta).min())


# --- what a budget pays for ---


@pytest.mark.full
@settings(max_examples=40)
@given(
    st.lists(st.floats(0.02, 20.0), min_size=1, max_size=6),
    st.floats(0.01, 1.0),
    st.sampled_from([1.0, 0.7, 0.1]),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_never_over_and_less_than_a_step_is_left(budgets, rate, client_rate, rounds, local_steps):
    terms = Terms(1e-3, rounds, local_steps, client_rate, 3.0)
    budget = np.array([*sorted(budgets), 1e4])  # someone can always pay
    plan = filtered(budget, terms, rate)
    steps, one_step = steps_of(plan), renyi_divergence(rate, terms.noise_multiplier, ORDERS)
    assert (np.diff(steps) >= 0).all(), "who allows more lasts at least as long"
    for allowed, taken in zip(budget, steps.astype(int), strict=True):
        assert taken == 0 or second_opinion(taken, one_step, terms) <= allowed
        if taken < rounds * local_steps:
            assert second_opinion(taken + 1, one_step, terms) > allowed * (1 - 1e-7), (
                "one step more is too much"
            )


@pytest.mark.parametrize("client_rate", [1.0, 0.6])
def test_plans_that_stop_inside_a_round_verify(client_rate):
    plan = filtered([0.2, 0.5, 1.0], dataclasses.replace(TERMS, client_rate=client_rate))
    assert plan.short is not None
    verdict = verify_records(plan)
    assert verdict.ok, verdict.failures
    assert (verdict.pld_schedules > 0) == (client_rate == 1)
    told, picked = (dict(verdict.observers[n].by_budget) for n in (0, -1))
    assert len(told) >= 2
    assert all(picked[budget] >= claim * (1 - 1e-9) for budget, claim in told.items())


def test_a_budget_exactly_at_the_boundary_pays():
    cost = cost_of_steps(0.5, TERMS)
    plan = filtered([cost[11], np.nextafter(cost[11], 0), cost[-1]])
    assert steps_of(plan).tolist() == [12, 11, 30]
    assert plan.active_by_step.tolist() == [3] * 11 + [2] + [1] * 18


def test_who_cannot_pay_for_one_step_is_left_out_and_listed():
    plan = filtered([0.001, 3.0], Terms(1e-9, 6, 5, 1.0, 6.0))
    assert plan.left_out.tolist() == [0]
    assert plan.rate[:, 0].max() == 0
    assert plan.epsilon[0] == 0
    with pytest.raises(InvalidInput, match="no record of client 'c0'"):
        filtered([0.001, 3.0], Terms(1e-9, 6, 5, 1.0, 6.0), clients=2)


def test_verify_lists_who_is_left_out(tmp_path, capsys):
    from fedspend.cli.main import main

    filtered([0.001, 3.0], Terms(1e-9, 6, 5, 1.0, 6.0)).save(tmp_path / "plan.json")
    assert main(["verify", str(tmp_path / "plan.json")]) == 0
    assert "1 record that cannot pay for any step: 0" in capsys.readouterr().out
    assert main(["verify", "--json", str(tmp_path / "plan.json")]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == ["0"]


def test_whole_rounds_are_the_plan_of_any_method():
    """Where nobody stops inside a round there is no table of steps, and the file has the form it
    always had.
    """
    plan = filtered([1e4, 1e4])
    assert plan.short is None
    assert plan.proposal().steps == 5


# --- the plan and its account ---


@pytest.fixture
def mixed():
    return filtered(
        [0.4, 0.7, 1.0, 1.3, 1.7, 50.0], dataclasses.replace(TERMS, client_rate=0.8), clients=2
    )


def test_the_file_keeps_the_steps(mixed, tmp_path):
    assert mixed.short is not None
    mixed.save(tmp_path / "plan.json")
    again = RecordPlan.load(tmp_path / "plan.json")
    np.testing.assert_array_equal(again.steps, mixed.steps)
    assert again.hash == mixed.hash
    assert again.spent_by_schedule()[-1] == pytest.approx(mixed.schedules.epsilon, rel=1e-6)


def test_a_file_in_which_a_class_has_no_steps_is_refused(mixed):
    content = to_content(mixed)
    del content["classes"][1]["steps"]
    content["hash"] = hash_of(canonical(content))
    with pytest.raises(InvalidInput, match="steps"):
        built(RECORD_PLAN, content)


@pytest.mark.parametrize(
    "broken",
    [
        lambda steps: steps + 1.0,
        lambda steps: np.where(steps > 0, steps - 0.5, 0.0),
        lambda steps: np.where(steps > 0, steps, 1.0),
        lambda steps: np.zeros_like(steps),
        lambda steps: np.where(steps > 0, np.nan, steps),
        lambda steps: steps[:-1],
    ],
)
def test_steps_that_do_not_fit_are_refused(mixed, broken):
    with pytest.raises(InvalidInput, match="step"):
        dataclasses.replace(mixed, short=broken(mixed.steps))


def test_a_step_too_many_does_not_verify(mixed):
    free = np.argwhere((mixed.steps > 0) & (mixed.steps < 5))
    assert len(free) >= 3
    for t, k in free:
        steps = mixed.steps.copy()
        steps[t, k] += 1
        greedy = dataclasses.replace(mixed, short=steps)
        verdict = verify_records(greedy)
        assert not verdict.ok, "the claim is not reproduced"


def test_the_ledger_charges_what_the_plan_claims(mixed, tmp_path):
    with Ledger.create(tmp_path / "ledger.db", simulation=True) as ledger:
        ledger.admit("one", mixed.proposal(), simulation=True)
        for t in range(mixed.rounds):
            ledger.reserve("one", t)
            spent = mixed.spent_by_schedule()[t][mixed.schedules.of_client]
            assert ledger.balances("record").spent == pytest.approx(spent, rel=1e-6)
    assert audit(tmp_path / "ledger.db").ok


# --- the engine ---


def test_the_engine_samples_and_divides_as_planned(monkeypatch):
    plan = filtered([0.4, 0.7, 1.0, 1.2])
    assert plan.active_by_step.min() == 0, "in the end nobody is left"
    drawn, divided = [], []
    draw, release = record_steps.draw_records, record_steps.release_step
    monkeypatch.setattr(
        record_steps, "draw_records", lambda rate, *rest: drawn.append(rate) or draw(rate, *rest)
    )
    monkeypatch.setattr(
        record_steps, "release_step", lambda *args: divided.append(args[2]) or release(*args)
    )
    rows, labels = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    engine = record_engine(plan, nn.Linear(3, 2), rows, labels)
    for t in range(plan.rounds):
        (reply,) = engine.run([record_task(plan, 8, t)])
        assert bool(reply.contribution.vector.any()) == bool(plan.expected_batch(t).any()), (
            "a round without anybody releases nothing at all"
        )
    busy = np.count_nonzero(plan.active_by_step)
    assert len(drawn) == len(divided) == busy
    assert [int((rate > 0).sum()) for rate in drawn] == plan.active_by_step[:busy].tolist()
    assert divided == pytest.approx(0.5 * plan.active_by_step[:busy])


@pytest.mark.full
def test_a_run_that_filters_tells_who_is_active(config, tmp_path):
    whole = fedspend.train(config, output=tmp_path / "whole")
    assert whole.plan.short is not None
    lines = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    from fedspend.report.html import write_report

    write_report([tmp_path / "whole"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Active records, by step." in page
    assert "filter by clip with" in page
    assert "Sampling rate, by round." not in page, "there is one rate, as long as a record can pay"
    stops = int(
        whole.plan.steps.sum(axis=0)[whole.plan.schedules.of_client][whole.plan.budget == 1].min()
    )
    assert f"ε 1 at step {stops}" in page, "where a budget begins to run out is marked"
    assert [
        count for line in lines for count in line["active"]
    ] == whole.plan.active_by_step.tolist()
    with Ledger.open(tmp_path / "whole" / "ledger.db") as ledger:
        assert ledger.balances("record").spent.sum() == pytest.approx(
            whole.plan.epsilon.sum(), rel=1e-6
        )
    assert audit(tmp_path / "whole" / "ledger.db").ok
