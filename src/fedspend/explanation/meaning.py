"""What an epsilon or trade-off curve means: odds before and after, and the best test's success.

Guarantee: every number is an upper bound, rounded up where it is put into words. Odds after a "yes"
are those of someone who runs the best test at that false positive rate; odds from epsilon alone
hold except with probability delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedspend.accounting.conversion import check_delta
from fedspend.accounting.tradeoff import TradeOff, from_claim
from fedspend.errors import InvalidInput, finite_number
from fedspend.explanation.observed import Sight

FPRS = (0.001, 0.01, 0.05, 0.1, 0.5)
PRIORS = ((1, 1), (1, 99))  # a coin toss, and one in a hundred
TOLD = 0.01  # the false positive rate that sentences speak of


@dataclass(frozen=True)
class Outcome:
    """The best test at one false positive rate: the share of members it finds, and odds after."""

    fpr: float
    tpr: float

    def odds(self, prior: tuple[int, int]) -> float:
        return prior[0] / prior[1] * self.tpr / self.fpr

    def numbers(self) -> dict[str, Any]:
        after = {f"{a}:{b}": chance(math.log(self.odds((a, b)))) for a, b in PRIORS}
        return {"false_positives": self.fpr, "true_positives": self.tpr, "sure_after_yes": after}


def outcomes(curve: TradeOff, fprs: Sequence[float] = FPRS) -> list[Outcome]:
    return [Outcome(fpr, float(tpr)) for fpr, tpr in zip(fprs, curve.tpr(list(fprs)), strict=True)]


def curve_numbers(curve: TradeOff) -> dict[str, Any]:
    return {
        "read_from": curve.how,
        "tests": [one.numbers() for one in outcomes(curve)],
        "best_advantage": curve.advantage,
        "best_accuracy": curve.accuracy,
    }


# --- a bare epsilon -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """An epsilon and a delta, for any mechanism."""

    epsilon: float
    delta: float

    @classmethod
    def checked(cls, epsilon: Any, delta: Any) -> Claim:
        value = finite_number("epsilon", epsilon)
        if not value >= 0:
            raise InvalidInput(
                f"epsilon must be 0 or more, got {epsilon!r}; give the number that was promised"
            )
        return cls(value, check_delta(delta))

    @property
    def curve(self) -> TradeOff:
        return from_claim(self.epsilon, self.delta)

    def posterior(self, prior: tuple[int, int]) -> float:
        """The largest chance that an observer with these prior odds can arrive at."""
        return chance(self.epsilon + math.log(prior[0] / prior[1]))

    def numbers(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "odds_factor_log10": self.epsilon / math.log(10),
            "sure_at_most": {f"{a}:{b}": self.posterior((a, b)) for a, b in PRIORS},
        } | curve_numbers(self.curve)


def sight_numbers(sight: Sight) -> dict[str, Any]:
    return {
        "observer": sight.observer,
        "who": sight.assumption,
        "promised": sight.promised,
        "epsilon": sight.epsilon,
    } | curve_numbers(sight.curve)


# --- in words -------------------------------------------------------------------------------------


def accused_words(curve: TradeOff, unit: str) -> str:
    """What the best test achieves, in everyday numbers.

    >>> from fedspend.accounting.tradeoff import gaussian
    >>> accused_words(gaussian(1.0), "client")
    'A test that wrongly accuses 1 in 100 clients that did not take part recognises at most 10 in \
100 that did.'
    """
    found = math.ceil(100 * float(curve.tpr(TOLD)) - 1e-9)
    return (
        f"A test that wrongly accuses 1 in 100 {unit}s that did not take part recognises at most "
        f"{found} in 100 that did."
    )


def guess_words(curve: TradeOff) -> str:
    """
    >>> from fedspend.accounting.tradeoff import gaussian
    >>> guess_words(gaussian(1.0))
    'If half took part, the best guess is right at most 69.2% of the time; a coin gets 50%.'
    """
    return (
        f"If half took part, the best guess is right at most {percent(curve.accuracy)} of the "
        "time; a coin gets 50%."
    )


def factor_words(epsilon: float) -> str:
    """e to the power of epsilon, rounded up.

    >>> factor_words(0.1), factor_words(1.0), factor_words(10.0), factor_words(50.0)
    ('1.11', '2.72', '22,027', 'about 10^22')
    """
    if epsilon > 20:
        return f"about 10^{math.ceil(epsilon / math.log(10))}"
    factor = math.exp(epsilon)
    return f"{math.ceil(factor - 1e-9):,}" if factor >= 100 else f"{rounded_up(factor, 2):.2f}"


def chance_words(delta: float) -> str:
    """
    >>> chance_words(1e-5), chance_words(0.003), chance_words(0.6)
    ('1 in 100,000', '1 in 333', '60%')
    """
    return f"1 in {math.floor(1 / delta + 1e-6):,}" if delta < 0.1 else percent(delta)


def odds_words(log_odds: float) -> str:
    """Odds as in betting.

    >>> odds_words(math.log(3)), odds_words(math.log(0.01)), odds_words(10.0), odds_words(90.0)
    ('3:1', '1:100', '22,027:1', 'about 10^40:1')
    """
    if log_odds > 20:
        return f"{factor_words(log_odds)}:1"
    odds = math.exp(abs(log_odds))
    if log_odds < 0:  # round towards even odds, so that it stays an upper bound
        return (
            f"1:{math.floor(10 * odds + 1e-6) / 10:g}" if odds < 10 else f"1:{int(odds + 1e-9):,}"
        )
    short = rounded_up(odds, 1)
    return f"{short:g}:1" if odds < 100 else f"{math.ceil(odds - 1e-9):,}:1"


def percent(share: float) -> str:
    """A share as a percentage, rounded up, with more digits near 0% and 100%.

    >>> percent(0.3207), percent(0.0009), percent(0.99983), percent(0.9999999), percent(1.0)
    ('32.1%', '0.09%', '99.983%', '100%', '100%')
    """
    digits = 1 if 0.001 <= share <= 0.99 else 2 if share <= 0.999 else 3
    shown = f"{rounded_up(100 * share, digits):.{digits}f}"
    return shown.rstrip("0").rstrip(".") + "%"


def rounded_up(value: float, digits: int) -> float:
    scale = float(10**digits)
    return math.ceil(value * scale - 1e-6) / scale


def chance(log_odds: float) -> float:
    """
    >>> chance(0.0), round(chance(math.log(3)), 6)
    (0.5, 0.75)
    """
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0
