"""The plan of a private tune: within every budget, and checked by an accountant that shares no
code.
"""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspend.accounting.rdp import ORDERS
from fedspend.accounting.trials import TUNE_ORDERS, trials_of
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.plan import TRIAL
from fedspend.planning.request import PlanRequest
from fedspend.tuning.checking import verify_tune
from fedspend.tuning.plan import load_tune_plan, tuned_curves
from fedspend.tuning.planning import plan_tune

pytestmark = pytest.mark.usefixtures("quick")


def request(budgets, **options):
    asked = {"delta": 1e-3, "rounds": 4, "rate": 0.7, "policy": "uniform"} | options
    names = tuple(str(n) for n in range(len(budgets)))
    return PlanRequest(np.array(budgets, dtype=float), names, **asked)


def planned(budgets=(2.0, 5.0, 2.0), trials=None, requests=None, **options):
    asked = requests or [request(budgets), request(budgets, rate=0.3)]
    settings = [(f"privacy.rate={one.rate:g}",) for one in asked]
    return plan_tune(settings, asked, trials or trials_of("logarithmic", 5.0), **options)


@pytest.mark.full
@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    budgets=st.lists(st.floats(0.3, 40.0), min_size=1, max_size=3),
    rate=st.floats(0.05, 1.0),
    rounds=st.integers(1, 6),
    mean=st.floats(1.1, 40.0),
    name=st.sampled_from(["logarithmic", "geometric"]),
)
def test_every_budget_is_met_and_the_second_accountant_agrees(budgets, rate, rounds, mean, name):
    asked = [request(budgets, rate=one, rounds=rounds) for one in (rate, rate / 2)]
    plan = planned(budgets, trials_of(name, mean), asked)
    assert verify_tune(plan).failures == []
    assert np.all(plan.epsilon <= plan.budget)
    assert np.all(plan.epsilon >= plan.budget * (1 - 1e-4)), "nothing is left over"
    assert np.all(plan.inner < plan.budget)


def test_the_verifier_of_plans_passes_every_trial(monkeypatch):
    from fedspend.verification.verify import verify_clients

    monkeypatch.setattr("fedspend.tuning.checking.verify_clients", verify_clients)
    plan = planned()
    verdict = verify_tune(plan)
    assert verdict.failures == []
    assert {one.ok for one in verdict.plans.values()} == {True}
    assert all(one.parameters[TRIAL] is True for one in plan.plans)


def test_a_setting_that_costs_nothing_more_changes_no_price():
    one = planned(requests=[request([4.0])])
    both = planned(requests=[request([4.0]), request([4.0], clip=3.0)])
    np.testing.assert_allclose(one.curves, both.curves, rtol=1e-9)
    assert both.plans[1].clip == 3.0


def test_the_curve_is_that_of_the_costliest_setting_at_every_order():
    plan = planned()
    mine = plan.curves[plan.of_class]
    alone = [tuned_curves((one,), plan.trials) for one in plan.plans]
    for curves, of_class in alone:
        assert np.all(mine >= curves[of_class])
    assert not any(np.array_equal(mine, curves[of_class]) for curves, of_class in alone)


def test_it_is_read_at_the_orders_of_accounts():
    plan = planned()
    assert set(plan.claims[1]) <= set(ORDERS)
    assert plan.orders == TUNE_ORDERS


def test_past_spending_counts():
    from fedspend.accounting.mechanisms import Mechanisms, conversion_cost_at

    past = Mechanisms.of_schedules(np.full((3, 2), 4.0), np.full((3, 2), 0.5))
    asked = [request([3.0, 6.0])]
    fresh, later = planned(requests=asked), planned(requests=asked, past=past, ledger="1:00")
    assert np.all(later.inner < fresh.inner)
    order = np.array(TUNE_ORDERS)
    both = past.curves(TUNE_ORDERS, exact=True) + later.curves[later.of_class]
    total = (both + conversion_cost_at(order, np.array(1e-3)))[:, np.isin(order, ORDERS)].min(1)
    assert np.all(total <= [3.0, 6.0])
    assert np.all(total >= np.array([3.0, 6.0]) * (1 - 1e-3))


