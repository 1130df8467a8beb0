"""The price of the best of a random number of trials: exact sums, dp-accounting, limits."""

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedspend.accounting.trials import (
    BITS,
    TUNE_ORDERS,
    NegativeBinomial,
    trials_from,
    trials_of,
)
from fedspend.errors import InvalidInput
from fedspend.verification.second_accountant import best_of

means = st.floats(1.01, 60.0)
etas = st.sampled_from([-0.5, -0.2, 0.0, 0.4, 1.0, 3.0])


@st.composite
def distributions(draw):
    return trials_of("negative-binomial", draw(means), draw(etas))


@st.composite
def curves(draw):
    """Curves that are no curve of a sampled Gaussian, too: the price knows nothing of those."""
    slope, power = draw(st.floats(1e-6, 5.0)), draw(st.floats(0.0, 1.0))
    return slope * np.array(TUNE_ORDERS) ** power


@pytest.mark.full
@given(curves(), distributions())
def test_planner_and_second_accountant_agree(curve, trials):
    mine = trials.price(curve, TUNE_ORDERS)
    theirs = best_of(curve, TUNE_ORDERS, trials.content())
    np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    assert np.all(mine >= curve)


@pytest.mark.parametrize(
    "trials",
    [trials_of("negative-binomial", 10, 0.5), trials_of("geometric", 100)],
    ids=["negative binomial", "geometric"],
)
def test_the_second_accountant_finds_the_same_price(trials):
    """A few of the examples above, for every day."""
    for slope in (1e-3, 0.06, 3.0):
        curve = slope * np.array(TUNE_ORDERS)
        theirs = best_of(curve, TUNE_ORDERS, trials.content())
        np.testing.assert_allclose(trials.price(curve, TUNE_ORDERS), theirs, rtol=1e-9)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("mean", [1.5, 10.0, 100.0])
def test_dp_accounting_finds_the_same_price(eta, mean):
    from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders = np.array(TUNE_ORDERS)
    accountant = RdpAccountant(orders=TUNE_ORDERS)
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(3.0), mean, eta))
    mine = trials_of("negative-binomial", mean, eta).price(orders / 18, TUNE_ORDERS)
    np.testing.assert_allclose(mine, accountant._rdp, rtol=1e-6)


# --- exact sums over small mechanisms -------------------------------------------------------------


def log_best(trials, one):
    """Logs of the probabilities of the best of K draws from `one`; larger outputs are better.

    With 400 digits, since outputs that hardly ever win must not be lost in rounding.
    """
    with localcontext() as context:
        context.prec = 400
        upto = [Decimal(0)]
        for chance in one:
            upto.append(upto[-1] + Decimal(float(chance)))
        whole = upto[-1]
        at = [generating(trials, part / whole) for part in upto]
        parts = [float((b - a).ln()) for a, b in itertools.pairwise(at)]
    return np.array(parts)


def generating(trials, x):
    """E[x^K], of a Decimal."""
    eta, gamma = Decimal(trials.eta), Decimal(trials.gamma)
    z = 1 - (1 - gamma) * x
    if eta == 0:
        return z.ln() / gamma.ln()
    return ((-eta * z.ln()).exp() - 1) / ((-eta * gamma.ln()).exp() - 1)


def divergence(log_p, log_q, order):
    """Exact Rényi divergence, the larger of both directions, from logs of probabilities."""
    return max(
        np.logaddexp.reduce(order * a + (1 - order) * b) / (order - 1)
        for a, b in ((log_p, log_q), (log_q, log_p))
    )


def curve_of(p, q):
    return np.array([divergence(np.log(p), np.log(q), a) for a in TUNE_ORDERS])


ORDERS_READ = (0, 40, 80, 110, 150, 190)  # places in TUNE_ORDERS


