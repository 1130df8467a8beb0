"""Composition over mixtures of rounds, against dp-accounting and by properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.accounting import epsilon, rdp
from fedspend.accounting.mechanisms import Mechanisms, two_stage
from fedspend.accounting.rdp import ORDERS

rates = st.floats(0.01, 1.0)
noises = st.floats(0.4, 20.0)
rounds = st.lists(st.tuples(rates, noises), min_size=1, max_size=6)


def of_rounds(columns):
    """One history per list of (rate, noise)."""
    parts = [
        Mechanisms.of_schedules(
            np.array([[s] for _, s in column]), np.array([[q] for q, _ in column])
        ).renamed(np.array([n]), len(columns))
        for n, column in enumerate(columns)
    ]
    return Mechanisms.joined(parts, len(columns))


@settings(max_examples=30)
@given(st.lists(rounds, min_size=1, max_size=3))
def test_never_below_the_exact_curve_and_close_to_it(columns):
    found, order = of_rounds(columns).best(np.full(len(columns), 1e-5))
    for n, column in enumerate(columns):
        curve = sum(rdp(q, s, ORDERS) for q, s in column)
        exact = epsilon(curve, ORDERS, 1e-5)
        assert found[n] >= exact * (1 - 1e-9)
        assert found[n] <= exact * 1.001
        assert order[n] in ORDERS


@pytest.mark.full
@settings(max_examples=30)
@given(rounds)
def test_pld_reads_no_higher(column):
    from fedspend.verification.second_accountant import pld_epsilon

    found, _ = of_rounds([column]).best(np.array([1e-4]))
    by_pld = pld_epsilon([q for q, _ in column], [s for _, s in column], [1] * len(column), 1e-4)
    assert by_pld <= found[0] * (1 + 1e-3) + 1e-3


def test_dp_accounting_agrees():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=range(2, 300))
    for q, s, count in ((0.1, 1.3, 40), (0.5, 3.0, 7), (1.0, 9.0, 2)):
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(s)), count))
    mixed = of_rounds([[(0.1, 1.3)] * 40 + [(0.5, 3.0)] * 7 + [(1.0, 9.0)] * 2])
    assert mixed.history.size == 3, "equal rounds are counted together"
    orders = np.arange(2.0, 300.0)
    assert epsilon(mixed.curves(orders)[0], orders, 1e-6) == pytest.approx(
        accountant.get_epsilon(1e-6), rel=1e-6
    )
    found, _ = mixed.best(np.array([1e-6]))
    assert 0.97 * accountant.get_epsilon(1e-6) < found[0] <= accountant.get_epsilon(1e-6), (
        "more orders can only read lower"
    )


def test_two_stages_of_sampling():
    """Known answer: T=20, tau=5, lambda=0.5, q=0.1, sigma=1, delta=1e-3 at the orders 2..64."""
    orders = np.arange(2.0, 65.0)
    rounds = Mechanisms.of_schedules(
        np.ones((20, 1)), np.full((20, 1), 0.1), client_rate=0.5, steps=5
    )
    assert epsilon(rounds.curves(orders)[0], orders, 1e-3) == pytest.approx(4.20990690, abs=1e-8)
    read = rounds.rdp_at(np.array([7.0]))
    assert read[0] == pytest.approx(rounds.curves(orders)[0][5], rel=1e-9)


@given(st.floats(1e-6, 200.0), st.floats(1e-6, 1.0), st.floats(1.01, 500.0))
def test_a_second_stage_never_costs_more_and_never_less_than_its_share(inner, share, order):
    value = float(two_stage(np.array([inner]), np.array([share]), np.array([order]))[0])
    assert 0 <= value <= inner * (1 + 1e-12)
    assert value >= share * inner * (1 - 1e-9), (
        "the moment is convex: lambda R is a lower bound, which is why it is no upper one"
    )
    assert float(two_stage(np.array([inner]), np.array([1.0]), np.array([order]))[0]) == inner


@pytest.mark.full
@given(st.lists(rounds, min_size=1, max_size=4), st.data())
def test_take_and_alike(columns, data):
    all_of_them = of_rounds(columns)
    rows = np.array(data.draw(st.lists(st.integers(0, len(columns) - 1), min_size=1, max_size=6)))
    taken = all_of_them.take(rows)
    order = np.full(rows.size, 5.0)
    np.testing.assert_allclose(
        taken.rdp_at(order), all_of_them.rdp_at(np.full(len(columns), 5.0))[rows], rtol=1e-12
    )
    numbers = taken.alike()
    for a in range(rows.size):
        for b in range(rows.size):
            if rows[a] == rows[b]:
                assert numbers[a] == numbers[b]
            if numbers[a] == numbers[b]:
                assert sorted(columns[rows[a]]) == sorted(columns[rows[b]])


def test_nothing_costs_nothing():
    none = Mechanisms.none(3)
    assert none.best(np.full(3, 1e-5))[0].tolist() == [0.0] * 3
    assert none.curves().shape == (3, len(ORDERS))
    assert none.alike().tolist() == [0, 0, 0]
    assert Mechanisms.joined([], 2).histories == 2
