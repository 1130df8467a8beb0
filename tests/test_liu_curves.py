"""The accounting figures of Liu et al. (2024), against formulas written down again here."""

from __future__ import annotations

import math

import liu_curves
import numpy as np
import pytest
from liu_curves import BUDGETS, FAR_ORDERS, NOISES, ORDERS, RATES, Bends

pytestmark = pytest.mark.full


def of_one_step(rate: float, noise: float, order: int) -> float:
    """The paper's Lemma 4: the divergence of a sampled Gaussian at a whole order."""
    terms = [
        math.log(math.comb(order, k))
        + (order - k) * math.log1p(-rate)
        + k * math.log(rate)
        + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def of_one_round(order: float, inner: float, client_rate: float) -> float:
    """The paper's Lemma 6, in logarithms."""
    mixed = np.logaddexp(math.log1p(-client_rate), math.log(client_rate) + (order - 1) * inner)
    return float(mixed) / (order - 1)


@pytest.mark.parametrize("noise", NOISES)
def test_figure_6_at_rate_1_is_the_gaussian_s(noise):
    readings = [
        20 * of_one_round(order, 5 * order / (2 * noise**2), 0.5) + math.log(1e5) / (order - 1)
        for order in FAR_ORDERS.tolist()
    ]
    shown = liu_curves.by_noise()[NOISES.index(noise), RATES.index(1.0)]
    assert shown == pytest.approx(min(readings), rel=1e-9)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (2.0, 0.05), (4.0, 0.5)])
def test_figure_6_below_rate_1_is_lemma_4_and_lemma_6(noise, rate):
    readings = [
        20 * of_one_round(order, 5 * of_one_step(rate, noise, order), 0.5)
        + math.log(1e5) / (order - 1)
        for order in range(2, 129)
    ]
    shown = liu_curves.by_noise()[NOISES.index(noise), RATES.index(rate)]
    assert shown == pytest.approx(min(readings), rel=1e-9)


def test_figure_6_shows_the_trade_off_and_its_check_would_notice_if_not(monkeypatch):
    assert liu_curves.noise_as_claimed()
    assert "| 2 | 0.359 | 1.18 | 2.37 | 4.8 | 12.7 | 27.7 |" in liu_curves.noises()
    found = liu_curves.by_noise()
    for wrong in (found[::-1], found[:, ::-1]):
        monkeypatch.setattr(liu_curves, "by_noise", lambda wrong=wrong: wrong)
        assert not liu_curves.noise_as_claimed()


def test_figure_2_left_is_lemma_4_times_the_steps():
    found = liu_curves.bends().by_order
    for order in (2, 7, 40):
        at = ORDERS.tolist().index(order)
        assert found[RATES.index(1.0), at] == pytest.approx(100 * order / 2)
        for rate in (0.01, 0.2):
            expected = 100 * of_one_step(rate, 1.0, order)
            assert found[RATES.index(rate), at] == pytest.approx(expected, rel=1e-6)


def test_figure_2_left_bends_as_claimed_and_its_check_would_notice_if_not():
    found = liu_curves.bends()
    assert found.as_claimed
    assert not Bends(found.by_order[::-1]).as_claimed
    straight = np.outer(RATES, found.by_order[-1])
    assert not Bends(straight).as_claimed
    assert "| 1 | 100 | 200 | 400 | 800 | 1,600 | 3,200 | 6,400 | none | none | 1.0 |" in (
        liu_curves.divergences()
    )


def test_what_the_pages_say_about_the_fit():
    """docs/explanation/papers.md, docs/how-to/records.md, docs/results/records.md."""
    over = {
        noise: liu_curves.spent_over_budget(noise).round(1).tolist() for noise in (1, 4, 5, 6, 8)
    }
    assert over[1][0] == 137.3
    assert max(over[4]) <= 1
    assert max(over[8]) <= 1
    assert (over[5][0], over[6][0]) == (1.7, 2.4)
    assert max(over[5][1:] + over[6][1:]) <= 1
    paid = {noise: liu_curves.rounds_paid(noise).tolist() for noise in (1.0, 2.0, 6.0, 8.0)}
    assert paid == {1.0: [0, 0, 1], 2.0: [0, 1, 11], 6.0: [2, 15, 15], 8.0: [15, 15, 15]}


@pytest.mark.parametrize("noise", liu_curves.ACCOUNTED)
def test_all_rounds_are_paid_where_nothing_is_overspent(noise):
    within = liu_curves.spent_over_budget(noise) <= 1
    used = liu_curves.fitted_rates(noise) > 0
    assert len(BUDGETS) == within.size
    assert np.array_equal(liu_curves.rounds_paid(noise) == 15, within & used)