def overshoot(trials, p, q, price):
    """By how much the exact divergence exceeds the price, at its worst order."""
    bound = price(curve_of(p, q), TUNE_ORDERS)
    left, right = log_best(trials, p), log_best(trials, q)
    return max(divergence(left, right, TUNE_ORDERS[i]) - bound[i] for i in ORDERS_READ)


@pytest.mark.full
@given(distributions(), st.integers(2, 6), st.floats(0.01, 3.0), st.integers(0, 2**31))
def test_no_small_mechanism_costs_more_than_its_price(trials, outputs, strength, seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(outputs)) + 1e-9
    q = p * np.exp(strength * rng.uniform(-1, 1, outputs))
    assert overshoot(trials, p / p.sum(), q / q.sum(), trials.price) <= 1e-9


def rare(epsilon, chance):
    """Neighbours that differ in how often a rare best output comes."""
    p = np.array([1 - chance, chance])
    q = np.array([1 - chance * math.exp(-epsilon), chance * math.exp(-epsilon)])
    return p, q


def in_the_middle(epsilon, chance, better):
    """A rare output that is the best one only where a better one, rarer there, does not come."""
    p = np.array([0.0, chance * math.exp(epsilon), better])
    q = np.array([0.0, chance, better * math.exp(epsilon)])
    p[0], q[0] = 1 - p.sum(), 1 - q.sum()
    return p, q


def broken_prices(trials):
    """Mistakes that people make: each must be noticed on some mechanism."""
    orders = np.array(TUNE_ORDERS)

    def one_trial(curve, _orders):
        return curve

    def without_the_mean(curve, listed):
        return trials.price(curve, listed) - math.log(trials.mean) / (orders - 1)

    def forgotten_factor(curve, _orders):
        second = ((1 - 1 / orders) * curve - math.log(trials.gamma) / orders).min()
        return curve + trials.eta * second + math.log(trials.mean) / (orders - 1)

    return {"one trial": one_trial, "mean": without_the_mean, "factor": forgotten_factor}


@pytest.mark.parametrize("name", ["one trial", "mean", "factor"])
def test_a_broken_price_is_noticed(name):
    trials = trials_of("geometric", 1000.0)
    right, wrong = trials.price, broken_prices(trials)[name]
    cases = [rare(0.5, 0.003), rare(600.0, 1e-9), in_the_middle(1.0, 1e-6, 0.1)]
    assert max(overshoot(trials, p, q, right) for p, q in cases) <= 1e-9
    assert max(overshoot(trials, p, q, wrong) for p, q in cases) > 0.1


def test_showing_the_number_of_trials_costs_more_than_the_price():
    """With K beside the winner, neighbours are told apart by more than is charged."""
    trials = trials_of("geometric", 20.0)
    p, q = rare(1.0, 0.3)
    at = TUNE_ORDERS.index(8.0)
    bound = trials.price(curve_of(p, q), TUNE_ORDERS)[at]
    gamma = trials.gamma
    shown = []
    for one in (p, q):
        k = np.arange(1, 100)[:, None]
        upto = np.append(0.0, np.cumsum(one))
        upto[-1] = 1.0
        shown.append(np.log(gamma * (1 - gamma) ** (k - 1) * np.diff(upto**k)).ravel())
    assert divergence(*shown, TUNE_ORDERS[at]) > bound


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 4.0])
def test_one_trial_for_certain_costs_what_one_trial_costs(eta):
    curve = 0.05 * np.array(TUNE_ORDERS)
    nearly = NegativeBinomial(eta, 1 - 1e-9)
    assert nearly.mean == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(nearly.price(curve, TUNE_ORDERS), curve, rtol=1e-5)
    assert nearly.draw(int(0.999999 * 2**BITS)) == 1
    assert nearly.draw(0) == 1


