"""Policies in the setting of the spend-as-you-go paper, at their limits, and over random input."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedspend
from fedspend.accounting import epsilon, rdp
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.planning.policies import POLICIES, assign_saving_rates, policy_for
from fedspend.planning.theory import lemma_1

PAPER = {"delta": 1e-5, "rounds": 25, "rate": 0.9, "transition": 13, "saving_rate": [0.5, 0.6, 0.7]}

# these tests are about Rényi curves; the default accountant would take away more noise
plan_by_rdp = partial(fedspend.plan, accountant="rdp")


def final_epsilon(plan, client):
    """Composed afresh with the exact kernel, at all of the plan's orders."""
    curves = rdp(plan.sampling_rate[:, client], plan.noise_multiplier[:, client], plan.orders)
    return epsilon(curves.sum(axis=0), plan.orders, plan.delta)


@pytest.fixture(scope="module")
def paper():
    return plan_by_rdp([10, 20, 30], **PAPER)


@pytest.fixture(scope="module")
def literal():
    return plan_by_rdp([10, 20, 30], **PAPER, policy="spend-as-you-go-literal")


def test_spend_as_you_go_in_the_papers_setting(paper):
    np.testing.assert_allclose(paper.noise_multiplier[0], [2.424, 1.409, 1.045], atol=1e-3)
    np.testing.assert_allclose(paper.noise_multiplier[-1], [1.967, 1.211, 0.950], atol=1e-3)
    assert (np.diff(paper.noise_multiplier, axis=0) <= 1e-12).all(), (
        "what is saved lowers the noise, round by round"
    )
    assert (np.ptp(paper.noise_multiplier[12:], axis=0) == 0).all(), (
        "constant from the transition round on"
    )
    np.testing.assert_array_equal(paper.sampling_rate[:12], np.tile([0.5, 0.6, 0.7], (12, 1)))
    assert (paper.sampling_rate[12:] == 0.9).all()


def test_budgets_are_spent_exactly(paper):
    reached = np.array([final_epsilon(paper, n) for n in range(3)])
    assert (reached <= paper.budget).all()
    np.testing.assert_allclose(reached, paper.budget, rtol=1e-6)
    np.testing.assert_allclose(paper.spent()[-1], paper.epsilon, rtol=1e-9)
    assert (np.diff(paper.spent(), axis=0) > 0).all()


def test_each_round_solves_the_recursion(paper):
    """From any round on, keeping the noise and the full rate would end exactly at the budget: the
    definition of the policy.
    """
    noise, rate = paper.noise_multiplier[:, 0], paper.sampling_rate[:, 0]
    for t in (0, 5, 11, 12):
        past = rdp(rate[:t], noise[:t], paper.orders).sum(axis=0)
        kept_up = past + (25 - t) * rdp(0.9, noise[t], paper.orders)
        assert epsilon(kept_up, paper.orders, 1e-5) == pytest.approx(10, rel=2e-6)


def test_literal_leaves_budget_unspent(literal):
    unspent = 100 * (1 - literal.epsilon / literal.budget)
    np.testing.assert_allclose(unspent, [19.3, 17.4, 15.9], atol=0.15)


def test_nothing_saved_is_uniform():
    uniform = plan_by_rdp([10, 20], delta=1e-5, rounds=25, rate=0.9, policy="uniform")
    for terms in ({"saving_rate": 0.9}, {"saving_rate": 0.4, "transition": 1}):
        same = plan_by_rdp([10, 20], delta=1e-5, rounds=25, rate=0.9, **terms)
        np.testing.assert_allclose(same.noise_multiplier, uniform.noise_multiplier, rtol=1e-8)
    nearly = plan_by_rdp([10, 20], delta=1e-5, rounds=25, rate=0.9, saving_rate=0.9 * (1 - 1e-9))
    np.testing.assert_allclose(nearly.noise_multiplier, uniform.noise_multiplier, rtol=1e-5)


def test_strictest_gives_everyone_the_smallest_budget():
    plan = plan_by_rdp([5, 20, 30], delta=1e-5, rounds=10, rate=0.5, policy="strictest")
    assert plan.schedules.count == 1
    assert np.ptp(plan.noise_multiplier) == 0
    np.testing.assert_allclose(plan.epsilon, 5, rtol=1e-7)
    np.testing.assert_allclose(plan.clip_norm, plan.clip)


