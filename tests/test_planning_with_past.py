"""Plans on top of what was spent: past and plan together spend the budget,
exactly and never over.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedspend
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.errors import InvalidInput

DELTA = 1e-5

# these tests are about Rényi curves; the default accountant would take away more noise
plan_by_rdp = partial(fedspend.plan, accountant="rdp")


def together(past, plan):
    own = Mechanisms.of_schedules(plan.noise_multiplier, plan.sampling_rate)
    return Mechanisms.joined([past, own], len(plan.clients)).best(
        np.full(len(plan.clients), plan.delta)
    )[0]


def some_past(noise, rounds=5, rate=0.4):
    noise = np.asarray(noise, dtype=np.float64)
    return Mechanisms.of_schedules(np.tile(noise, (rounds, 1)), np.full((rounds, noise.size), rate))


POLICIES = [
    {},
    {"saving_rate": 0.2, "transition": 4},
    {"weights": [1, 2, 3, 4, 5, 6, 7, 8]},
    {"policy": "geometric", "weights": 1.2},
]


@pytest.mark.full
@pytest.mark.parametrize("options", POLICIES)
def test_the_budget_is_spent_exactly(options):
    past = some_past([3.0, 3.0, 6.0, 12.0])
    budget = np.array([8.0, 5.0, 5.0, 2.0])
    plan = fedspend.plan(budget, delta=DELTA, rounds=8, rate=0.5, past=past, **options)
    total = together(past, plan)
    assert np.all(total <= budget)
    np.testing.assert_allclose(total, budget, rtol=1e-6)
    assert np.all(plan.epsilon < budget)
    assert fedspend.verify(plan).ok


@pytest.mark.full
@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(1.0, 30.0), st.floats(1.5, 40.0)), min_size=1, max_size=5),
    st.floats(0.05, 1.0),
    st.integers(1, 30),
    st.sampled_from(["uniform", "spend-as-you-go"]),
)
def test_random_pasts_never_over(accounts, rate, rounds, policy):
    headroom, noise = (np.array(column) for column in zip(*accounts, strict=True))
    past = some_past(noise)
    spent, _ = past.best(np.full(noise.size, DELTA))
    budget = spent + headroom
    saving = {"saving_rate": rate / 2} if policy == "spend-as-you-go" else {}
    plan = fedspend.plan(
        budget, delta=DELTA, rounds=rounds, rate=rate, policy=policy, past=past, **saving
    )
    total = together(past, plan)
    assert np.all(total <= budget)
    floor = plan.schedules.noise_multiplier.min() <= 0.05 * (1 + 1e-9)
    assert floor or np.all(total >= budget * (1 - 1e-3))


def test_under_strictest_all_follow_the_one_who_needs_most_noise():
    past = some_past([3.0, 30.0, 30.0])
    plan = fedspend.plan(
        [6.0, 6.0, 9.0], delta=DELTA, rounds=8, rate=0.5, policy="strictest", past=past
    )
    assert plan.schedules.count == 1
    total = together(past, plan)
    assert total[0] == pytest.approx(6.0, rel=1e-6)
    assert np.all(total <= [6.0, 6.0, 9.0])


def test_no_past_is_the_plain_plan():
    plain = plan_by_rdp([5.0, 9.0], delta=DELTA, rounds=8, rate=0.5)
    empty = fedspend.plan([5.0, 9.0], delta=DELTA, rounds=8, rate=0.5, past=Mechanisms.none(2))
    np.testing.assert_allclose(empty.noise_multiplier, plain.noise_multiplier, rtol=1e-7)
    np.testing.assert_allclose(empty.epsilon, plain.epsilon, rtol=1e-6)


def test_many_accounts_share_schedules():
    rng = np.random.default_rng(0)
    noise = rng.choice([4.0, 8.0], 300)
    past = some_past(noise)
    plan = fedspend.plan(np.full(300, 7.0), delta=DELTA, rounds=8, rate=0.5, past=past)
    assert plan.schedules.count == 2
    assert np.all(together(past, plan) <= 7.0)


@pytest.mark.parametrize(
    ("past", "options", "message"),
    [
        (some_past([3.0]), {}, "one history per client: got 1 for 2"),
        (some_past([3.0, 3.0]), {"accountant": "pld"}, "needs accountant 'rdp'"),
        (some_past([0.8, 3.0]), {}, "cannot be met by any noise"),
    ],
)
def test_bad_pasts(past, options, message):
    with pytest.raises(InvalidInput, match=message):
        fedspend.plan([6.0, 6.0], delta=DELTA, rounds=8, rate=0.5, past=past, **options)
