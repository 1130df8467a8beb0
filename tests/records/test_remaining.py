"""Rates on top of past spending: never over by the second accountant, little unspent, and nothing
new where nothing was spent.
"""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.errors import InvalidInput, Refused
from fedspend.records import Terms
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted
from fedspend.records.remaining import Past, highest_rates, norms_on_top, steps_on_top
from fedspend.records.replanning import extended_records
from fedspend.records.verification import verify_records
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

TERMS = Terms(delta=1e-5, rounds=4, local_steps=5, client_rate=0.8, noise_multiplier=8.0)
SAVING = ((0.5, 2), (1.0, 2))


def at_order(mechanisms, history, order):
    """What one history has spent, by the second accountant, at one order."""
    total = np.zeros(1)
    for n in np.flatnonzero(mechanisms.history == history):
        inner = mechanisms.steps[n] * renyi_divergence(
            float(mechanisms.rate[n]), float(mechanisms.noise[n]), order
        )
        p = float(mechanisms.client_rate[n])
        grown = (
            inner
            if p == 1
            else np.logaddexp(math.log1p(-p), math.log(p) + (order - 1) * inner) / (order - 1)
        )
        total += mechanisms.count[n] * grown
    return total


def unspent(records):
    return Past(Mechanisms.none(1), np.zeros(records, dtype=np.int64))


def epsilons(past, table, terms=TERMS, steps=None):
    """Past and a run with these rates, (rounds, records), together. The first accountant finds the
    order, the second reads there: an upper bound, whatever the first one says.
    """
    run = Mechanisms.of_schedules(
        np.full(table.shape, terms.noise_multiplier),
        table,
        terms.client_rate,
        terms.local_steps if steps is None else steps,
    )
    total = Mechanisms.joined([past.mechanisms.take(past.of_record), run], table.shape[1])
    lowest, order = total.best(np.full(table.shape[1], terms.delta))
    divergence = np.array(
        [at_order(total, n, order[n : n + 1]) for n in range(table.shape[1])]
    ).ravel()
    found = np.where(lowest > 0, epsilon_at(divergence, order, terms.delta), 0.0)
    np.testing.assert_allclose(found, lowest, rtol=1e-6, atol=1e-12)
    return found


def histories(generator, count):
    """Pasts of one to three kinds of rounds each; the first is empty."""
    parts = [(np.zeros((1, count)), np.ones((1, count)))]
    for _ in range(3):
        rate = np.where(
            generator.random(count) < 0.7, np.exp(generator.uniform(np.log(1e-3), 0, count)), 0.0
        )
        parts.append(
            (
                np.where(np.arange(count) == 0, 0.0, rate)[None],
                np.full((1, count), generator.choice([1.5, 4.0, 9.0])),
            )
        )
    rows = [
        Mechanisms.of_schedules(noise, rate, float(generator.choice([0.5, 1.0])), 3)
        for rate, noise in parts
    ]
    return Mechanisms.joined(rows, count)


@pytest.mark.full
@given(seed=st.integers(0, 2**32 - 1), stretches=st.sampled_from([((1.0, 4),), SAVING]))
@settings(max_examples=20)
def test_past_and_run_never_exceed_the_budget_and_nearly_use_it(seed, stretches):
    generator = np.random.default_rng(seed)
    past = Past(histories(generator, 6), generator.integers(0, 6, 12))
    before = epsilons(past, np.zeros((1, 12)))
    budget = before * generator.uniform(0.9, 3.0, 12) + np.exp(
        generator.uniform(np.log(0.01), np.log(3), 12)
    )
    rate = highest_rates(budget, past, TERMS, stretches)
    shares = np.repeat(*map(np.array, zip(*stretches, strict=True)))
    total, used, free = epsilons(past, shares[:, None] * rate), rate > 0, (rate > 0) & (rate < 1)
    assert (total[used] <= budget[used]).all()
    assert (total[free] >= budget[free] * 0.995).all()
    assert (rate[budget < before] == 0).all()


def owners(count):
    return np.arange(count) % 2


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(rates="scf-clamped"),
        Wanted(saving_share=0.5),
        Wanted(method="minimum"),
        Wanted(method="dropout"),
        Wanted(method="filter"),
    ],
)
def test_without_a_past_it_is_the_plan_of_the_budgets(wanted):
    budget = np.geomspace(0.1, 9, 40)
    plain, on_top = (
        plan_records(budget, owners(40), TERMS, clients=["a", "b"], wanted=wanted, past=past)
        for past in (None, unspent(40))
    )
    assert on_top.hash == plain.hash