def test_weights_shape_the_noise_and_spend_exactly():
    weights = [1, 1, 4, 9, 2]
    plan = plan_by_rdp(
        [3.0, 8.0], delta=1e-5, rounds=5, rate=0.4, policy="weights", weights=weights
    )
    shape = plan.noise_multiplier * np.sqrt(weights)[:, None]
    np.testing.assert_allclose(shape, np.tile(shape[:1], (5, 1)), rtol=1e-12)
    np.testing.assert_allclose([final_epsilon(plan, n) for n in (0, 1)], [3, 8], rtol=1e-6)
    equal = plan_by_rdp([3.0], delta=1e-5, rounds=5, rate=0.4, policy="weights", weights=[7] * 5)
    np.testing.assert_allclose(
        equal.noise_multiplier,
        plan_by_rdp([3.0], delta=1e-5, rounds=5, rate=0.4, policy="uniform").noise_multiplier,
        rtol=1e-7,
    )


def test_geometric_is_weights_with_a_ratio():
    geometric = plan_by_rdp([6.0], delta=1e-5, rounds=8, rate=0.4, policy="geometric", weights=1.3)
    weights = plan_by_rdp(
        [6.0], delta=1e-5, rounds=8, rate=0.4, policy="weights", weights=1.3 ** np.arange(8)
    )
    np.testing.assert_allclose(geometric.noise_multiplier, weights.noise_multiplier, rtol=1e-7)


def test_order_of_clients_does_not_matter():
    there = plan_by_rdp(
        [3, 9, 27],
        delta=1e-5,
        rounds=12,
        rate=0.6,
        saving_rate=[0.1, 0.2, 0.3],
        transition=[2, 7, 12],
    )
    back = plan_by_rdp(
        [27, 9, 3],
        delta=1e-5,
        rounds=12,
        rate=0.6,
        saving_rate=[0.3, 0.2, 0.1],
        transition=[12, 7, 2],
    )
    np.testing.assert_allclose(there.noise_multiplier, back.noise_multiplier[:, ::-1], rtol=1e-12)


def test_clip_times_noise_is_the_same_for_everyone(paper):
    np.testing.assert_allclose(
        paper.clip_norm * paper.noise_multiplier,
        np.tile(paper.clip * paper.round_noise, (3, 1)).T,
        rtol=1e-12,
    )
    np.testing.assert_allclose(paper.clip_norm.mean(axis=1), paper.clip, rtol=1e-12)
    np.testing.assert_allclose(paper.round_rate, paper.sampling_rate.mean(axis=1), rtol=1e-12)


@st.composite
def random_terms(draw):
    """Any plan that a user could ask for,
    from a handful of clients to extreme rates and budgets.
    """
    clients = draw(st.integers(1, 5))
    rounds = draw(st.integers(1, 60))
    rate = 10.0 ** draw(st.floats(-3, 0))
    several = lambda element: draw(st.lists(element, min_size=clients, max_size=clients))  # noqa: E731
    under = "spend-as-you-go-literal"
    policy = draw(st.sampled_from([name for name in POLICIES.names if name != under]))
    terms = {
        "delta": 10.0 ** draw(st.floats(-9, -4)),
        "rounds": rounds,
        "rate": rate,
        "policy": policy,
    }
    if policy == "spend-as-you-go":
        terms["saving_rate"] = [rate * x for x in several(st.floats(0.05, 1))]
        terms["transition"] = several(st.integers(1, rounds))
    if policy == "weights":
        terms["weights"] = draw(st.lists(st.floats(0.1, 10), min_size=rounds, max_size=rounds))
    return several(st.floats(math.log(0.1), math.log(50)).map(math.exp)), terms


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(random_terms())
def test_no_client_is_ever_over_and_none_is_under(drawn):
    budgets, terms = drawn
    plan = plan_by_rdp(budgets, **terms)
    target = (
        np.full(len(budgets), min(budgets)) if terms["policy"] == "strictest" else np.array(budgets)
    )
    reached = np.array([final_epsilon(plan, n) for n in range(len(budgets))])
    assert (plan.epsilon <= plan.budget).all()
    assert (reached <= target).all()
    floor = plan.noise_multiplier.min(axis=0) <= 0.0501  # less noise than that is not handed out
    assert ((reached >= 0.999 * target) | floor).all()


