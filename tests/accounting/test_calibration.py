"""Calibrated noise: never low, right to 1e-6, for one budget or very many."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.accounting import ORDERS, epsilon, noise_multiplier, rdp
from fedspend.accounting.calibration import Runs, check_feasible
from fedspend.accounting.curves import Curve, curve
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.accounting.roots import safe_roots
from fedspend.errors import InvalidInput


def spent(noise, rate, rounds, delta, orders=ORDERS):
    return epsilon(rounds * rdp(rate, noise, orders), orders, delta)


def test_paper_setting():
    np.testing.assert_allclose(
        noise_multiplier([10, 20, 30], 1e-5, 0.9, 25), [2.424, 1.409, 1.045], atol=6e-4
    )


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(
    st.floats(math.log(0.05), math.log(60)).map(math.exp),
    st.floats(-4, 0).map(lambda x: 10.0**x),
    st.integers(1, 2000),
    st.floats(-9, -3).map(lambda x: 10.0**x),
)
def test_never_low_and_right_to_one_in_a_million(budget, rate, rounds, delta):
    noise = noise_multiplier(budget, delta, rate, rounds)
    assert spent(noise, rate, rounds, delta) <= budget
    if noise > 0.05:
        assert spent(max(0.05, noise * (1 - 1e-6)), rate, rounds, delta) > budget * (1 - 1e-7)


@pytest.mark.full(but=["0.9"])
@pytest.mark.parametrize("rate", [0.9, 0.01, 1e-4])
def test_many_at_once_equal_one_by_one(rate):
    budgets = np.exp(np.random.default_rng(3).uniform(np.log(0.2), np.log(40), 3000))
    together = noise_multiplier(budgets, 1e-6, rate, 100)
    some = [0, 17, 999, int(budgets.argmin()), int(budgets.argmax())]
    np.testing.assert_allclose(
        together[some], [noise_multiplier(budgets[i], 1e-6, rate, 100) for i in some], rtol=1e-6
    )
    order = np.argsort(budgets)
    assert (np.diff(together[order]) <= 0).all(), "a larger budget never needs more noise"


def test_array_shape_is_kept():
    assert noise_multiplier(np.full((2, 3), 4.0), 1e-5, 0.5, 10).shape == (2, 3)


def test_given_orders_are_used():
    orders = list(range(2, 65))
    noise = noise_multiplier(10.0, 1e-5, 0.9, 25, orders=orders)
    assert noise > noise_multiplier(10.0, 1e-5, 0.9, 25)
    assert spent(noise, 0.9, 25, 1e-5, orders) == pytest.approx(10, rel=1e-7)


def test_huge_budget_gets_the_smallest_noise_and_stays_within():
    noise = noise_multiplier(1e6, 1e-5, 1.0, 1)
    assert noise == pytest.approx(0.05, rel=1e-6)
    assert spent(noise, 1.0, 1, 1e-5) <= 1e6


def test_pld_needs_less_noise_and_stays_within():
    from fedspend.verification.second_accountant import pld_epsilon

    by_rdp, by_pld = (
        noise_multiplier(10.0, 1e-5, 0.9, 25, accountant=name) for name in ("rdp", "pld")
    )
    assert 0.93 < by_pld / by_rdp < 0.96
    assert pld_epsilon(np.array([0.9]), np.array([by_pld]), np.array([25]), 1e-5) <= 10


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0.0, 1e-5, 0.5, 10), "epsilon"),
        ((-1.0, 1e-5, 0.5, 10), "epsilon"),
        ((math.nan, 1e-5, 0.5, 10), "epsilon"),
        (([1.0, math.inf], 1e-5, 0.5, 10), "client number 2"),
        (([], 1e-5, 0.5, 10), "epsilon is empty"),
        ((1.0, 0, 0.5, 10), "delta"),
        ((1.0, 1e-5, 0, 10), "sampling_rate"),
        ((1.0, 1e-5, 1.5, 10), "sampling_rate"),
        ((1.0, 1e-5, 0.5, 0), "rounds"),
        ((1.0, 1e-5, 0.5, 2.5), "rounds"),
        ((1e-5, 1e-5, 0.5, 10), "cannot be met by any noise"),
        ((1.0, 1e-5, 0.5, 10, "opacus"), "accountant"),
    ],
)
def test_bad_input_is_named(arguments, names):
    with pytest.raises(InvalidInput, match=names):
        noise_multiplier(*arguments)


@pytest.mark.full
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-8, 8).map(lambda x: round(x, 9)), min_size=1, max_size=20),
    st.floats(0.1, 300),
)
def test_roots_are_approached_from_the_safe_side(roots, steepness):
    """gap = -expm1(k (x - root)) falls through zero at the root, gently or with a cliff."""
    wanted = np.array(roots)

    def evaluate(x, rows):
        return -np.expm1(np.minimum(steepness * (x - wanted[rows]), 300)), None

    found = safe_roots(evaluate, np.zeros(wanted.size), -10, 10, 1e-9)
    assert (found >= wanted).all()
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_a_root_beyond_the_range_is_not_invented():
    found = safe_roots(lambda x, _rows: (np.ones_like(x), None), np.zeros(2), -1, 1, 1e-9)
    assert np.isnan(found).all()


def test_threads_may_share_a_curve(monkeypatch):
    """A table that two threads extend at once has every node once, and in its place."""
    import threading
    import time

    from fedspend.accounting.curves import Curve

    real = Curve._compute

    def slow(self, low, high):
        time.sleep(0.05)  # long enough for the others to arrive
        return real(self, low, high)

    monkeypatch.setattr(Curve, "_compute", slow)
    shared, wanted = Curve(0.5, (2.0, 5.0)), np.log([0.7, 0.9, 1.4, 3.0, 5.0, 9.0])
    shared.rdp(np.log([2.0]))
    threads = [threading.Thread(target=shared.rdp, args=(wanted,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exact = rdp(np.full(6, 0.5), np.exp(wanted), np.array([2.0, 5.0]))
    np.testing.assert_allclose(shared.rdp(wanted), exact, rtol=1e-5)


@pytest.mark.full(but=["0.9"])
@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_what_a_curve_says_of_a_noise_depends_on_no_other_noise(rate):
    """To the last bit: else a budget's schedule would depend on how many others are planned."""
    points = np.random.default_rng(3).uniform(-0.5, 3.0, 40)
    spending = curve(rate, tuple(ORDERS))
    column = np.arange(points.size) % len(ORDERS)
    every, at = spending.rdp(points), spending.rdp_at(points, column)
    for count in (1, 2, 3, 7, 8, 33):
        assert np.array_equal(spending.rdp(points[:count]), every[:count])
        assert np.array_equal(spending.rdp_at(points[:count], column[:count]), at[:count])