@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter"])
def test_every_method_stays_within_what_is_left(method):
    generator = np.random.default_rng(5)
    budget = np.repeat([0.5, 1.0, 2.0, 6.0], 5)
    first = plan_records(budget * 0.6, owners(20), TERMS, clients=["a", "b"])
    spent = first.schedules
    past = Past(
        Mechanisms.of_schedules(spent.noise_multiplier, spent.sampling_rate, 0.8, 5),
        generator.permutation(spent.of_client),
    )
    plan = plan_records(
        budget, owners(20), TERMS, clients=["a", "b"], wanted=Wanted(method=method), past=past
    )
    totals = epsilons(past, plan.rate, steps=plan.steps[:, plan.schedules.of_client])
    used = plan.rate.max(axis=0) > 0
    assert used.any()
    assert (totals[used] <= budget[used]).all()
    assert verify_records(plan).ok
    if method == "rpdp":
        free = (plan.rate[0] > 0) & (plan.rate[0] < 1)
        assert free.any()
        assert (totals[free] >= 0.995 * budget[free]).all()
    elif method == "filter":
        last = plan.steps[:, plan.schedules.of_client[used]]
        assert ((last > 0) & (last < 5)).any(), "somebody stops within a round"
    else:
        assert np.unique(plan.rate[plan.rate > 0]).size == 1


