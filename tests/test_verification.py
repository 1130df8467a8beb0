"""Plans that keep their promise pass; every way we could think of to break one is caught
and named.
"""

from __future__ import annotations

import copy
import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

import fedspend
from fedspend.errors import InvalidInput
from fedspend.planning.schedules import Schedules
from fedspend.verification.findings import unreadable
from fedspend.verification.second_accountant import renyi_divergence
from fedspend.verification.verify import (
    Verification,
    _largest_relative,
    accounted_part,
    lowest_epsilon,
    no_amplification,
    participation_revealed,
    verify,
)

BUDGETS = [10.0] * 34 + [20.0] * 43 + [30.0] * 23

# these tests are about Rényi curves; the default accountant would take away more noise
plan_by_rdp = partial(fedspend.plan, accountant="rdp")


@pytest.fixture(scope="module")
def uniform():
    return plan_by_rdp(BUDGETS, delta=1e-5, rounds=25, rate=0.9, policy="uniform")


@pytest.fixture(scope="module")
def small():
    """Cheap enough to verify again and again."""
    return plan_by_rdp(
        [4.0, 4.0, 8.0],
        delta=1e-3,
        rounds=4,
        rate=0.5,
        clients=["ann", "bob", "cho"],
        policy="uniform",
    )


@pytest.fixture(scope="module")
def checked(uniform) -> Verification:
    return verify(uniform)


def tampered(plan, **tables):
    """A copy with tables put in place of the plan's, past the checks of `Plan`: {name: array over
    schedules}, or plan fields.
    """
    broken = copy.copy(plan)
    kept = {name: getattr(plan.schedules, name) for name in Schedules.__dataclass_fields__}
    object.__setattr__(
        broken, "schedules", Schedules(**(kept | {k: v for k, v in tables.items() if k in kept}))
    )
    for name, value in tables.items():
        if name not in kept:
            object.__setattr__(broken, name, value)
    return broken


def own_schedules(plan):
    """The same plan with one column per client, so that one client can be changed alone."""
    s = plan.schedules
    wide = {
        name: s.wide(name)
        for name in ("noise_multiplier", "sampling_rate", "clip_norm", "epsilon", "order")
    }
    return tampered(plan, of_client=np.arange(len(plan.clients)), **wide)


def rescaled(plan, noise):
    """Another noise table with clip norms that fit it."""
    weights = plan.schedules.clients_of
    s_t = weights.sum() / (weights / noise).sum(axis=1)
    return tampered(plan, noise_multiplier=noise, clip_norm=plan.clip * s_t[:, None] / noise)


def failed_checks(result):
    return {check.name for check in result.checks if not check.passed}


def test_a_good_plan_passes(uniform, checked):
    assert checked.ok
    assert checked.failures == ()
    assert checked.by_pld.all()
    assert not checked.sampled
    assert checked.plan_hash == uniform.hash
    assert checked.epsilon.shape == (100,)
    np.testing.assert_allclose(checked.epsilon[[0, 40, 99]], [9.295, 18.699, 28.160], atol=0.011)
    assert checked.worst_margin == pytest.approx((1 - checked.epsilon / uniform.budget).min())
    reproduced = next(c for c in checked.checks if c.name == "claim reproduced")
    assert reproduced.worst < 1e-9
    assert json.loads(json.dumps(checked.to_dict(), allow_nan=False))["ok"] is True


@pytest.mark.full
def test_a_file_is_verified_like_the_plan(small, tmp_path):
    small.save(tmp_path / "plan.json")
    for path in (tmp_path / "plan.json", str(tmp_path / "plan.json")):
        result = verify(path)
        assert result.ok
        assert result.plan_hash == small.hash