def test_a_shared_table_does_not_remember_in_which_order_it_was_asked():
    """Else the last digits of a plan, and so its hash, would depend on earlier plans."""
    orders = (*np.arange(1.25, 10, 0.25), *np.arange(10.0, 64.0))
    noise = np.log(np.linspace(0.8, 3.0, 200))
    fresh, used = (Curve(0.2, orders) for _ in range(2))
    used.rdp(np.log([20.0, 30.0]))
    used.rdp(np.log([0.3]))
    assert (used.rdp(noise) == fresh.rdp(noise)).all()


def test_a_table_without_sampling_is_that_of_the_gaussian():
    noise, orders = np.array([0.5, 3.0, 40.0]), np.array([1.5, 8.0, 64.0])
    found = Curve(1.0, tuple(orders)).rdp(np.log(noise))
    np.testing.assert_allclose(found, orders / (2 * noise[:, None] ** 2), rtol=1e-6)


@pytest.mark.parametrize("rate", [1e-4, 0.2, 0.9, 1.0])
def test_a_table_is_finite_at_the_ends_of_the_noise(rate):
    ends = np.log(NOISE_RANGE)
    assert np.isfinite(Curve(rate, (1.5, 8.0, 64.0)).rdp(ends)).all()


def test_a_stretch_ends_where_the_noise_or_the_rate_changes():
    """Else rounds would be accounted at the rate or the noise of others."""
    noise = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 3.0], [1.0, 3.0]])
    rate = np.array([[0.1, 0.5], [0.1, 0.5], [0.2, 0.5], [0.2, 0.5]])
    runs = Runs.of(noise, rate)
    rows = zip(runs.schedule, runs.round, runs.rounds, runs.rate, runs.noise, strict=True)
    assert [tuple(row) for row in rows] == [
        (0, 0, 2, 0.1, 1.0),
        (0, 2, 2, 0.2, 1.0),
        (1, 0, 1, 0.5, 2.0),
        (1, 1, 3, 0.5, 3.0),
    ]


def test_a_budget_is_feasible_from_its_smallest_epsilon_on():
    already = np.array([[3.0, 1.0]])
    check_feasible(np.array([1.01]), already)
    with pytest.raises(InvalidInput, match="cannot be met by any noise"):
        check_feasible(np.array([0.99]), already)