@pytest.mark.full
def test_many_clients_are_within_five_hundredths_of_a_percent():
    budgets = np.random.default_rng(5).uniform(0.5, 30, 6000)
    plan = plan_by_rdp(budgets, delta=1e-6, rounds=10, rate=0.9, saving_rate=0.5)
    assert 3000 < plan.schedules.count < 6000, "distinct budgets beyond 4096 share targets"
    assert (plan.epsilon <= plan.budget).all()
    assert (plan.epsilon >= 0.9994 * plan.budget).all()
    for client in np.random.default_rng(6).choice(6000, 25, replace=False):
        assert 0.9994 * budgets[client] <= final_epsilon(plan, client) <= budgets[client]


def test_a_method_implies_its_policy():
    assert policy_for("dp-fedavg", None, saves=True) == "strictest"
    assert policy_for("idp-fedavg", None, saves=False) == "uniform"
    assert policy_for("time-adaptive", None, saves=True) == "spend-as-you-go"
    assert policy_for("time-adaptive", "geometric", saves=False) == "geometric"
    assert policy_for(None, None, saves=True) == "spend-as-you-go"
    assert policy_for(None, None, saves=False) == "optimal"
    assert policy_for("time-adaptive", None, saves=False) == "optimal"
    assert policy_for("adaptive-clip", None, saves=False) == "uniform"


@pytest.mark.parametrize(
    ("method", "policy", "names"),
    [
        ("dp-fedavg", "uniform", "contradicts"),
        ("idp-fedavg", "spend-as-you-go", "contradicts"),
        ("time-adaptive", "uniform", "contradicts"),
        ("fedavg", None, "not private"),
        ("fedprox", None, "fedprox"),
        (None, "generous", "generous"),
    ],
)
def test_contradictions_are_bad_input(method, policy, names):
    with pytest.raises(InvalidInput, match=names):
        policy_for(method, policy, saves=False)


def test_saving_needs_a_saving_rate():
    terms = {"delta": 1e-5, "rounds": 5, "rate": 0.5, "method": "time-adaptive"}
    with pytest.raises(InvalidInput, match="saving rate"):
        plan_by_rdp([10], policy="spend-as-you-go", **terms)
    assert plan_by_rdp([10], **terms).policy == "optimal"


def test_an_unused_saving_rate_is_mentioned():
    with pytest.warns(FedspendWarning, match="no effect"):
        plan_by_rdp([10], delta=1e-5, rounds=5, rate=0.5, policy="uniform", saving_rate=0.2)


def test_smallest_budget_gets_the_smallest_saving_rate():
    rng = np.random.default_rng(0)
    budgets, rates = rng.uniform(1, 30, 50), rng.uniform(0.1, 0.9, 50)
    given_out = assign_saving_rates(rates, budgets)
    assert sorted(given_out) == sorted(rates)
    assert (np.diff(given_out[np.argsort(budgets)]) >= 0).all()
    # and that is optimal for Eq. 8: no swap of two clients lowers sum q_n / c_n
    clip = plan_by_rdp(budgets, delta=1e-5, rounds=5, rate=0.9, policy="uniform").clip_norm[0]
    best = (given_out / clip).sum()
    for _ in range(200):
        i, j = rng.choice(50, 2, replace=False)
        swapped = given_out.copy()
        swapped[[i, j]] = swapped[[j, i]]
        assert (swapped / clip).sum() >= best - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.data(), st.floats(0.01, 1))
def test_lemma_1_solves_equation_1_and_theorem_1_holds(rounds, data, ratio):
    transition = data.draw(st.integers(1, rounds))
    spent = lemma_1(2.5, rounds=rounds, transition=transition, saving_rate=0.8 * ratio, rate=0.8)
    total = 0.0
    for t in range(1, rounds + 1):
        factor = ratio**2 if t < transition else 1.0
        assert spent[t - 1] == pytest.approx((2.5 - total) / (rounds - t + 1) * factor, rel=1e-9)
        total += spent[t - 1]
    assert total == pytest.approx(2.5)
    assert (np.diff(spent) >= -1e-12).all()
    assert np.ptp(spent[transition - 1 :]) == 0


def test_lemma_1_is_theory_only():
    """The quadratic model says that halving the rate quarters the cost. It does not: planning with
    it would overspend.
    """
    real = rdp(0.45, 2.424, 3.0) / rdp(0.9, 2.424, 3.0)
    assert real > 0.25 * 1.01
