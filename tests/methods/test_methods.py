"""Methods: the terms on which rounds run."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedspend
from fedspend import records
from fedspend.errors import InvalidInput, Refused
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted
from fedspend.server.methods.adaptive_clip import AdaptiveClip
from fedspend.server.methods.base import Release
from fedspend.server.methods.fedavg import FedAvg
from fedspend.server.methods.guarded import check_record_terms
from fedspend.server.methods.planned import Planned
from fedspend.server.methods.record_level import RecordLevel
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

NOTHING = np.zeros(3, dtype=np.float32)


@pytest.fixture(scope="module")
def plan():
    return fedspend.plan(
        [10.0] * 4 + [30.0] * 3,
        delta=1e-5,
        rounds=8,
        rate=0.8,
        saving_rate=0.4,
        transition=4,
        accountant="rdp",
        clip=0.7,
    )


def test_planned_terms_are_the_plan(plan):
    for t in (0, 3, 7):
        terms = Planned(plan, "time-adaptive").terms(t, {})
        np.testing.assert_array_equal(terms.sampling_rate, plan.sampling_rate[t])
        np.testing.assert_array_equal(terms.clip_norm, plan.clip_norm[t])
        np.testing.assert_allclose(
            terms.deviation / terms.clip_norm, plan.noise_multiplier[t], rtol=1e-12
        )
        assert terms.denominator == pytest.approx(plan.sampling_rate[t].sum())
        assert terms.bit_deviation is None


def test_fedavg_clips_nothing_and_adds_nothing():
    terms = FedAvg(5, 0.5).terms(0, {})
    assert terms.deviation == 0
    assert np.isinf(terms.clip_norm).all()
    assert terms.denominator == 2.5


@pytest.mark.parametrize("clip", [0.01, 1.0, 50.0])
def test_adaptive_clip_spends_exactly_what_the_plan_accounts(plan, clip):
    """The update at multiplier sigma_n and the bit at 2 sigma_b are one Gaussian release of
    multiplier sbar_n, for every client.
    """
    method = AdaptiveClip(plan, bit_noise=4.0)
    spent = np.zeros(7)
    order = 3.0
    for t in range(plan.rounds):
        terms = method.terms(t, {"clip": clip})
        of_update = terms.deviation / terms.clip_norm
        of_bit = terms.bit_deviation / 0.5
        together = (of_update**-2 + of_bit**-2) ** -0.5
        np.testing.assert_allclose(together, plan.noise_multiplier[t], rtol=1e-12)
        assert terms.clip_norm.mean() == pytest.approx(clip)
        spent += renyi_divergence(terms.sampling_rate, together, order)
    planned = renyi_divergence(plan.sampling_rate, plan.noise_multiplier, order).sum(axis=0)
    np.testing.assert_allclose(spent, planned, rtol=1e-9)


def test_keeping_the_plans_clip_ratios_would_overspend(plan):
    """The mistake that `AdaptiveClip` avoids: same noise, but the plan's clips. The strictest
    client would be over its budget.
    """
    method = AdaptiveClip(plan, bit_noise=1.6)
    total = np.zeros(len(plan.orders))
    for t in range(plan.rounds):
        terms = method.terms(t, {"clip": plan.clip})
        wrong_multiplier = terms.deviation / plan.clip_norm[t, 0]
        together = (wrong_multiplier**-2 + (2 * 1.6) ** -2.0) ** -0.5
        total += [
            float(renyi_divergence(plan.sampling_rate[t, 0], together, a)) for a in plan.orders
        ]
    assert (
        min(float(epsilon_at(r, a, 1e-5)) for r, a in zip(total, plan.orders, strict=True))
        > 10 * 1.005
    )


def test_an_unshifted_bit_would_cost_more(plan):
    method = AdaptiveClip(plan, bit_noise=4.0)
    terms = method.terms(0, {"clip": 1.0})
    unshifted = ((terms.deviation / terms.clip_norm) ** -2 + terms.bit_deviation**-2) ** -0.5
    assert (unshifted < plan.noise_multiplier[0] * 0.995).all()


def test_the_clip_follows_the_share_in_the_right_direction(plan):
    method = AdaptiveClip(plan, bit_noise=4.0, target_quantile=0.5, clip_lr=0.2)
    assert method.learn({"clip": 1.0}, Release(NOTHING, 0.9))["clip"] == pytest.approx(
        math.exp(-0.2 * 0.4)
    )
    assert method.learn({"clip": 1.0}, Release(NOTHING, 0.1))["clip"] > 1, (
        "most updates are clipped: the clip must grow"
    )
    assert method.learn({"clip": 1.0}, Release(NOTHING, 5.0))["clip"] == pytest.approx(
        math.exp(-0.1)
    ), "a noisy share is a share"


def test_noise_and_clip_of_a_round_use_the_same_clip(plan):
    """Noise from the updated clip over updates clipped to the old one would be wrong by their
    ratio.
    """
    method = AdaptiveClip(plan, bit_noise=4.0)
    first, later = method.terms(2, {"clip": 1.0}), method.terms(2, {"clip": 0.2})
    np.testing.assert_allclose(later.clip_norm / first.clip_norm, 0.2)
    assert later.deviation / first.deviation == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"bit_noise": 0.6}, "bit_noise 0.6 is too small"),
        ({"bit_noise": math.nan}, "bit_noise"),
        ({"bit_noise": 4.0, "target_quantile": 1.0}, "target_quantile"),
        ({"bit_noise": 4.0, "target_quantile": math.nan}, "target_quantile"),
        ({"bit_noise": 4.0, "clip_lr": 0.0}, "clip_lr"),
    ],
)
def test_bad_input_is_named(plan, options, names):
    with pytest.raises(InvalidInput, match=names):
        AdaptiveClip(plan, **options)


def test_records_terms_are_held_to_their_plan():
    """A method of records cannot hand out more than was planned: rates, steps, noise or norms."""
    budgets, owner = np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1])
    terms = records.Terms(
        rounds=2, local_steps=3, client_rate=1.0, noise_multiplier=4.0, delta=1e-3
    )
    plan = plan_records(
        budgets,
        owner,
        terms,
        clients=("a", "b"),
        wanted=Wanted(method="filter", common_rate=1.0, charge="norm"),
    )
    good = RecordLevel(plan, "filter")
    own = good.terms(0, {}).records(0)
    check_record_terms("here", plan, 0, 0, own)
    for change in (
        {"rate": own.rate * 1.01},
        {"rate": own.rate * np.nan},
        {"steps": own.steps + 1},
        {"noise_multiplier": own.noise_multiplier * 0.99},
        {"clip": own.clip * 2},
        {"norm_budget": own.norm_budget * 1.01},
        {"norm_budget": None},
        {"by_norm": False},
    ):
        with pytest.raises(Refused, match="not the planned ones"):
            check_record_terms("here", plan, 0, 0, replace(own, **change))
