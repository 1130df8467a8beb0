"""Distributions of budgets, and the noise that suits them."""

import math

import numpy as np
import pytest

from fedspend import records
from fedspend.errors import InvalidInput, Refused

TERMS = {"delta": 1e-3, "rounds": 15, "local_steps": 50, "client_rate": 1.0}


def test_three_levels_has_exact_shares():
    drawn = records.ThreeLevels().draw(1000, np.random.default_rng(0))
    assert {level: int((drawn == level).sum()) for level in (0.1, 1.0, 5.0)} == {
        0.1: 700,
        1.0: 200,
        5.0: 100,
    }
    assert len(set(drawn[:20])) > 1, "in random order"


def test_bounded_pareto_follows_its_distribution_function():
    drawn = np.sort(records.BoundedPareto().draw(200_000, np.random.default_rng(0)))
    assert drawn[0] >= 0.1
    assert drawn[-1] <= 10
    for budget in (0.12, 0.2, 0.5, 2.0, 8.0):
        promised = (1 - 0.1 / budget) / (1 - 0.1 / 10)
        assert np.searchsorted(drawn, budget) / drawn.size == pytest.approx(promised, abs=0.005)


def test_bounded_mix_gauss_has_three_modes():
    drawn = records.BoundedMixGauss().draw(100_000, np.random.default_rng(0))
    assert drawn.min() >= 0.1
    assert drawn.max() <= 10
    assert (drawn < 0.2).mean() == pytest.approx(0.7, abs=1e-3)
    assert (drawn > 2.5).mean() == pytest.approx(0.1, abs=1e-3)
    assert drawn[(drawn > 0.5) & (drawn < 1.5)].std() == pytest.approx(0.05, rel=0.05)
    assert drawn[drawn < 0.2].mean() == pytest.approx(
        0.1 + 0.01 * math.sqrt(2 / math.pi), rel=0.01
    ), "the upper half of a Gaussian"


@pytest.mark.parametrize("name", records.PREFERENCES)
def test_draws_repeat_with_the_seed(name):
    first, second = (records.PREFERENCES[name].draw(50, np.random.default_rng(3)) for _ in range(2))
    assert (first == second).all()
    assert first.shape == (50,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: records.ThreeLevels(levels=(1.0,)),
        lambda: records.ThreeLevels(levels=(0.0, 1.0, 2.0)),
        lambda: records.BoundedPareto(low=0.0),
        lambda: records.BoundedPareto(low=2.0, high=1.0),
        lambda: records.BoundedPareto(shape=math.nan),
        lambda: records.BoundedMixGauss(means=(1.0, 2.0)),
        lambda: records.BoundedMixGauss(means=(0.01, 1.0, 5.0)),
        lambda: records.ThreeLevels().draw(0, np.random.default_rng(0)),
    ],
)
def test_bad_distributions(make):
    with pytest.raises(InvalidInput):
        make()


@pytest.mark.full
def test_suggested_noise_is_the_least_noisy_of_the_candidates():
    budgets = records.ThreeLevels().draw(400, np.random.default_rng(0))
    told = records.suggest_noise(budgets, **TERMS)
    for one in told.candidates[::5]:
        rates = records.rates(budgets, **TERMS, noise_multiplier=one.noise_multiplier)
        assert one.expected_batch == pytest.approx(rates.sum(), rel=0.05)
        assert one.left_out == (rates == 0).mean()
        assert one.step_noise >= min(c.step_noise for c in told.candidates)
    best = next(c for c in told.candidates if c.noise_multiplier == told.noise_multiplier)
    assert best.step_noise == min(c.step_noise for c in told.candidates)
    assert told.candidates[0].mean_rate < best.mean_rate < told.candidates[-1].mean_rate, (
        "more noise, higher rates (Figure 6)"
    )


@pytest.mark.full
def test_suggestion_counts_every_client():
    budgets, clients = np.array([1.0, 1.0, 5.0, 5.0]), np.array(["a", "a", "b", "b"])
    told = records.suggest_noise(budgets, **TERMS, clients=clients)
    apart = [
        records.suggest_noise(budgets[clients == name], **TERMS).candidates[10] for name in "ab"
    ]
    together = math.sqrt((apart[0].step_noise ** 2 + apart[1].step_noise ** 2) / 2)
    assert told.candidates[10].step_noise == pytest.approx(together)


@pytest.mark.full
def test_suggestion_refuses_what_cannot_be():
    with pytest.raises(InvalidInput, match="one client per record"):
        records.suggest_noise([1.0, 2.0], **TERMS, clients=["a"])
    with pytest.raises(InvalidInput, match="record number 2"):
        records.suggest_noise([1.0, math.nan], **TERMS)
    with pytest.raises(Refused, match="no noise multiplier"):
        records.suggest_noise([1e-7], **(TERMS | {"delta": 1e-9}))