@pytest.mark.parametrize("gamma", [0.01, 0.3, 0.9])
def test_eta_close_to_0_is_the_logarithmic_distribution(gamma):
    curve = 0.1 * np.array(TUNE_ORDERS)
    limit, near = NegativeBinomial(0.0, gamma), NegativeBinomial(1e-7, gamma)
    assert limit.mean == pytest.approx(near.mean, rel=1e-5)
    assert limit.mean == pytest.approx((1 / gamma - 1) / math.log(1 / gamma))
    np.testing.assert_allclose(
        limit.price(curve, TUNE_ORDERS), near.price(curve, TUNE_ORDERS), rtol=1e-5
    )


def test_eta_1_is_the_geometric_distribution():
    trials = trials_of("geometric", 8.0)
    assert trials.gamma == pytest.approx(1 / 8)
    grid = [(n + 0.5) / 1000 for n in range(1000)]
    drawn = [trials.draw(int(u * 2**BITS)) for u in grid]
    assert drawn == stats.geom(1 / 8).ppf(grid).astype(int).tolist()


@given(distributions(), curves(), curves())
def test_a_costlier_trial_makes_a_costlier_tune(trials, one, other):
    both = trials.price(np.maximum(one, other), TUNE_ORDERS)
    assert np.all(both >= trials.price(one, TUNE_ORDERS))


# --- how many -------------------------------------------------------------------------------------


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    "trials",
    [
        trials_of("logarithmic", 6.0),
        trials_of("geometric", 4.0),
        trials_of("negative-binomial", 5.0, -0.5),
        trials_of("negative-binomial", 5.0, 2.5),
    ],
    ids=lambda one: f"{one.name} {one.mean:g}",
)
def test_the_number_of_trials_has_the_distribution_that_is_accounted(trials):
    """Chi-square of 3,000 draws against the generating function's own coefficients."""
    rng = np.random.default_rng(7)
    drawn = np.array([trials.draw(int.from_bytes(rng.bytes(BITS // 8))) for _ in range(3000)])
    k = np.arange(60.0)
    weight = np.ones(60)
    for n in range(2, 60):
        weight[n] = weight[n - 1] * (n - 1 + trials.eta) / n
    weight *= (1 - trials.gamma) ** k
    weight[0] = 0
    half = float(generating(trials, Decimal("0.5")))
    chance = weight * half / np.sum(weight * 0.5**k)
    frequent = np.flatnonzero(3000 * chance >= 5)
    seen = np.array([np.sum(drawn == n) for n in frequent])
    expected = 3000 * chance[frequent]
    seen, expected = np.append(seen, 3000 - seen.sum()), np.append(expected, 3000 - expected.sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-4
    assert drawn.mean() == pytest.approx(trials.mean, rel=0.15)


@pytest.mark.full
def test_the_last_word_ends_too():
    for trials in (trials_of("logarithmic", 200.0), trials_of("geometric", 1.01)):
        assert 1 <= trials.draw(2**BITS - 1) < 200_000


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("uniform", 10), "distribution must be one of"),
        (("geometric", 1.0), "above 1"),
        (("geometric", math.nan), "mean number of trials"),
        (("geometric", math.inf), "mean number of trials"),
        (("geometric", 1e9), "at most 1000"),
        (("geometric", 10, 0.5), "eta goes with"),
        (("negative-binomial", 10), "eta goes with"),
        (("negative-binomial", 10, -1.0), "eta must lie"),
        (("negative-binomial", 10, math.nan), "eta must be"),
        (("negative-binomial", 10, -0.9), "choose fewer trials or a larger eta"),
    ],
)
def test_bad_distributions_are_refused(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        trials_of(*arguments)


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"name": "poisson", "mean": 3.0},
        {"name": "negative-binomial", "eta": 0},
        {"name": "x"},
        [],
    ],
)
def test_content_that_describes_none_is_refused_by_both(content):
    with pytest.raises(InvalidInput):
        trials_from(content)
    with pytest.raises(InvalidInput):
        best_of([0.1], [2.0], content)


@given(distributions())
def test_a_distribution_survives_its_own_description(trials):
    assert trials_from(trials.content()) == trials
