"""What observers of a plan could tell: the plan's own curve, never above its epsilon, never below
the truth.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from before.since import as_it_was
from scipy.stats import norm

import fedspend
from fedspend.accounting.tradeoff import from_claim
from fedspend.errors import InvalidInput, Refused
from fedspend.explanation.meaning import FPRS
from fedspend.explanation.observed import sights
from fedspend.explanation.units import group, one_unit
from fedspend.planning.protocol import load_any_plan

PLANS = Path(__file__).parent.parent / "before" / "files" / "plans"
KINDS = "rdp pld discrete votes remaining"
RECORDS = "records-rpdp records-dropout records-filter-clip records-filter-norm"


def plan_of(**changes):
    terms = {"delta": 1e-5, "rounds": 12, "rate": 0.6, "accountant": "rdp"} | changes
    return fedspend.plan([2.0, 2.0, 6.0], **terms)


@pytest.mark.full(but=["records-rpdp", "records-dropout", "records-filter-norm"])
@pytest.mark.parametrize("name", [*KINDS.split(), *RECORDS.split()])
def test_the_observers_are_those_of_verification(name):
    plan = load_any_plan(PLANS / f"{name}.json")
    found = {
        k: sights(plan, k) for k in range(plan.schedules.count) if plan.schedules.epsilon[k] > 0
    }
    listed = plan.verify().observers
    for seen in found.values():
        assert [one.observer for one in seen] == [one.name for one in listed]
        assert [one.assumption for one in seen] == [one.assumption for one in listed]
        assert sum(one.promised for one in seen) == plan.promised_observers
    for n, one in enumerate(listed):
        epsilons = [seen[n].epsilon for seen in found.values()]
        assert max(epsilons) == pytest.approx(one.largest)


@pytest.mark.full(only=["discrete"])
@pytest.mark.parametrize("name", ["rdp", "discrete", "records-rpdp", "records-filter-norm"])
def test_never_above_epsilon_and_delta_and_often_far_below(name):
    plan = load_any_plan(PLANS / f"{name}.json")
    k = int(plan.schedules.epsilon.argmin())
    for one in sights(plan, k):
        allowed = from_claim(one.epsilon, plan.delta)
        assert np.all(one.curve.tpr(FPRS) <= allowed.tpr(FPRS))
        assert np.all(one.curve.tpr(FPRS) >= FPRS)
        assert one.curve.advantage <= allowed.advantage
    first = sights(plan, k)[0]
    assert first.curve.tpr(0.01) < 0.95 * from_claim(first.epsilon, plan.delta).tpr(0.01)


@pytest.mark.full
def test_without_sampling_the_truth_is_a_gaussian():
    plan = plan_of(rate=1.0)
    for k in range(plan.schedules.count):
        mu = np.sqrt(np.sum(plan.schedules.noise_multiplier[:, k] ** -2.0))
        truth = norm.cdf(norm.ppf(FPRS) + mu)
        for one in sights(plan, k)[:3]:
            assert np.all(one.curve.tpr(FPRS) >= truth * (1 - 1e-12))
            np.testing.assert_allclose(one.curve.tpr(FPRS), truth, rtol=1e-6)


def test_whoever_sees_more_can_tell_more():
    plan = plan_of()
    hidden, seen, always, colluders, single = sights(plan, 0)
    assert colluders.observer == "2 colluding clients"
    for less, more in ((hidden, seen), (seen, always), (hidden, colluders), (seen, single)):
        assert np.all(less.curve.tpr(FPRS) <= more.curve.tpr(FPRS) + 1e-12)
    assert hidden.curve.how == "a privacy loss distribution"
    assert always.curve.how == "a closed form"


def test_discrete_noise_is_read_as_the_continuous_noise_that_it_counts_for():
    discrete, continuous = (
        sights(plan_of(noise=kind), 0)[0] for kind in ("discrete", "continuous")
    )
    assert discrete.curve.how == continuous.curve.how
    assert discrete.curve.tpr(0.01) == pytest.approx(continuous.curve.tpr(0.01), rel=1e-4)


@pytest.mark.full
def test_discrete_noise_of_version_01_is_read_from_renyi_curves():
    with as_it_was(discrete=True):
        plan = plan_of(noise="discrete")
    for one in sights(plan, 0)[:3]:
        assert one.curve.how == "the Rényi curve"
    continuous = sights(plan_of(), 0)[0]
    assert sights(plan, 0)[0].curve.tpr(0.01) > continuous.curve.tpr(0.01)


def test_a_record_that_is_never_sampled_reveals_nothing():
    import dataclasses

    plan = load_any_plan(PLANS / "records-rpdp.json")
    table = plan.schedules
    rate, epsilon = table.sampling_rate.copy(), table.epsilon.copy()
    rate[:, 0], epsilon[0] = 0.0, 0.0
    idle = dataclasses.replace(
        plan, schedules=dataclasses.replace(table, sampling_rate=rate, epsilon=epsilon)
    )
    for one in sights(idle, 0):
        assert one.epsilon == 0
        np.testing.assert_allclose(one.curve.tpr(FPRS), FPRS)


def test_client_sampling_of_records_is_read_from_renyi_curves():
    from fedspend.records.planning import plan_records
    from fedspend.records.terms import Terms

    terms = Terms.checked(
        delta=1e-3, rounds=10, local_steps=3, client_rate=0.3, noise_multiplier=1.5
    )
    plan = plan_records([1.0, 2.0, 4.0, 4.0], [0, 0, 1, 1], terms, clients=("a", "b"))
    k = int(plan.schedules.epsilon.argmax())
    public, server, picks = sights(plan, k)
    assert public.curve.tpr(0.01) == server.curve.tpr(0.01) < picks.curve.tpr(0.01)
    assert (public.curve.how, picks.curve.how) == (
        "the Rényi curve",
        "a privacy loss distribution",
    )
    with pytest.raises(InvalidInput, match="colluders"):
        sights(plan, k, 3)


@pytest.mark.parametrize("name", ["rdp", "pld", "discrete", "records-rpdp"])
def test_a_claim_that_is_too_low_is_refused(name):
    import dataclasses

    plan = load_any_plan(PLANS / f"{name}.json")
    table = plan.schedules
    lower = dataclasses.replace(
        plan, schedules=dataclasses.replace(table, epsilon=0.5 * table.epsilon)
    )
    with pytest.raises(Refused, match=r"but its rounds cost .* fedspend verify"):
        sights(lower, 0)


def test_observers_of_distributed_noise_can_be_left_out():
    names = [one.observer for one in sights(plan_of(), 0, central=True)]
    assert names == ["plan", "participation revealed", "picked every round"]


def test_subjects():
    plan = plan_of()
    assert one_unit(plan, "client", "2").epsilon == pytest.approx(6, rel=1e-6)
    with pytest.raises(InvalidInput, match="this plan protects clients"):
        one_unit(plan, "record", "2")
    with pytest.raises(InvalidInput, match="unknown client '9'"):
        one_unit(plan, "client", "9")
    both = group(plan, "all", np.arange(3))
    assert (both.members, both.schedule) == (3, int(plan.schedules.of_client[2]))
    with pytest.raises(InvalidInput, match="fewer than the 3 clients"):
        sights(plan, 0, 3)


def test_the_curve_of_a_plan_by_pld_is_within_its_epsilon_and_delta():
    made = fedspend.plan([0.08], delta=2e-5, rounds=8, rate=0.546, policy="uniform")
    assert made.accountant == "pld"
    promised = sights(made, 0)[0].curve
    fpr = np.geomspace(1e-4, 0.5, 40)
    assert np.all(promised.tpr(fpr) <= from_claim(0.08, 2e-5).tpr(fpr))