def test_observers_of_the_uniform_plan(checked):
    found = {one.name: dict(one.by_budget) for one in checked.observers}
    assert found["plan"][10.0] == pytest.approx(10, rel=1e-6)
    np.testing.assert_allclose(
        list(found["participation revealed"].values()), [10.61, 21.09, 31.47], atol=0.01
    )
    np.testing.assert_allclose(
        list(found["picked every round"].values()), [11.14, 22.14, 33.02], atol=0.01
    )
    assert found["10 colluding clients"][10.0] == pytest.approx(10.67, abs=0.01)
    assert found["sees single updates"][10.0] == pytest.approx(298.5, abs=0.1)


def test_observers_of_the_saving_plan():
    """The numbers of the threat model: rates 0.5, 0.6, 0.7 before round 13."""
    rates = [0.5] * 34 + [0.6] * 43 + [0.7] * 23
    plan = plan_by_rdp(BUDGETS, delta=1e-5, rounds=25, rate=0.9, saving_rate=rates, transition=13)
    result = verify(plan, max_pld=0)
    found = {one.name: list(dict(one.by_budget).values()) for one in result.observers}
    assert result.ok
    assert result.sampled
    assert math.isnan(result.worst_margin)
    np.testing.assert_allclose(found["participation revealed"], [11.6, 22.6, 32.9], atol=0.05)
    np.testing.assert_allclose(found["picked every round"], [13.5, 25.6, 36.3], atol=0.05)
    assert found["10 colluding clients"][0] == pytest.approx(10.7, abs=0.05)


def test_single_updates_bound_is_above_the_exact_value(checked, uniform):
    """With participation revealed the truth is a binomial mixture of Gaussians: 288.5, of which the
    Rényi reading is a bound.
    """
    k, noise = np.arange(1, 26), uniform.noise_multiplier[0, 0] / 10
    mu = np.sqrt(k) / noise

    def excess(eps: float) -> float:
        second = np.exp(eps + stats.norm.logsf(eps / mu + mu / 2))
        return (
            float(stats.binom.pmf(k, 25, 0.9) @ (stats.norm.sf(eps / mu - mu / 2) - second)) - 1e-5
        )

    exact = brentq(excess, 100, 400)
    assert exact == pytest.approx(288.5, abs=0.1)
    read = {one.name: one for one in checked.observers}["sees single updates"].by_budget[0][1]
    assert exact < read < 1.05 * exact


@pytest.mark.full
def test_colluders_must_be_fewer_than_clients(small):
    assert any(one.name == "2 colluding clients" for one in verify(small).observers)
    assert any(one.name == "1 colluding clients" for one in verify(small, colluders=1).observers)
    with pytest.raises(InvalidInput, match="fewer than the 3 clients"):
        verify(small, colluders=3)


def test_noise_lowered_in_one_round_for_one_client(small):
    plan = own_schedules(small)
    noise = plan.schedules.noise_multiplier.copy()
    noise[2, 1] *= 0.95
    result = verify(tampered(plan, noise_multiplier=noise))
    assert {"claim reproduced", "clip norms match noise"} <= failed_checks(result)
    assert any("'bob'" in line and "claims epsilon" in line for line in result.failures)
    assert any("'bob'" in line and "round 3" in line for line in result.failures)


def test_noise_lowered_with_fitting_clips_is_still_caught(small):
    noise = small.schedules.noise_multiplier.copy()
    noise[0] *= 0.95
    assert failed_checks(verify(rescaled(small, noise))) == {"claim reproduced"}


def test_consistently_scaled_but_over_budget(small):
    """Noise far too low everywhere, clips that fit, and a claim that admits it or not."""
    noise = small.schedules.noise_multiplier * 0.7
    result = verify(rescaled(small, noise))
    assert failed_checks(result) == {"claim reproduced", "PLD within budget"}
    assert (result.epsilon > small.budget).all()
    assert result.worst_margin < 0
    admits = rescaled(small, noise)
    honest = [
        lowest_epsilon(renyi_divergence, _runs(admits, s), 1.0, np.array([a]), 1e-3)
        for s, a in enumerate(admits.schedules.order)
    ]
    result = verify(tampered(admits, epsilon=np.array(honest)))
    assert failed_checks(result) == {"claim within budget", "PLD within budget"}


