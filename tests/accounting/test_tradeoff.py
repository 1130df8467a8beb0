"""Trade-off curves: never below the truth where the truth is known, never above what epsilon and
delta say, and near the truth.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedspend.accounting.conversion import epsilon
from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS, rdp
from fedspend.accounting.tradeoff import (
    MOST_DISTINCT,
    _merged,
    from_claim,
    from_renyi,
    gaussian,
    known_participation,
    sampled_gaussians,
    tightest,
)

FPR = np.array([1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 0.9])


def one_sampled_round(rate: float, noise: float, fpr: float) -> float:
    """The truth for one round, by integration: the best test says yes above a threshold, since the
    likelihood ratio grows with the outcome.
    """
    cut = noise * norm.isf(fpr)

    def density(x: float) -> float:
        return (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)

    return quad(density, cut, cut + 60 * noise + 1, epsabs=1e-13, limit=500)[0]


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rounds", [1, 7])
def test_a_plain_gaussian_by_every_way(noise, rounds):
    truth = norm.cdf(norm.ppf(FPR) + np.sqrt(rounds) / noise)
    exact = gaussian(np.sqrt(rounds) / noise)
    np.testing.assert_allclose(exact.tpr(FPR), truth, rtol=1e-12)
    by_loss = sampled_gaussians([1.0], [noise], [rounds])
    by_renyi = from_renyi(rounds * rdp(1.0, noise, ORDERS), ORDERS)
    seen = known_participation([1.0], [noise], [rounds])
    for curve in (by_loss, by_renyi, seen):
        assert np.all(curve.tpr(FPR) >= truth * (1 - 1e-12))
        assert curve.advantage >= exact.advantage * (1 - 1e-12)
    np.testing.assert_allclose(by_loss.tpr(FPR), truth, rtol=0.01)
    np.testing.assert_allclose(seen.tpr(FPR), truth, rtol=1e-6)
    assert by_loss.advantage == pytest.approx(exact.advantage, rel=0.01)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(("rate", "noise"), [(0.9, 2.4), (0.3, 1.0), (0.05, 0.7), (0.01, 0.5)])
def test_one_sampled_round_against_integration(rate, noise):
    truth = np.array([one_sampled_round(rate, noise, f) for f in FPR])
    by_loss = sampled_gaussians([rate], [noise], [1])
    by_renyi = from_renyi(rdp(rate, noise, ORDERS), ORDERS)
    for curve in (by_loss, by_renyi):
        assert np.all(curve.tpr(FPR) >= truth - 1e-12)
    small = FPR <= 0.1  # beyond, both directions are bounded by the larger one
    np.testing.assert_allclose(by_loss.tpr(FPR[small]), truth[small], rtol=0.01)


@pytest.mark.full
@given(
    rate=st.floats(0.01, 1.0),
    noise=st.floats(0.4, 8.0),
    rounds=st.integers(1, 200),
    delta=st.sampled_from([1e-6, 1e-3]),
)
@settings(max_examples=15, deadline=None)
def test_never_above_what_epsilon_and_delta_allow(rate, noise, rounds, delta):
    for orders in (ORDERS, WHOLE_ORDERS):
        divergence = rounds * rdp(rate, noise, orders)
        claim = from_claim(epsilon(divergence, orders, delta), delta)
        curve = from_renyi(divergence, orders)
        assert np.all(curve.tpr(FPR) <= claim.tpr(FPR) * (1 + 1e-6))
        both = tightest(curve, claim)
        assert np.all(both.tpr(FPR) <= claim.tpr(FPR))
        assert np.all(both.tpr(FPR) >= FPR)
        assert both.advantage <= claim.advantage


def test_the_loss_distribution_is_nearer_than_the_renyi_curve():
    by_loss = sampled_gaussians([0.9], [2.424], [25])
    by_renyi = from_renyi(25 * rdp(0.9, 2.424, ORDERS), ORDERS)
    assert np.all(by_loss.tpr(FPR) <= by_renyi.tpr(FPR))
    assert by_loss.tpr(0.01) == pytest.approx(0.3208, abs=2e-3)


@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.5, 1.0, 1), (0.3, 2.0, 6), (1.0, 1.0, 3)])
def test_known_participation_against_the_draws_themselves(rate, noise, rounds):
    """Simulated with the best test: yes from a likelihood ratio on."""
    curve = known_participation([rate], [noise], [rounds])
    draws = 400_000
    random = np.random.default_rng(1)
    mu = np.sqrt(random.binomial(rounds, rate, draws)) / noise
    z = random.standard_normal(draws)
    without, within = mu * z - mu**2 / 2, mu * (z + mu) - mu**2 / 2
    for threshold in (0.2, 0.7, 1.5):
        false, true = np.mean(without > threshold), np.mean(within > threshold)
        assert curve.tpr(false) == pytest.approx(true, abs=4e-3)
    assert curve.advantage == pytest.approx(np.mean(within > 0) - np.mean(without > 0), abs=4e-3)


def test_who_sees_participation_learns_more_and_who_is_always_in_reveals_most():
    schedule = ([0.5, 0.9], [2.4, 2.0], [12, 13])
    hidden, seen = sampled_gaussians(*schedule), known_participation(*schedule)
    always = gaussian(np.sqrt(12 / 2.4**2 + 13 / 2.0**2))
    small = FPR <= 0.1
    assert np.all(hidden.tpr(FPR[small]) <= seen.tpr(FPR[small]) + 1e-3)
    assert np.all(seen.tpr(FPR) <= always.tpr(FPR) + 1e-3)
    assert hidden.advantage <= seen.advantage <= always.advantage


def test_merging_rounds_only_reveals_more():
    rate, noise = np.linspace(0.3, 0.6, 200), np.linspace(2.0, 3.0, 200)
    q, s, count = _merged(rate, noise, np.ones(200))
    assert (s.min(), q.max()) == (noise.min(), rate.max())
    assert q.size <= MOST_DISTINCT
    assert count.sum() == 200
    curve = sampled_gaussians(rate, noise, np.ones(200))
    by_renyi = from_renyi(rdp(rate, noise, ORDERS).sum(axis=0), ORDERS)
    loosest = sampled_gaussians([0.6], [2.0], [200])
    tightest_possible = sampled_gaussians([0.3], [3.0], [200])
    assert tightest_possible.advantage < curve.advantage < loosest.advantage
    assert curve.advantage < by_renyi.advantage * 1.1


def test_limits():
    nothing, everything = from_claim(0.0, 0.0), from_claim(800.0, 1e-5)
    np.testing.assert_allclose(nothing.tpr(FPR), FPR)
    assert nothing.advantage == 0
    np.testing.assert_allclose(everything.tpr(FPR), 1.0)
    assert from_claim(1.0, 1e-3).tpr(0.0) == pytest.approx(1e-3)
    np.testing.assert_allclose(from_renyi(np.zeros(len(ORDERS)), ORDERS).tpr(FPR), FPR, rtol=1e-6)
    np.testing.assert_allclose(gaussian(0.0).tpr(FPR), FPR)
    assert gaussian(50.0).accuracy == pytest.approx(1.0)
    strong = known_participation([0.5], [0.01], [4])
    # never sampled in one draw of 16: there, and only there, the test must guess
    assert strong.tpr(0.01) == pytest.approx(15 / 16 + 0.01, abs=1e-9)


@pytest.mark.full
def test_every_curve_grows_and_is_concave():
    fpr = np.linspace(0.001, 0.999, 200)
    for curve in (
        from_claim(1.0, 1e-3),
        gaussian(1.5),
        sampled_gaussians([0.4], [1.2], [10]),
        known_participation([0.4], [1.2], [10]),
        from_renyi(10 * rdp(0.4, 1.2, ORDERS), ORDERS),
    ):
        found = curve.tpr(fpr)
        assert np.all(np.diff(found) >= -1e-12)
        assert np.all(np.diff(found, 2) <= 1e-6)
        assert curve.advantage >= (found - fpr).max() - 1e-9


def test_every_order_counts():
    """The lowest of the bounds that single orders give."""
    divergence, order, fpr = np.array([0.05, 1.2]), np.array([1.5, 40.0]), np.array([1e-6, 0.3])
    both = from_renyi(divergence, order).tpr(fpr)
    alone = [from_renyi(divergence[[n]], order[[n]]).tpr(fpr) for n in range(2)]
    assert both.tolist() == np.minimum(*alone).tolist()
    assert (alone[0] < alone[1]).tolist() in ([True, False], [False, True])
