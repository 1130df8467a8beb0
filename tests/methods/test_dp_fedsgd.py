"""DP-FedSGD: a noise level becomes a plan with exactly that noise, and the letter of the paper's
algorithm would not do.
"""

import math

import numpy as np
import pytest
from lib.configs import small

import fedspend
from fedspend.configuration.config import config_of
from fedspend.configuration.plan_inputs import Flags, resolve
from fedspend.errors import InvalidInput
from fedspend.runs.setup import from_config
from fedspend.server.methods.base import RoundTerms
from fedspend.server.methods.dp_fedsgd import budget_of, multiplier_of, noise_level_of
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

TERMS = {"rate": 0.5, "clients": 40, "clip": 0.25}


def sections(**method):
    return small(
        "plain",
        data__examples=200,
        data__clients=40,
        method={"name": "dp-fedsgd", **method},
        privacy={"rate": 0.5, "clip": 0.25, "delta": 1e-3},
        train__rounds=6,
    )


def test_the_plan_has_the_noise_that_was_asked_for():
    setup = from_config(config_of(sections(noise_level=0.05)))
    plan, terms = setup.plan, setup.method.terms(3, {})
    # deviation of the noise on the sum: q K clients with deviation sigma each
    wanted = 0.05 * math.sqrt(0.5 * 40)
    assert isinstance(terms, RoundTerms)
    assert wanted <= terms.deviation <= wanted * (1 + 1e-6), "never less"
    assert terms.deviation / terms.denominator == pytest.approx(
        0.05 / math.sqrt(0.5 * 40), rel=1e-6
    )
    np.testing.assert_allclose(terms.clip_norm, 0.25)
    np.testing.assert_allclose(terms.sampling_rate, 0.5)
    assert plan.policy == "strictest"
    assert plan.parameters["method"] == setup.method.name == "dp-fedsgd"
    assert fedspend.verify(plan).ok


def test_the_budget_is_what_a_second_accountant_reads():
    made = fedspend.plan(
        [budget_of(0.05, rounds=6, delta=1e-3, **TERMS)] * 40,
        delta=1e-3,
        rounds=6,
        rate=0.5,
        clip=0.25,
        policy="uniform",
        accountant="rdp",
    )
    z = multiplier_of(0.05, **TERMS)
    order = float(made.schedules.order[0])
    assert epsilon_at(6 * renyi_divergence(0.5, z, order), order, 1e-3) == pytest.approx(
        made.budget[0], rel=1e-6
    )
    assert noise_level_of(z, **TERMS) == pytest.approx(0.05, rel=1e-12)


def test_it_also_takes_budgets_of_which_the_strictest_holds():
    config = sections()
    config["privacy"]["groups"] = [{"epsilon": 4.0}, {"epsilon": 9.0}]
    plan = from_config(config_of(config)).plan
    assert plan.schedules.count == 1
    np.testing.assert_allclose(plan.epsilon, 4.0, rtol=1e-5)


def test_the_papers_clipping_as_written_is_no_bound_of_c():
    """`u / max(1, |u|^2 / c)` leaves a norm of sqrt(c) at |u| = sqrt(c): above c for every c below
    1.
    """
    c = 0.01
    norms = np.geomspace(1e-4, 1e2, 20_001)
    left = norms / np.maximum(1, norms**2 / c)
    assert left.max() == pytest.approx(math.sqrt(c), rel=1e-3)
    claimed = budget_of(0.02, rate=1.0, clients=100, clip=c, rounds=5, delta=1e-3)
    real = budget_of(0.02, rate=1.0, clients=100, clip=math.sqrt(c), rounds=5, delta=1e-3)
    assert real > 8 * claimed


def test_flags_win_over_the_noise_level():
    config = config_of(sections(noise_level=0.05))
    assert resolve(config, Flags(epsilon="3")).population.epsilons.tolist() == [3.0] * 40
    other = resolve(config, Flags(rounds=12)).population.epsilons[0]
    assert other == budget_of(0.05, rounds=12, delta=1e-3, **TERMS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"privacy": {"epsilon": 3.0}}, "noise_level and epsilon both"),
        ({"method": {"noise_level": 1e-4}}, "noise multiplier of 0.00179"),
        ({"method": {"noise_level": 1e9}}, "the accountant handles"),
        ({"method": {"noise_level": 5e4}}, "costs no epsilon"),
        ({"privacy": {"policy": "uniform"}}, "contradicts"),
        ({"privacy": {"accountant": "pld"}}, "noise_level is accounted by 'rdp'"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, word):
    config = sections(noise_level=0.05)
    for section, values in change.items():
        config[section] |= values
    with pytest.raises(InvalidInput, match=word):
        from_config(config_of(config))