def broken(plan, how):
    """Plans that promise too much."""
    curves, trial = plan.curves, plan.plans[0]
    cheap = {
        "one trial charged": lambda: tuned_curves(plan.plans, trials_of("geometric", 1.0001))[0],
        "a curve that is a little too low": lambda: curves * (1 - 1e-5),
        "low at one order": lambda: np.where(np.arange(curves.shape[1]) == 60, 0.9, 1.0) * curves,
        "not a number": lambda: np.where(np.arange(curves.shape[1]) == 60, np.nan, 1.0) * curves,
    }
    if how in cheap:
        return dataclasses.replace(plan, curves=cheap[how]())
    if how == "more trials than charged":
        return dataclasses.replace(plan, trials=trials_of("logarithmic", 9.0))
    if how == "another distribution":
        return dataclasses.replace(plan, trials=trials_of("geometric", 5.0))
    if how == "a smaller budget":
        return dataclasses.replace(plan, budget=plan.budget * 0.99)
    if how == "a cheaper setting's price":
        curves, _ = tuned_curves(plan.plans[1:], plan.trials)
        return dataclasses.replace(plan, curves=curves * 0.5)
    noisy = trial.replace(noise_multiplier=trial.noise_multiplier * 0.9)
    return dataclasses.replace(plan, plans=(noisy, *plan.plans[1:]))


@pytest.mark.full(but_every=2)
@pytest.mark.parametrize(
    "how",
    [
        "one trial charged",
        "a curve that is a little too low",
        "low at one order",
        "not a number",
        "more trials than charged",
        "another distribution",
        "a smaller budget",
        "a cheaper setting's price",
        "less noise in a trial",
    ],
)
def test_a_broken_tune_is_noticed(how):
    plan = planned()
    assert verify_tune(plan).failures == []
    assert verify_tune(broken(plan, how)).failures != []


def test_it_is_saved_and_read_back(tmp_path):
    plan = planned(trials=trials_of("geometric", 3.0))
    plan.save(tmp_path / "tune.json")
    again = load_tune_plan(tmp_path / "tune.json")
    assert again.hash == plan.hash
    assert verify_tune(again).failures == []
    text = (tmp_path / "tune.json").read_text()
    (tmp_path / "tune.json").write_text(text.replace('"eta": 1.0', '"eta": 2.0'))
    with pytest.raises(Refused, match="altered"):
        load_tune_plan(tmp_path / "tune.json")


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("key", ["trials", "curves", "clients", "plans", "guarantee", "settings"])
def test_a_malformed_file_is_refused_in_one_line(tmp_path, key):
    from fedspend.planning.plan_json import canonical, hash_of

    planned().save(tmp_path / "tune.json")
    content = json.loads((tmp_path / "tune.json").read_text())
    content.pop("hash")
    for wrong in ({}, [], None, 3, [[]]):
        forged = content | {key: wrong}
        forged |= {"hash": hash_of(canonical(forged))}
        (tmp_path / "tune.json").write_text(json.dumps(forged))
        with pytest.raises(InvalidInput) as refused:
            load_tune_plan(tmp_path / "tune.json")
        assert "\n" not in str(refused.value)


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(Refused, match="too little for a private tune"):
        planned(requests=[request([0.002, 4.0])])


def test_too_many_kinds_of_clients_are_refused():
    with pytest.raises(Refused, match="at most 500 different kinds"):
        planned(requests=[request(np.linspace(1, 9, 501))])


def test_settings_for_other_clients_are_refused():
    with pytest.raises(InvalidInput, match="same clients, budgets and delta"):
        planned(requests=[request([2.0]), request([3.0])])
