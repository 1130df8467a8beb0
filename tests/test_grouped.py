"""Policy `grouped`: noise and rates by group, as in GDPFed, planned and verified like others."""

from __future__ import annotations

import numpy as np
import pytest

import fedspend
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.planning.plan import Plan

BUDGETS = [2.0] * 3 + [5.0] * 4 + [10.0] * 3
TERMS = {"delta": 1e-5, "rounds": 20, "rate": 0.3, "accountant": "rdp"}
GROUPS = [0, 3, 7]


def plan(budgets=BUDGETS, split=None, policy="grouped", **changes) -> Plan:
    options = None if split is None else {"split": split}
    return fedspend.plan(budgets, policy=policy, options=options, **(TERMS | changes))


@pytest.mark.full(but=["0.3-equal", "1.0-best", "1.0-equal"])
@pytest.mark.parametrize("split", ["best", "equal"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_the_noise_is_that_of_all_groups_and_each_group_alone_meets_its_budget(split, rate):
    """Every group planned alone, at its rate, spends its budget; their variances add up."""
    made = plan(split=split, rate=rate)
    assert np.allclose(made.round_rate, rate, rtol=1e-9)
    alone = [
        plan([BUDGETS[g]], policy="uniform", rate=made.sampling_rate[0, g]).noise_multiplier[0, 0]
        for g in GROUPS
    ]
    assert np.allclose(made.noise_multiplier, np.sqrt(np.sum(np.square(alone))), rtol=1e-6)
    assert np.allclose(made.clip_norm, 1.0)
    assert np.all(made.epsilon < made.budget)


@pytest.mark.full
def test_what_is_claimed_is_what_the_noise_costs_and_is_verified():
    made = plan(rounds=5)
    cost = Mechanisms.of_schedules(made.noise_multiplier, made.sampling_rate)
    assert np.allclose(made.epsilon, cost.best(np.full(10, made.delta))[0])
    assert made.verify().ok
    by_pld = plan(rounds=5, accountant="pld")
    assert by_pld.verify().ok
    assert np.all(by_pld.epsilon <= by_pld.budget)


def test_the_best_rates_have_the_least_noise():
    """Moving rate from one group to another, at the same mean, is never better."""
    made = plan()
    assert made.noise_of_average[0] < plan(split="equal").noise_of_average[0]
    rate, clients = made.sampling_rate[0, GROUPS], np.array([3, 4, 3])

    def variance(rates):
        alone = [
            plan([BUDGETS[g]], policy="uniform", rate=q).noise_multiplier[0, 0]
            for g, q in zip(GROUPS, rates, strict=True)
        ]
        return float(np.sum(np.square(alone)))

    best = variance(rate)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        for step in (-0.1, 0.1):
            moved = rate.copy()
            moved[one] *= 1 + step
            moved[other] -= clients[one] * step * rate[one] / clients[other]
            if np.all((moved <= 1) & (moved >= TERMS["rate"] / 10)):
                assert variance(moved) >= best * (1 - 1e-3)


def test_one_group_is_uniform_and_one_noise_for_all_is_less():
    assert np.allclose(
        plan([3.0] * 5).noise_multiplier, plan([3.0] * 5, policy="uniform").noise_multiplier
    )
    assert plan().noise_of_average[0] > plan(policy="uniform").noise_of_average[0]


def test_what_was_spent_before_counts():
    past = Mechanisms.of_schedules(np.full((3, 10), 6.0), np.full((3, 10), 0.3))
    assert plan(past=past).noise_of_average[0] > plan().noise_of_average[0]


def test_bad_options_and_too_many_groups_are_one_line(capsys):
    with pytest.raises(InvalidInput, match="choose one of best, equal"):
        plan(split="rates")
    with pytest.raises(InvalidInput, match="at most 20 distinct budgets, got 21"):
        plan(np.linspace(1, 5, 21))
    flags = ["--epsilon", "2:3,5:4", "--delta", "1e-3", "--rounds", "5", "--rate", "0.5"]
    asked = ["plan", *flags, "--compare", "uniform,individual-rates,grouped"]
    assert main(asked) == 0
    assert "grouped" in capsys.readouterr().out
