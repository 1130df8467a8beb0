"""The second accountant against closed forms, mpmath, dp-accounting, and itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.errors import InvalidInput
from fedspend.verification.second_accountant import (
    _merged,
    divergence_of_schedule,
    epsilon_at,
    fft,
    fft_epsilon,
    pld_epsilon,
    pld_epsilons,
    renyi_divergence,
)

rates = st.floats(-9.0, 0.0).map(lambda x: min(1.0, 10.0**x))
noises = st.floats(math.log10(0.05), 6.0).map(lambda x: 10.0**x)
orders = st.floats(math.log10(0.05), math.log10(1024)).map(lambda x: 1 + 10.0**x)


def exact_integer(rate: float, noise: float, order: int) -> float:
    """The binomial sum, in 60 digits."""
    with mpmath.workdps(60):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        terms = (
            mpmath.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mpmath.expm1((k * k - k) / (2 * s * s))
            for k in range(2, order + 1)
        )
        return float(mpmath.log1p(mpmath.fsum(terms)) / (order - 1))


def exact_fraction(rate: float, noise: float, order: float) -> float:
    """mpmath's quadrature of the density-ratio moment,
    cut at the places where something happens.
    """
    with mpmath.workdps(25):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            u = q * mpmath.expm1(x / s - 1 / (2 * s * s))
            tiny = abs(a * u) < mpmath.mpf(10) ** -7
            excess = (
                a * (a - 1) / 2 * u**2 * (1 + (a - 2) / 3 * u * (1 + (a - 3) / 4 * u))
                if tiny
                else (1 + u) ** a - 1 - a * u
            )
            return excess * mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)

        bend = s * mpmath.log((1 - q) / q) + 1 / (2 * s)
        cuts = {p + 2 * d for p in (mpmath.mpf(0), 2 / s, a / s) for d in range(-6, 7)} | {
            bend + 2 * d * s for d in range(-4, 5)
        }
        inside = sorted(x for x in cuts if -12 <= x <= max(a, mpmath.mpf(2)) / s + 12)
        return float(mpmath.log1p(mpmath.quad(integrand, inside)) / (a - 1))


@pytest.mark.parametrize(
    ("rate", "noise", "order", "known"),
    [
        (0.9, 2.4, 2, 0.142861666907219),
        (0.9, 2.4, 1.5, 0.10636517953),
        (1e-8, 1, 2, 1.718281828e-16),
    ],
)
def test_known_divergences(rate, noise, order, known):
    assert float(renyi_divergence(rate, noise, order)) == pytest.approx(known, rel=5e-10)


@pytest.mark.full(
    only=[
        "1e-09-256",
        "1e-09-1025",
        "0.0001-256",
        "0.0001-1025",
        "0.3-256",
        "0.3-1025",
        "0.999999-256",
        "0.999999-1025",
    ]
)
@pytest.mark.parametrize("order", [2, 3, 17, 64, 256, 1025])
@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.3, 0.999999])
def test_integer_orders_match_the_binomial_sum(rate, order):
    noise = np.array([0.05, 0.31, 1.0, 7.0, 1e3, 1e6])
    exact = [exact_integer(rate, s, order) for s in noise]
    np.testing.assert_allclose(renyi_divergence(rate, noise, order), exact, rtol=1e-10)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [
        (0.9, 2.4, 1.05),
        (0.01, 0.6, 3.7),
        (1e-6, 0.3, 1.3),
        (0.5, 40.0, 31.5),
        (1e-9, 0.05, 1.05),
        (0.99, 0.3, 2.5),
        (0.2, 1e5, 900.5),
    ],
)
def test_fractional_orders_match_mpmath(rate, noise, order):
    assert float(renyi_divergence(rate, noise, order)) == pytest.approx(
        exact_fraction(rate, noise, order), rel=1e-10
    )


def test_integer_orders_match_dp_accounting():
    whole = [2, 5, 16, 40, 128]
    accountant = rdp_privacy_accountant.RdpAccountant(whole)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.3, dp_event.GaussianDpEvent(1.7)), 7)
    np.testing.assert_allclose(
        divergence_of_schedule([0.3], [1.7], [7], whole), accountant._rdp, rtol=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(rates, noises, orders)
def test_divergence_is_monotone_and_below_the_unsampled_gaussian(rate, noise, order):
    base, more_noise, more_order = renyi_divergence(
        rate, [noise, noise * 1.1, noise], [order, order, order * 1.1]
    )
    assert 0 < base <= order / (2 * noise**2) * (1 + 1e-12)
    assert more_noise < base
    assert more_order >= base * (1 - 1e-12)
    assert float(renyi_divergence(rate * 0.9, noise, order)) < base


@settings(max_examples=40, deadline=None)
@given(noises, orders)
def test_full_rate_is_the_gaussian(noise, order):
    assert float(renyi_divergence(1.0, noise, order)) == pytest.approx(
        order / (2 * noise**2), rel=1e-10
    )


def test_chunks_and_shapes_do_not_change_values():
    rng = np.random.default_rng(0)
    q, s = rng.uniform(0.01, 1, (40, 1)), rng.uniform(0.3, 5, (40, 1))
    a = np.array([1.1, 4.0, 700.0])
    table = renyi_divergence(q, s, a)
    assert table.shape == (40, 3)
    np.testing.assert_allclose(
        table[[0, 39], 2], [renyi_divergence(q[i, 0], s[i, 0], 700.0) for i in (0, 39)], rtol=1e-14
    )


@pytest.mark.parametrize(
    "cell",
    [
        (0.0, 1, 2),
        (1.1, 1, 2),
        (math.nan, 1, 2),
        (0.5, math.nan, 2),
        (0.5, -1, 2),
        (0.5, 1, 1),
        (0.5, 1, math.inf),
    ],
)
def test_nonsense_is_refused(cell):
    with pytest.raises(InvalidInput):
        renyi_divergence(*cell)


def test_conversion_is_the_formula_and_never_negative():
    assert float(epsilon_at(1.0, 8.0, 1e-5)) == pytest.approx(
        1 + math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7
    )
    assert float(epsilon_at(0.0, 3.0, 0.9)) == 0.0
    assert math.isnan(float(epsilon_at(math.nan, 3.0, 1e-5)))


def test_known_pld_epsilon():
    assert pld_epsilon([0.9], [2.424098], [25], 1e-5) == pytest.approx(9.295, abs=0.011)


def test_every_round_counts_as_often_as_it_is_played():
    """Without sampling, k rounds are one round at the noise divided by sqrt(k)."""
    for count in (2, 3):
        once = pld_epsilon([1.0], [4.0 / math.sqrt(count)], [1], 1e-5)
        assert pld_epsilon([1.0], [4.0], [count], 1e-5) == pytest.approx(once, rel=1e-3)


def test_rounds_that_give_nothing_away_cost_nothing():
    assert fft._epsilon_of_losses(np.array([-2.0, -1.0]), np.full(2, 0.5), 0.1) == 0.0


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_losses_on_a_coarse_grid_keep_their_mean(direction):
    """Rounding may not move the sum of the losses, however many rounds there are."""
    q, s, k = np.array([0.2]), np.array([1.0]), np.array([50])
    losses, mass = fft._composed_losses(direction, q, s, k, 0.7, 9.0, 1e-9)
    x = np.linspace(-9.0, 10.0, 200_001)
    ratio = np.log1p(q * np.expm1(x - 0.5))
    density = np.exp(-(x**2) / 2) * (np.exp(ratio) if direction == "remove" else 1)
    mean = float(density @ (ratio if direction == "remove" else -ratio) / density.sum())
    assert float(losses @ mass) == pytest.approx(50 * mean, rel=1e-6)


@pytest.mark.full(but=["q0-s0-k0-1e-05", "q3-s3-k3-1e-08", "q4-s4-k4-1e-06"])
@pytest.mark.parametrize(
    ("q", "s", "k", "delta"),
    [
        ([0.9], [2.424098], [25], 1e-5),
        ([0.9], [1.04], [25], 1e-6),
        ([0.5, 0.9], [2.0, 1.5], [12, 13], 1e-5),
        ([1.0], [50.0], [5], 1e-8),
        ([0.05], [1.5], [200], 1e-6),
        ([0.9], [0.3], [25], 1e-5),
        ([1.0], [0.01], [100], 1e-5),
    ],
)
def test_the_two_loss_accountants_agree(q, s, k, delta):
    pld, bracket = pld_epsilon(q, s, k, delta), fft_epsilon(q, s, k, delta)
    assert bracket.lower <= pld <= bracket.upper
    assert bracket.estimate == pytest.approx(pld, rel=2e-3)
    assert bracket.upper - bracket.lower <= 5e-3 * pld
    best = epsilon_at(
        divergence_of_schedule(q, s, k, 1 + np.geomspace(0.05, 500, 60)),
        1 + np.geomspace(0.05, 500, 60),
        delta,
    ).min()
    assert pld <= best * (1 + 1e-6)


def test_unsampled_gaussian_has_its_exact_epsilon():
    """Balle and Wang 2018: delta(eps) of a Gaussian with mu = sqrt(rounds)/noise in closed form."""
    mu, delta = math.sqrt(10) / 5, 1e-5
    bracket = fft_epsilon([1.0], [5.0], [10], delta)

    def gaussian_delta(eps: float) -> float:
        upper, lower = mpmath.ncdf(mu / 2 - eps / mu), mpmath.ncdf(-mu / 2 - eps / mu)
        return float(upper - mpmath.exp(eps) * lower)

    assert gaussian_delta(bracket.estimate) == pytest.approx(delta, rel=1e-4)
    assert gaussian_delta(bracket.lower) > delta > gaussian_delta(bracket.upper)


@pytest.mark.full(but=["1e-09-1.0"])
@pytest.mark.parametrize(("q", "s"), [(0.9, 1e6), (1e-9, 1.0), (1e-6, 0.7), (0.9, 0.02)])
def test_degenerate_rounds_neither_crash_nor_read_low(q, s):
    pld, bracket = pld_epsilon([q], [s], [25], 1e-5), fft_epsilon([q], [s], [25], 1e-5)
    assert bracket.lower <= pld < math.inf
    assert pld <= bracket.upper * 1.001 + 1e-3


@pytest.mark.full
def test_merging_rounds_errs_to_the_safe_side():
    s = np.linspace(2, 3, 40)
    whole, merged = (
        pld_epsilon([0.9] * 40, s, [1] * 40, 1e-5, most_distinct=most) for most in (40, 8)
    )
    assert whole < merged < 1.1 * whole
    q, lowest, count = _merged(np.full(40, 0.9), s, np.ones(40, np.int64), 8)
    assert q.size <= 8
    assert count.sum() == 40
    assert (np.repeat(np.sort(lowest), count[np.argsort(lowest)]) <= s).all()


@pytest.mark.full
def test_workers_give_the_same_answer(monkeypatch):
    runs = [([0.9], [20.0 + (i % 3)], [3]) for i in range(16)]
    seen = []
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delattr(
        "fedspend.verification.second_accountant.workers.pld_epsilon"
    )  # so that this process cannot step in for a dead worker
    found = pld_epsilons(runs, 1e-5, lambda done, total: seen.append((done, total)))
    assert found == [pld_epsilon(*one, 1e-5) for one in runs]
    assert seen[-1] == (16, 16)


def test_shares_nothing_with_the_planner():
    """Importing the second accountant must not pull in the first."""
    code = (
        "import json, sys, fedspend.verification.second_accountant; print(json.dumps([m for m in "
        "sys.modules if m.startswith('fedspend.')]))"
    )
    loaded = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )
    assert not [name for name in loaded if "accounting" in name or "planning" in name]
