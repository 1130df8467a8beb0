"""Odds and tests in numbers and words: always on the safe side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.errors import InvalidInput
from fedspend.explanation.meaning import (
    Claim,
    Outcome,
    accused_words,
    chance,
    odds_words,
    outcomes,
    percent,
)


def test_bayes_by_hand():
    claim = Claim.checked("1.0986122886681098", "1e-6")  # e^epsilon = 3
    assert claim.posterior((1, 1)) == pytest.approx(0.75)
    assert claim.posterior((1, 99)) == pytest.approx(3 / 102)
    one = outcomes(claim.curve, [0.1])[0]
    assert one.tpr == pytest.approx(0.3 + 1e-6)
    assert claim.curve.accuracy == pytest.approx(0.75, abs=1e-6)
    assert Outcome(0.01, 0.3).odds((1, 99)) == pytest.approx(30 / 99)


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [
        ("-1", "1e-5", "epsilon must be 0 or more, got '-1'"),
        ("nan", "1e-5", "epsilon must be a finite number, got 'nan'"),
        ("1", "0", "delta must lie strictly between 0 and 1, got '0'"),
        ("1", "one", "delta must be a number, got 'one'"),
    ],
)
def test_bad_numbers(epsilon, delta, words):
    with pytest.raises(InvalidInput, match=words):
        Claim.checked(epsilon, delta)


@given(st.floats(0, 1))
def test_percentages_are_rounded_up(share):
    shown = float(percent(share).removesuffix("%"))
    assert 100 * share <= shown + 1e-5
    assert shown <= 100 * share + 0.11


@given(st.floats(-15, 15))
def test_odds_are_rounded_up(log_odds):
    yes, no = (float(part.replace(",", "")) for part in odds_words(log_odds).split(":"))
    assert math.log(yes / no) >= log_odds - 1e-4
    assert math.log(yes / no) <= log_odds + 0.11


def test_a_huge_epsilon_is_no_overflow():
    numbers = Claim(5000.0, 1e-5).numbers()
    assert numbers["sure_at_most"]["1:99"] == 1.0
    assert numbers["best_accuracy"] == 1.0
    assert "at most 100 in 100" in accused_words(Claim(5000.0, 1e-5).curve, "client")
    assert chance(-800.0) == 0.0
