"""Our own privacy loss accountant: never too low, close to the truth, and as its docs say."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedspend.accounting import pld
from fedspend.accounting.losses import Losses, _normal_mass, loss_at, round_losses
from fedspend.accounting.pld import (
    Composition,
    Rounds,
    cumulative_epsilon,
    privacy_profile,
    schedule_epsilon,
)
from fedspend.verification.second_accountant import fft_epsilon, pld_epsilon


def of_gaussian(noise: np.ndarray, delta: float) -> float:
    """Epsilon of unsampled Gaussians, in closed form (Balle, Wang 2018)."""
    mu = math.sqrt((noise**-2.0).sum())

    def excess(epsilon):
        gone = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        return ndtr(mu / 2 - epsilon / mu) - gone - delta

    return brentq(excess, 0.0, 3 * mu * mu + 100, xtol=1e-13)


def random_schedules(count: int, seed: int):
    """Rates, noises and deltas of all kinds; `benchmarks/accounting/pld.py` has a thousand."""
    for one in range(count):
        rng = np.random.default_rng([seed, one])
        kinds = int(rng.integers(1, 4))
        times = rng.integers(1, 40, kinds)
        noise = np.exp(rng.uniform(np.log(0.5), np.log(6), kinds))
        rate = np.where(rng.random(kinds) < 0.2, 1.0, rng.uniform(0.1, 1, kinds))
        delta = 10 ** rng.uniform(-8, -2)
        yield np.repeat(noise, times), np.repeat(rate, times), float(delta)


def by_dp_accounting(noise, rate, delta, interval):
    rounds = Rounds.of(noise, rate)
    return pld_epsilon(
        rounds.rate.tolist(),
        rounds.noise.tolist(),
        rounds.count.tolist(),
        delta,
        interval=interval,
        most_distinct=1 << 30,
    )


@pytest.mark.parametrize(("noise", "rounds"), [(0.1, 1), (0.8, 3), (2.4, 25), (60.0, 400)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-6, 9e-7, 1e-9, 1e-12])
def test_plain_gaussians_are_read_as_their_closed_form_says(noise, rounds, delta):
    every = np.full(rounds, noise)
    exact = of_gaussian(every, delta)
    # the bound on rounding in the transforms is felt above 1e-6, below which losses are tilted
    assert exact <= schedule_epsilon(every, np.ones(rounds), delta) <= exact * (1 + 1e-3)


def test_rare_large_losses_under_a_tilt_do_not_wrap_around_to_where_they_count():
    """Rényi curves read 8.69 here; the whole tilt of the best Chernoff bound read 9.59."""
    noise, rate = np.full(30, 0.782518), np.full(30, 0.055427)
    found = schedule_epsilon(noise, rate, 1e-9)
    assert found == pytest.approx(by_dp_accounting(noise, rate, 1e-9, 1e-3), rel=1e-5)


@pytest.mark.parametrize("delta", [9e-7, 1e-9, 1e-11])
@pytest.mark.parametrize("q", [1.0, 0.4, 0.02])
def test_tilted_losses_give_what_the_others_give(delta, q, monkeypatch):
    """Two rounds, so that the bound on rounding leaves something of each delta without a tilt."""
    noise, rate = np.array([1.1, 1.7]), np.full(2, q)
    tilted = schedule_epsilon(noise, rate, delta)
    below = by_dp_accounting(noise, rate, delta, Rounds.of(noise, rate).interval())
    monkeypatch.setattr(pld, "_TILTED_BELOW", 0.0)
    assert below * (1 - 1e-5) <= tilted <= schedule_epsilon(noise, rate, delta) * (1 + 1e-7)


def test_epsilon_by_round_of_tilted_losses_ends_with_that_of_the_schedule():
    noise, rate = np.linspace(1.5, 0.9, 12)[:, None], np.full((12, 1), 0.3)
    by_round = cumulative_epsilon(noise, rate, 1e-9)[:, 0]
    assert np.all(np.diff(by_round) > 0)
    assert by_round[-1] == pytest.approx(schedule_epsilon(noise[:, 0], rate[:, 0], 1e-9), rel=1e-6)


def test_different_gaussians_add_up_like_one():
    noise = np.geomspace(0.7, 30.0, 40)
    exact = of_gaussian(noise, 1e-6)
    assert exact <= schedule_epsilon(noise, np.ones(40), 1e-6) <= exact * (1 + 1e-4)


@pytest.mark.full
def test_random_schedules_are_never_below_dp_accounting_and_at_most_a_hair_above():
    for number, (noise, rate, delta) in enumerate(random_schedules(20, seed=1)):
        interval = Rounds.of(noise, rate).interval()
        found = schedule_epsilon(noise, rate, delta)
        same = by_dp_accounting(noise, rate, delta, interval)
        assert same * (1 - 1e-9) <= found <= same * (1 + 1e-4) + 1e-9
        if number % 5 == 0:  # on a finer grid it reads lower
            finer = by_dp_accounting(noise, rate, delta, pld.READ_AT)
            assert finer * (1 - 1e-9) <= found <= finer * (1 + 1e-3)


def test_random_schedules_are_not_below_an_accountant_of_another_make():
    for noise, rate, delta in random_schedules(5, seed=2):
        rounds = Rounds.of(noise, rate)
        bracket = fft_epsilon(
            rounds.rate.tolist(), rounds.noise.tolist(), rounds.count.tolist(), delta
        )
        assert schedule_epsilon(noise, rate, delta) >= bracket.lower


def test_a_finer_grid_reads_lower_and_never_higher():
    noise, rate = np.repeat([3.0, 1.5], 10), np.repeat([0.5, 0.1], 10)
    found = [schedule_epsilon(noise, rate, 1e-5, 1e-3 * 2**k) for k in range(8)]
    assert np.all(np.diff(found) > 0)
    assert found[-1] < found[0] * 1.1


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 0.5), (0.9, 2.4), (0.01, 0.7), (1e-4, 30.0)])
def test_losses_on_the_grid_keep_both_masses(rate, noise):
    """Each cell keeps its mass of P and of Q, so all together keep E[1] and E[exp(-loss)]."""
    interval = 1e-3 if noise < 10 else 1e-5
    both = round_losses(rate, noise, interval, 9.0)
    for one in (both.remove, both.add):
        loss = (one.first + np.arange(one.size)) * interval
        assert one.mass.sum() + one.beyond == pytest.approx(1.0, abs=1e-12)
        # rounding is on the side of larger losses, so a little may be missing
        assert float(one.mass @ np.exp(-loss)) == pytest.approx(1.0, abs=1e-8)
        assert float(one.mass @ np.exp(-loss)) <= 1 + 1e-12


@pytest.mark.parametrize(("rate", "noise"), [(0.9, 1.3), (0.05, 0.6)])
def test_losses_on_the_grid_dominate_those_of_a_round(rate, noise):
    """Delta at any epsilon is at least the integral of `(1 - exp(epsilon - loss))_+`."""
    both = round_losses(rate, noise, 4e-3, 9.0)
    x = np.linspace(-9 * noise, 1 + 9 * noise, 400_001)
    step = x[1] - x[0]
    absent = np.exp(-(x**2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    other = np.exp(-((x - 1) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    mixed = (1 - rate) * absent + rate * other
    for one, upper, lower in ((both.remove, mixed, absent), (both.add, absent, mixed)):
        loss = (one.first + np.arange(one.size)) * 4e-3
        for epsilon in (0.0, 0.0123, 0.3, 1.7):
            true = float(np.maximum(upper - np.exp(epsilon) * lower, 0.0).sum() * step)
            ours = float(np.maximum(-np.expm1(epsilon - loss), 0.0) @ one.mass) + one.beyond
            assert true - 1e-9 <= ours <= true + 1e-4


def test_masses_of_narrow_and_wide_cells_keep_their_digits():
    mp = pytest.importorskip("mpmath")
    mp.mp.dps = 40
    rng = np.random.default_rng(3)
    left = rng.uniform(-12, 12, 300)
    right = left + 10 ** rng.uniform(-5, 0, 300)
    found = _normal_mass(left, right)
    for a, b, mass in zip(left, right, found, strict=True):
        a, b = (-b, -a) if a + b > 0 else (a, b)
        exact = (mp.erfc(-mp.mpf(b) / mp.sqrt(2)) - mp.erfc(-mp.mpf(a) / mp.sqrt(2))) / 2
        assert abs(mp.mpf(mass) / exact - 1) < pld.MASS_ERROR


def test_the_bounded_error_of_the_transforms_holds_beside_plain_sums():
    noise, rate = np.repeat([1.0, 0.6], [3, 2]), np.repeat([0.7, 0.2], [3, 2])
    interval, delta = 2e-2, 1e-6
    rounds = Rounds.of(noise, rate)
    composed = Composition.of(rounds, delta, interval)
    kinds = pld._losses_of(rounds.rate, rounds.noise, interval, delta, rounds.total)
    for part, losses in zip(composed.parts, pld._by_direction(kinds), strict=True):
        mass, first = np.ones(1), 0
        for one, times in zip(losses, rounds.count.tolist(), strict=True):
            for _ in range(times):
                mass, first = np.convolve(mass, one.mass), first + one.first
        loss = (first + np.arange(mass.size)) * interval
        for epsilon in (0.0, 1.0, 4.0, 9.0):
            plain = float(np.maximum(-np.expm1(epsilon - loss), 0.0) @ mass)
            assert plain <= part.delta(epsilon) <= plain * (1 + 1e-10) + 2 * part.lost


def test_what_lies_outside_the_grid_is_counted():
    """A round whose losses are cut off early reads more, not less."""
    whole = round_losses(0.9, 1.0, 1e-2, 8.0).remove
    short = round_losses(0.9, 1.0, 1e-2, 3.0).remove
    assert short.beyond > 1e-3 > whole.beyond
    assert short.mass.sum() + short.beyond == pytest.approx(1.0, abs=1e-12)


def test_what_lies_outside_the_grid_of_a_round_counts_as_often_as_the_round():
    one = Losses(0, np.array([0.5, 0.4]), beyond=0.1)
    total = pld._Sum((0, 8))
    total.add(one, 3)
    assert total.read(1e-5, 1e-2).delta(50.0) >= 0.3


def test_losses_that_are_all_large_are_read():
    """A grid that begins far above 0."""
    sure = pld._Direction(first=50, mass=np.full(4, 0.25), interval=1.0, lost=0.0, grown=1.0)
    epsilon = sure.epsilon(0.1)
    assert sure.delta(epsilon) == pytest.approx(0.1)
    assert 50 < epsilon < 53


def test_early_rounds_are_read_on_a_grid_that_holds_them():
    """Also where the losses of all rounds together are far from theirs."""
    noise = np.full((16, 1), 0.1)
    found = cumulative_epsilon(noise, np.ones((16, 1)), 1e-5)[:, 0]
    for rounds in (1, 2, 16):
        exact = of_gaussian(noise[:rounds, 0], 1e-5)
        assert exact <= found[rounds - 1] <= exact * 1.01


def test_a_delta_below_double_precision_is_read_too_high_or_not_at_all(monkeypatch):
    noise = np.full(25, 2.4)
    exact = of_gaussian(noise, 1e-14)
    assert exact <= schedule_epsilon(noise, np.ones(25), 1e-14) <= exact * (1 + 1e-3)
    monkeypatch.setattr(pld, "_TILTED_BELOW", 0.0)
    assert schedule_epsilon(noise, np.ones(25), 1e-14) == math.inf


def test_epsilon_and_delta_agree():
    noise, rate = np.full(30, 2.0), np.full(30, 0.4)
    epsilon = schedule_epsilon(noise, rate, 1e-5, 1e-3)
    found = privacy_profile(noise, rate, np.array([0.0, epsilon, 5 * epsilon]), 1e-3, 1e-5)
    assert found[1] == pytest.approx(1e-5, rel=1e-6)
    assert found[0] > found[1] > found[2] >= 0


def test_epsilon_after_each_round_grows_to_that_of_the_schedule():
    noise = np.stack([np.geomspace(4.0, 2.0, 9), np.full(9, 3.0)], axis=1)
    rate = np.full((9, 2), 0.6)
    rate[3, 1] = 0.0  # such a round does not count
    found = cumulative_epsilon(noise, rate, 1e-5)
    assert np.all(np.diff(found[:, 0]) > 0)
    assert found[3, 1] == found[2, 1]
    for k in range(2):
        last = schedule_epsilon(noise[:, k], rate[:, k], 1e-5)
        assert found[-1, k] == pytest.approx(last, rel=1e-6)
        early = schedule_epsilon(noise[:4, k], rate[:4, k], 1e-5)
        assert found[3, k] == pytest.approx(early, rel=1e-3)


def test_no_rounds_cost_nothing():
    assert schedule_epsilon(np.ones(0), np.ones(0), 1e-5) == 0.0
    assert schedule_epsilon(np.ones(3), np.zeros(3), 1e-5) == 0.0


def test_the_order_of_rounds_does_not_matter():
    noise, rate = np.geomspace(1.0, 5.0, 12), np.linspace(0.1, 1.0, 12)
    shuffled = np.random.default_rng(0).permutation(12)
    assert schedule_epsilon(noise, rate, 1e-5) == schedule_epsilon(
        noise[shuffled], rate[shuffled], 1e-5
    )


def test_grids_are_multiples_of_the_one_that_the_verifier_reads_on():
    for noise, rate, _ in random_schedules(40, seed=4):
        interval = Rounds.of(noise, rate).interval()
        unit = pld.READ_AT if interval >= pld.READ_AT else pld.READ_AT_SMALL
        assert math.log2(interval / unit) == pytest.approx(round(math.log2(interval / unit)))


def test_the_loss_of_an_outcome_is_found_again():
    for rate in (1e-6, 0.3, 0.999, 1.0):
        z = np.linspace(-6.0, 6.0, 25)
        loss = np.array([loss_at(float(one), rate, 1.3) for one in z])
        from fedspend.accounting.losses import _outcomes

        again = _outcomes(loss, rate, 1.3)
        back = np.array([loss_at(float(one), rate, 1.3) for one in again])
        np.testing.assert_allclose(back, loss, rtol=0, atol=1e-14)


def test_variance_of_losses_is_counted_in_steps():
    assert Losses(5, np.array([0.5, 0.0, 0.5]), 0.0).variance == pytest.approx(1.0)