def test_nothing_left_means_rate_zero_and_nobody_left_is_refused():
    budget = np.array([0.5, 0.5, 2.0, 2.0])
    first = plan_records(budget, owners(4), TERMS, clients=["a", "b"])
    table = first.schedules
    past = Past(
        Mechanisms.of_schedules(table.noise_multiplier, table.sampling_rate, 0.8, 5),
        table.of_client,
    )
    with pytest.raises(Refused, match="no record has enough left"):
        plan_records(first.epsilon, owners(4), TERMS, clients=["a", "b"], past=past)
    more = np.array([0.5, 0.5, 2.0, 2.0]) * [0.99, 0.99, 2, 2]
    plan = plan_records(more, owners(4), TERMS, clients=["a", "b"], past=past)
    assert (plan.rate.max(axis=0) > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter"])
def test_who_is_left_out_sets_no_rate_for_others(method):
    budget, out = (
        np.array([0.06, 0.06, 1.0, 1.0, 4.0, 4.0]),
        np.array([True, True, False, False, False, False]),
    )
    options = {"clients": ["a", "b"], "wanted": Wanted(method=method)}
    plan = plan_records(budget, owners(6), TERMS, **options, left_out=out, past=unspent(6))
    without = plan_records(budget[2:], owners(4), TERMS, **options, past=unspent(4))
    assert (plan.rate[:, :2] == 0).all()
    np.testing.assert_array_equal(plan.rate[:, 2:], without.rate)


def test_more_spent_means_less_left():
    budget = np.full(8, 0.7)
    table = np.linspace(0, 0.3, 8)[None].repeat(3, axis=0)
    past = Past(Mechanisms.of_schedules(np.full(table.shape, 4.0), table), np.arange(8))
    rate = highest_rates(budget, past, TERMS, ((1.0, 4),))
    assert (np.diff(rate) <= 0).all()
    assert rate[0] > rate[-1]
    lasts, within = steps_on_top(0.5, budget, past, TERMS), norms_on_top(budget, past, TERMS)
    assert (np.diff(lasts) <= 0).all()
    assert (np.diff(within) <= 0).all()
    assert lasts[0] > lasts[-1]
    assert within[0] > within[-1] > 0


def test_past_rounds_with_discrete_noise_are_read_at_whole_orders():
    table = np.full((3, 1), 0.4)
    kinds = [
        Mechanisms.of_schedules(np.full((3, 1), 3.0), table, discrete=discrete)
        for discrete in (False, True)
    ]
    plain, whole = (
        highest_rates(np.array([2.0]), Past(one, np.zeros(1, dtype=np.int64)), TERMS, ((1.0, 4),))
        for one in kinds
    )
    assert 0 < whole[0] < plain[0]
    assert epsilons(Past(kinds[1], np.zeros(1, dtype=np.int64)), np.full((4, 1), whole[0])) <= 2.0


def test_a_million_records_with_one_past_are_cheap():
    past = Past(
        Mechanisms.of_schedules(np.full((2, 1), 4.0), np.full((2, 1), 0.1)),
        np.zeros(1_000_000, dtype=np.int64),
    )
    budget = np.random.default_rng(0).uniform(0.1, 10, 1_000_000)
    # the table, once
    highest_rates(budget[:1], Past(past.mechanisms, past.of_record[:1]), TERMS, ((1.0, 4),))
    start = time.process_time()
    highest_rates(budget, past, TERMS, ((1.0, 4),))
    assert time.process_time() - start < 2, "about 0.1 s here"


# --- lost rounds ---


@pytest.mark.full(but=["1-wanted2", "1-wanted3", "3-wanted2", "3-wanted3"])
@pytest.mark.parametrize(
    "wanted",
    [Wanted(), Wanted(saving_share=0.5), Wanted(method="minimum"), Wanted(method="filter")],
)
@pytest.mark.parametrize("begun", [1, 3])
def test_the_rest_is_planned_anew(wanted, begun):
    budget = np.repeat([0.05, 0.4, 1.0, 3.0], 4)
    plan = plan_records(budget, owners(16), TERMS, clients=["a", "b"], wanted=wanted)
    spent = Mechanisms.of_schedules(
        plan.schedules.noise_multiplier[:begun], plan.schedules.sampling_rate[:begun], 0.8, 5
    )
    elsewhere = Mechanisms.of_schedules(
        np.full((1, 2), 12.0 / plan.epsilon[15]), np.array([[0.0, 1.0]])
    )
    others = Past(elsewhere, (np.arange(16) == 15).astype(np.int64))
    lifetime = np.where(np.arange(16) == 15, plan.epsilon, budget)  # which others have a part of
    longer = extended_records(plan, begun, 1, spent, others, lifetime)
    assert longer.rounds == 5
    assert longer.parameters["planned_anew_after"] == begun
    np.testing.assert_array_equal(longer.rate[:begun], plan.rate[:begun])
    assert verify_records(longer).ok
    limit = plan.budget if wanted.method == "filter" else plan.epsilon
    assert (longer.epsilon <= limit).all()
    idle = plan.rate.max(axis=0) == 0
    assert (longer.rate[:, idle] == 0).all()
    free = ~idle & (np.arange(16) != 15)
    if wanted.method != "filter":
        assert (longer.rate[begun:4, free] < plan.rate[begun:, free]).all(), (
            "one round more, so less in each"
        )
        assert (longer.epsilon[free] >= 0.995 * plan.epsilon[free]).all()
    together = epsilons(others, longer.rate, steps=longer.steps[:, longer.schedules.of_client])
    assert (together <= lifetime).all()
    assert longer.epsilon[15] < 0.995 * plan.epsilon[15]
    if wanted.saving_share and begun == 1:
        assert longer.rate[1, free] == pytest.approx(0.5 * longer.rate[-1, free]), "still saving"


@pytest.mark.full
def test_a_filter_by_norms_goes_by_what_is_left_and_is_not_planned_anew():
    wanted, whole = Wanted(method="filter", charge="norm"), replace(TERMS, client_rate=1.0)
    past = Past(
        Mechanisms.of_schedules(np.full((2, 1), 6.0), np.full((2, 1), 0.5)),
        np.zeros(4, dtype=np.int64),
    )
    plan = plan_records(
        np.array([0.9, 0.9, 2.0, 2.0]),
        owners(4),
        whole,
        clients=["a", "b"],
        wanted=wanted,
        past=past,
    )
    fresh = plan_records(plan.budget, owners(4), whole, clients=["a", "b"], wanted=wanted)
    assert (plan.steps.sum(axis=0) < fresh.steps.sum(axis=0)).all()
    totals = epsilons(past, plan.rate, whole, plan.steps[:, plan.schedules.of_client])
    assert (totals <= plan.budget).all()
    assert (totals >= 0.999 * plan.budget).all()
    assert verify_records(plan).ok
    with pytest.raises(InvalidInput, match="filter by norms"):
        extended_records(plan, 1, 1, Mechanisms.none(plan.schedules.count), unspent(4), plan.budget)
