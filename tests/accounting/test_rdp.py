"""The kernel against arbitrary-precision integration, known answers and limits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.accounting import ORDERS, compose, epsilon, rdp
from fedspend.errors import InvalidInput


def reference(rate: float, noise: float, order: float) -> float:
    """log E[(1+u)^a] / (a-1) by mpmath quadrature with 30 digits."""
    with mpmath.workdps(30):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)

        def excess(z):
            u = q * mpmath.expm1((2 * z - 1) / (2 * s * s))
            return mpmath.npdf(z, 0, s) * ((1 + u) ** a - 1 - a * u)

        knots = [
            -14 * s,
            -7 * s,
            -3 * s,
            0,
            3 * s,
            *(a * k / mpmath.mpf(24) for k in range(1, 25, 2)),
            a + 3 * s,
            a + 7 * s,
            a + 14 * s,
        ]
        return float(mpmath.log1p(mpmath.quad(excess, sorted(set(knots)))) / (a - 1))


@pytest.mark.parametrize(
    ("rate", "noise", "order", "expected"),
    [
        (0.9, 2.4, 2, 0.142861666907219),
        (0.9, 2.4, 1.5, 0.10636517953),
        (1e-8, 1, 2, 1.718281828e-16),
    ],
)
def test_known_answers(rate, noise, order, expected):
    assert rdp(rate, noise, order) == pytest.approx(expected, rel=1e-9)


@pytest.mark.full(but=["1e-09-1.0-1.05", "1e-09-100000.0-3.3"])
@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [
        (1e-9, 1.0, 1.05),
        (1e-9, 1e5, 3.3),
        (1e-9, 0.05, 2.5),
        (0.5, 0.05, 1.5),
        (0.01, 0.3, 7.7),
        (1e-6, 0.5, 15.3),
        (0.999, 0.1, 1.05),
        (0.3, 1000.0, 17.2),
        (0.01, 1.0, 100.5),
        (0.9, 0.49, 1.1),
        (0.9, 0.51, 1.1),
        (0.02, 3.0, 21.9),
        (0.7, 120.0, 1.06),
    ],
)
def test_real_orders_against_quadrature(rate, noise, order):
    assert rdp(rate, noise, order) == pytest.approx(reference(rate, noise, order), rel=1e-9)


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("order", [2, 3, 17, 64, 300, 1025])
@pytest.mark.parametrize(
    ("rate", "noise"), [(1e-9, 1.0), (1e-4, 0.4), (0.3, 2.0), (0.97, 0.05), (0.5, 1e5)]
)
def test_integer_orders_against_exact_sum(rate, noise, order):
    with mpmath.workdps(60):
        q, x = mpmath.mpf(rate), 1 / (2 * mpmath.mpf(noise) ** 2)
        total = sum(
            mpmath.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mpmath.expm1((k * k - k) * x)
            for k in range(2, order + 1)
        )
        expected = float(mpmath.log1p(total) / (order - 1))
    assert rdp(rate, noise, order) == pytest.approx(expected, rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-9, -0.01).map(lambda x: 10.0**x),
    st.floats(math.log(0.2), math.log(1e4)).map(math.exp),
    st.integers(2, 18),
)
def test_real_orders_close_in_on_integer_ones(rate, noise, order):
    """The two formulas are independent; as functions of the order they must meet, and grow."""
    below, at, above = rdp(rate, noise, [order - 1e-7, order, order + 1e-7])
    assert below <= at * (1 + 1e-8)
    assert at <= above * (1 + 1e-8)
    assert above == pytest.approx(below, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1), st.floats(0.06, 100), st.floats(1.05, 60))
def test_more_noise_or_less_sampling_never_costs_more(rate, noise, order):
    here = rdp(rate, noise, order)
    assert 0 <= rdp(rate, noise * 1.01, order) <= here * (1 + 1e-9)
    assert rdp(rate * 0.99, noise, order) <= here * (1 + 1e-9)
    assert here <= order / (2 * noise**2) * (1 + 1e-9), "sampling can only help"


def test_limits():
    np.testing.assert_allclose(
        rdp(1.0, [0.5, 3.0], [1.5, 2, 9]), np.outer([2, 1 / 18], [1.5, 2, 9]), rtol=1e-13
    )
    assert rdp(0.0, 1.0, 2) == 0
    assert rdp(1 - 1e-12, 2.0, 3.5) == pytest.approx(3.5 / 8, rel=1e-9)


def test_shapes_broadcast():
    assert rdp(np.full((4, 1), 0.5), np.linspace(1, 2, 3), [2, 3, 4, 5]).shape == (4, 3, 4)
    assert rdp(0.5, [1.0, 2.0], 2).shape == (2,)
    assert isinstance(rdp(0.5, 1.0, 2), float)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((1.2, 1, 2), "sampling_rate"),
        ((-0.1, 1, 2), "sampling_rate"),
        ((math.nan, 1, 2), "sampling_rate"),
        ((0.5, 0, 2), "noise_multiplier"),
        ((0.5, math.nan, 2), "noise_multiplier"),
        ((0.5, math.inf, 2), "noise_multiplier"),
        ((0.5, "much", 2), "noise_multiplier"),
        ((0.5, 1, 1), "orders"),
        ((0.5, 1, math.inf), "orders"),
        ((0.5, 1, []), "orders"),
    ],
)
def test_bad_input_is_named(arguments, names):
    with pytest.raises(InvalidInput, match=names):
        rdp(*arguments)


def test_order_set_is_increasing_and_wide():
    assert list(ORDERS) == sorted(set(ORDERS))
    assert ORDERS[0] == 1.05
    assert ORDERS[-1] > 1000
    assert all(order == int(order) for order in ORDERS if order >= 20)


def test_composition_k_rounds_once_is_one_round_k_times():
    one = rdp(0.3, 1.7, ORDERS)
    np.testing.assert_allclose(compose(*[one] * 7), 7 * one, rtol=1e-14)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "expected"),
    [(0.9, 2.424098, 25, 10.1234215), (0.01, 1.0, 1000, 2.10775308)],
)
def test_epsilon_known_answers(rate, noise, rounds, expected):
    orders = range(2, 65)
    assert epsilon(rounds * rdp(rate, noise, orders), orders, 1e-5) == pytest.approx(
        expected, rel=1e-8
    )


def test_epsilon_agrees_with_dp_accounting_at_integer_orders():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = list(range(2, 100))
    accountant = RdpAccountant(orders)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.3)), 700
    )
    assert epsilon(700 * rdp(0.02, 1.3, orders), orders, 1e-6) == pytest.approx(
        accountant.get_epsilon(1e-6), rel=1e-9
    )


def test_fewer_orders_read_higher():
    curve = 25 * rdp(0.9, 2.0, ORDERS)
    assert epsilon(curve[::7], ORDERS[::7], 1e-5) >= epsilon(curve, ORDERS, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan, math.inf, "small", 1e-320])
def test_epsilon_refuses_bad_delta(delta):
    with pytest.raises(InvalidInput, match="delta"):
        epsilon([0.1, 0.2], [2, 3], delta)


def test_epsilon_refuses_nan_curve_and_wrong_length():
    with pytest.raises(InvalidInput, match="NaN"):
        epsilon([0.1, math.nan], [2, 3], 1e-5)
    with pytest.raises(InvalidInput, match="one value per order"):
        epsilon([0.1, 0.2, 0.3], [2, 3], 1e-5)
