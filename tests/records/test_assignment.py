"""Rates from budgets: never over by an independent accountant, little unspent, and the paper's fit
shown for what it is.
"""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from fedspend import records
from fedspend.errors import InvalidInput, Refused
from fedspend.records.table import LEAST_RATE, ladder
from tests.records.test_spending import PAPER, independent, settings


def check_exact(budgets, rates, terms):
    spent = independent(np.maximum(rates, 1e-12), terms)
    used = rates > 0
    assert (spent[used] <= budgets[used]).all(), "never over"
    inner = used & (rates < 1)
    assert (spent[inner] >= 0.995 * budgets[inner]).all(), "at most 0.5% unspent"
    nothing = np.flatnonzero(~used)
    if nothing.size:
        assert (independent(np.full(1, LEAST_RATE), terms) > budgets[nothing] * (1 - 1e-6)).all(), (
            "no rate could be met"
        )


@pytest.mark.full
@effort(max_examples=6)
@given(settings, st.integers(0, 2**32))
def test_exact_on_random_terms(terms, seed):
    budgets = 10 ** np.random.default_rng(seed).uniform(-2, 2, 20)
    check_exact(budgets, records.rates(budgets, **terms), terms)


@pytest.mark.full
def test_a_million_records():
    generator = np.random.default_rng(0)
    budgets = generator.uniform(0.1, 10, 1_000_000)
    before = time.process_time()
    rates = records.rates(budgets, **PAPER)
    assert time.process_time() - before < 1.0, "promised: in less than a second"
    some = generator.choice(budgets.size, 100, replace=False)  # the benchmark checks 1,000
    check_exact(budgets[some], rates[some], PAPER)
    assert np.unique(rates).size < 2000, "records share mechanisms, so that the ledger stays small"
    by_budget = np.argsort(budgets)
    assert (np.diff(rates[by_budget]) >= 0).all(), "who allows more is sampled at least as often"


def test_search_finds_the_same():
    budgets = np.array([0.01, 0.1, 0.7, 3.0, 100.0])
    exact, searched = (
        records.rates(budgets, **PAPER),
        records.rates(budgets, **PAPER, method="search"),
    )
    assert exact[0] == searched[0] == 0
    assert exact[-1] == searched[-1] == 1
    spent = records.epsilon(searched, **PAPER)[1:-1]
    assert (spent <= budgets[1:-1]).all()
    assert spent == pytest.approx(budgets[1:-1], rel=1e-4)
    assert records.epsilon(exact, **PAPER)[1:-1] == pytest.approx(budgets[1:-1], rel=4e-3)


def test_the_papers_fit_and_what_it_would_overspend():
    fit = records.fit_curve(records.Terms(**PAPER))
    assert fit.r_squared > 0.99
    assert fit.predict(fit.rate) == pytest.approx(np.exp(fit.a * fit.rate + fit.b) + fit.c)
    budgets = np.array([0.1, 0.5, 1.0, 5.0, 1000.0])
    rates = records.rates(budgets, **PAPER, method="scf")
    assert rates == pytest.approx(fit.rates(budgets))
    assert rates[-1] == 1
    assert fit.predict(rates[:-1]) == pytest.approx(budgets[:-1]), "the inverse of the fit"
    ratio = independent(rates, PAPER) / budgets
    assert 4 < ratio[0] < 14, "several times the budget at epsilon 0.1"
    assert ratio[3] < 1, "and unspent where budgets are large"
    told = records.Overspending.of(budgets, rates, records.Terms(**PAPER))
    assert told.share == 3 / 5
    assert (told.worst, told.worst_budget) == (pytest.approx(ratio[0], rel=1e-6), 0.1)


@pytest.mark.full
def test_the_fit_clamped_is_safe():
    budgets = np.geomspace(0.05, 200, 200)
    rates = records.rates(budgets, **PAPER, method="scf-clamped")
    assert (independent(np.maximum(rates, 1e-12), PAPER)[rates > 0] <= budgets[rates > 0]).all()
    assert records.Overspending.of(budgets, rates, records.Terms(**PAPER)).share == 0


def test_a_fit_that_cannot_be_made_is_refused():
    with pytest.raises(Refused, match="use method exact"):
        records.rates(
            [1.0],
            **(PAPER | {"noise_multiplier": 0.3, "rounds": 15, "local_steps": 50}),
            method="scf",
        )


def test_a_broken_ladder_would_be_caught():
    """`check_exact` must notice a ladder that rounds the wrong way, and one that wastes."""
    rungs = ladder(records.Terms(**PAPER))
    budgets = np.random.default_rng(1).uniform(0.1, 10, 50)
    above = rungs.rate[np.searchsorted(rungs.epsilon, budgets)]
    wasted = records.rates(budgets * 0.99, **PAPER)
    for broken in (above, wasted):
        with pytest.raises(AssertionError):
            check_exact(budgets, broken, PAPER)


@pytest.mark.parametrize(
    "budgets",
    [[0.0, 1.0], [1.0, -2.0], [math.nan], [math.inf], [], "much", None, [[1.0], [2.0, 3.0]]],
)
def test_bad_budgets(budgets):
    with pytest.raises(InvalidInput):
        records.rates(budgets, **PAPER)


def test_a_bad_budget_is_named():
    with pytest.raises(
        InvalidInput, match=r"positive and finite, got -2\.0 \(record number 2\); 1 more like it"
    ):
        records.rates([1.0, -2.0, math.nan], **PAPER)
    with pytest.raises(InvalidInput, match="did you mean 'exact'"):
        records.rates([1.0], **PAPER, method="exakt")


def test_a_single_budget_gives_a_number():
    assert isinstance(records.rates(1.0, **PAPER), float)
    assert records.rates([[1.0, 2.0]], **PAPER).shape == (1, 2)
