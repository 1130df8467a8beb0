"""Policy `individual-rates`: budgets are spent by rate, exactly, at the same mean rate."""

from __future__ import annotations

import numpy as np
import pytest
from lib.configs import small

import fedspend
from fedspend.errors import InvalidInput
from fedspend.planning.policies.individual import at_mean

BUDGETS = [2.0] * 3 + [5.0] * 4 + [10.0] * 3
TERMS = {"delta": 1e-5, "rounds": 20, "rate": 0.1, "accountant": "rdp"}


def plan(policy="individual-rates", split=None, **changes):
    options = None if split is None else {"split": split}
    return fedspend.plan(BUDGETS, policy=policy, options=options, **(TERMS | changes))


def worth(made) -> float:
    """Expected sum of clipped updates over the noise, up to a constant."""
    return float((made.sampling_rate[0] / made.noise_multiplier[0]).mean())


@pytest.mark.full(but_every=6)
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("split", ["best", "rates"])
def test_budgets_are_spent_exactly_at_the_mean_rate(rate, split):
    made = plan(split=split, rate=rate)
    assert np.allclose(made.round_rate, rate, rtol=1e-9)
    assert np.all(made.sampling_rate <= 1)
    assert np.all(made.epsilon <= made.budget)
    assert np.all(made.epsilon >= made.budget * (1 - 1e-6))
    assert np.all(np.diff(made.sampling_rate[0]) >= 0), "larger budgets are not sampled less"
    assert worth(made) >= worth(plan("uniform", rate=rate)) * (1 - 1e-6)


@pytest.mark.full
def test_the_verifier_agrees():
    assert plan(rounds=5).verify().ok


def test_rates_alone_leave_noise_and_clip_the_same():
    made = plan(split="rates")
    assert np.allclose(made.noise_multiplier, made.noise_multiplier.mean(), rtol=0.01)
    assert np.allclose(made.clip_norm, 1.0, rtol=0.01)
    assert made.sampling_rate[0, -1] > 4 * made.sampling_rate[0, 0]


@pytest.mark.full
def test_the_best_split_is_the_best():
    """Moving rate from one group to another, at the same mean, is never better."""
    made = plan()
    assert worth(made) > 1.04 * worth(plan("uniform"))
    assert worth(made) >= worth(plan(split="rates")) * (1 - 1e-4)
    groups = [0, 3, 7]
    rate, clients = made.sampling_rate[0, groups], np.array([3, 4, 3])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        for step in (-0.15, 0.15):
            moved = rate.copy()
            moved[one] *= 1 + step
            moved[other] -= clients[one] * step * rate[one] / clients[other]
            noise = [
                fedspend.accounting.noise_multiplier(budget, 1e-5, float(q), 20)
                for budget, q in zip((2.0, 5.0, 10.0), moved, strict=True)
            ]
            assert (clients * moved / noise).sum() / 10 <= worth(made) * (1 + 1e-3)


def test_equal_budgets_have_the_plan_of_uniform():
    made, flat = (
        fedspend.plan([4.0] * 5, policy=policy, **TERMS)
        for policy in ("individual-rates", "uniform")
    )
    assert np.allclose(made.sampling_rate, 0.1)
    assert np.allclose(made.noise_multiplier, flat.noise_multiplier, rtol=1e-6)


def test_scaling_to_a_mean_stops_at_one():
    share = np.array([0.5, 0.5])
    assert at_mean(np.array([0.2, 0.8]), share, 0.75).tolist() == pytest.approx([0.5, 1.0])
    assert at_mean(np.array([0.2, 0.8]), share, 1.0).tolist() == [1.0, 1.0]


def test_wrong_wishes_are_one_line():
    with pytest.raises(InvalidInput, match="split"):
        plan(split="all")
    with pytest.raises(InvalidInput, match="at most 512 distinct budgets"):
        fedspend.plan(np.linspace(1, 2, 600), policy="individual-rates", **TERMS)
    with pytest.raises(InvalidInput, match="contradicts method 'time-adaptive'"):
        plan(method="time-adaptive")


@pytest.mark.full
def test_a_run_takes_it_from_its_config():
    privacy = {
        "groups": [{"epsilon": 2, "share": 1}, {"epsilon": 8, "share": 1}],
        "delta": 1e-3,
        "rate": 0.5,
        "policy": "individual-rates",
        "split": "rates",
    }
    done = fedspend.train(small("plain", privacy=privacy, train__rounds=3))
    assert len(done.metrics) == 3


@pytest.mark.full(but=["budgets0-terms0"])
@pytest.mark.parametrize(
    ("budgets", "terms"),
    [
        ([1.56, 1.591], {"delta": 1e-3, "rounds": 5, "rate": 0.05}),
        ([0.50880102, 0.51609199], {"delta": 1e-3, "rounds": 11, "rate": 0.2}),
        ([2.34633875, 2.36079497], {"delta": 1e-3, "rounds": 9, "rate": 0.2}),
    ],
)
def test_of_close_budgets_the_larger_has_no_lower_rate_and_nothing_is_lost(budgets, terms):
    terms = terms | {"accountant": "rdp"}
    own, equal = (
        fedspend.plan(budgets, policy=policy, **terms) for policy in ("individual-rates", "uniform")
    )
    worth = [(one.sampling_rate / one.noise_multiplier)[0].sum() for one in (own, equal)]
    assert own.sampling_rate[0, 1] >= own.sampling_rate[0, 0]
    assert worth[0] >= worth[1] * (1 - 1e-9)