def _runs(plan, s):
    return (
        plan.schedules.sampling_rate[:, s],
        plan.schedules.noise_multiplier[:, s],
        np.ones(plan.rounds),
    )


def test_clip_raised(small):
    clip = small.schedules.clip_norm.copy()
    clip[3, 1] *= 1 + 1e-6
    result = verify(tampered(small, clip_norm=clip))
    assert failed_checks(result) == {"clip norms match noise"}
    assert result.failure_count == 1
    assert "'cho', round 4" in result.failures[0]


def test_rate_raised(small):
    rate = small.schedules.sampling_rate.copy()
    rate[0, 0] = 0.6
    result = verify(tampered(small, sampling_rate=rate))
    assert "claim reproduced" in failed_checks(result)
    assert "and 1 with the same schedule" in result.failures[0]


@pytest.mark.parametrize("factor", [1 - 1e-5, 0.5, 0.0])
def test_claim_lowered(small, factor):
    assert failed_checks(verify(tampered(small, epsilon=small.schedules.epsilon * factor))) == {
        "claim reproduced"
    }


def test_claim_above_budget(small):
    result = verify(tampered(small, budget=small.budget * np.array([1, 0.999, 1])))
    assert failed_checks(result) == {"claim within budget"}
    assert "'bob'" in result.failures[0]


@pytest.mark.parametrize("order", [0.0, 1.0, 2.03, math.nan, math.inf])
def test_witness_order_outside_the_plans_orders(small, order):
    result = verify(tampered(small, order=np.array([order, small.schedules.order[1]])))
    assert "witness order published" in failed_checks(result)


@pytest.mark.parametrize(
    "name", ["noise_multiplier", "sampling_rate", "clip_norm", "epsilon", "order"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_nonsense_in_any_table_fails(small, name, value):
    table = getattr(small.schedules, name).copy()
    table[(..., 0)] = value
    result = verify(tampered(small, **{name: table}), max_pld=0)
    assert not result.ok
    assert result.failure_count > 0
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"clip": math.nan},
        {"clip": -1.0},
    ],
)
def test_nonsense_in_a_field_fails(small, change):
    assert not verify(tampered(small, **change), max_pld=0).ok


@pytest.mark.parametrize("value", [math.nan, 0.0, math.inf])
@pytest.mark.parametrize("client", [0, 1, 2])
def test_nonsense_budget_fails(small, value, client):
    budget = small.budget.copy()
    budget[client] = value
    assert not verify(tampered(small, budget=budget), max_pld=0).ok


def test_failures_are_capped_and_counted(uniform):
    result = verify(tampered(uniform, clip_norm=uniform.schedules.clip_norm * 1.01), max_pld=0)
    assert len(result.failures) == 20
    assert result.failure_count == 75


def test_many_schedules_are_sampled_and_the_sample_is_stated():
    plan = plan_by_rdp(np.linspace(2, 8, 30), delta=1e-3, rounds=2, rate=0.5, policy="uniform")
    seen = []
    result = verify(plan, max_pld=9, progress=lambda done, total: seen.append((done, total)))
    assert result.ok
    assert result.sampled
    assert (result.pld_schedules, result.schedules) == (9, 30)
    assert result.by_pld.sum() == 9
    assert result.by_pld[[0, 29]].all()
    assert seen == [(i, 9) for i in range(1, 10)]
    assert (result.epsilon <= plan.budget).all()
    assert result.observers[1].by_budget == ()
    assert result.observers[1].smallest <= result.observers[1].median <= result.observers[1].largest
    again, other = verify(plan, max_pld=9), verify(plan, max_pld=9, seed=1)
    assert (again.by_pld == result.by_pld).all()
    assert (other.by_pld != result.by_pld).any()


@pytest.mark.full(only=["9-24"])
@pytest.mark.parametrize(("rounds_read", "schedules_read"), [(2000, 28), (78, 26), (9, 24)])
def test_longer_schedules_are_sampled_more_thinly(monkeypatch, rounds_read, schedules_read):
    """Schedules of three distinct rounds: as many as `max_pld` says and the rounds allow, but at
    least 24, the extremes first.
    """
    monkeypatch.setattr("fedspend.verification.verify.SAMPLED_ROUNDS", rounds_read)
    monkeypatch.setattr(
        "fedspend.verification.verify.pld_epsilons",
        lambda schedules, *_, **__: [0.5] * len(schedules),
    )
    plan = plan_by_rdp(np.linspace(2, 8, 30), delta=1e-3, rounds=4, rate=0.5, saving_rate=0.25)
    assert {len(np.unique(noise)) for noise in plan.noise_multiplier.T} == {3}
    result = verify(plan, max_pld=28)
    assert result.ok
    assert (result.pld_schedules, result.schedules) == (schedules_read, 30)
    assert result.by_pld[[0, 29]].all()
    assert not verify(plan, max_pld=30).sampled


def test_a_lie_outside_the_sample_is_caught():
    plan = plan_by_rdp(np.linspace(2, 8, 30), delta=1e-3, rounds=2, rate=0.5, policy="uniform")
    kept = verify(plan, max_pld=8)
    liar = int(plan.schedules.of_client[np.flatnonzero(~kept.by_pld)[0]])
    noise = plan.schedules.noise_multiplier.copy()
    noise[:, liar] *= 0.99
    assert "claim reproduced" in failed_checks(verify(rescaled(plan, noise), max_pld=8))


@pytest.mark.full
def test_plan_by_pld():
    plan = fedspend.plan([2.0], delta=1e-4, rounds=3, rate=0.5, accountant="pld", clients=["ann"])
    result = verify(plan, max_pld=0)
    assert result.ok, result.failures
    assert result.by_pld.all()
    assert [c.accountant for c in result.checks if c.name == "claim reproduced"] == [
        "dp-accounting PLD",
        "own FFT accountant",
    ]
    lower = verify(tampered(plan, epsilon=plan.schedules.epsilon * 0.98))
    assert [c.passed for c in lower.checks if c.name == "claim reproduced"] == [False, False]
    noisy = rescaled(plan, plan.schedules.noise_multiplier * 0.98)
    assert {"claim reproduced", "PLD within budget"} <= failed_checks(verify(noisy))


@settings(max_examples=6, deadline=None)
@given(st.floats(0.5, 20), st.integers(1, 12), st.floats(0.05, 1.0))
def test_whatever_the_planner_makes_passes_and_less_noise_does_not(budget, rounds, rate):
    plan = plan_by_rdp([budget, 2 * budget], delta=1e-2, rounds=rounds, rate=rate, policy="uniform")
    assert verify(plan, max_pld=1).ok
    assert not verify(rescaled(plan, plan.schedules.noise_multiplier * 0.999), max_pld=0).ok


def test_observer_divergences_are_ordered():
    q, s, a = 0.5, 1.3, np.array([1.5, 3.0, 20.0])
    assert (renyi_divergence(q, s, a) < participation_revealed(q, s, a)).all()
    assert (participation_revealed(q, s, a) < no_amplification(q, s, a)).all()
    np.testing.assert_allclose(participation_revealed(1.0, s, a), no_amplification(1.0, s, a))


@pytest.mark.parametrize("steps", ["many", 3, 0, math.nan])
def test_noise_on_steps_that_are_none_counts_for_nothing(steps):
    assert accounted_part(steps) == 0.0
    assert accounted_part(None) == 1.0
    assert 0.99 < accounted_part(100) < 1.0


def test_a_plan_that_cannot_be_read_passes_nothing(small):
    verdict = unreadable(small, ValueError("why"))
    assert not verdict.ok
    assert failed_checks(verdict) == {"readable"}


def test_how_far_a_claim_is_off_is_relative_to_it():
    assert _largest_relative(np.array([0.1, 0.2]), np.array([0.5, 4.0])) == pytest.approx(0.2)
