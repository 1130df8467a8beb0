"""From budgets to a rate for every round: rPDP and the baselines of Liu et al. (2024, Section 7),
and saving for later.

| method | who is sampled |
|---|---|
| `rpdp` | every record at its own rate; saving: at a share of it before the transition round |
| `minimum` | every record at the rate of the strictest budget |
| `dropout` | records that allow the mean budget or more, at its rate; the others not at all |
| `filter` | every record at one common rate as long as its budget pays (`filtering`: by norms) |

Guarantee: rates come from `exact`, or are clamped to it, so no record spends more than its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.choices import choose
from fedspend.errors import InvalidInput, Refused, finite_number
from fedspend.records.assignment import SAFE_METHODS, assign
from fedspend.records.filtering import filter_table, norm_table
from fedspend.records.spending import Stretches
from fedspend.records.terms import Terms

METHODS = ("rpdp", "minimum", "dropout", "filter")
CHARGES = ("clip", "norm")


@dataclass(frozen=True)
class Wanted:
    """How budgets become rates. `saving_share` and `transition` are for rpdp, `common_rate` and
    `charge` for filter.
    """

    method: str = "rpdp"
    rates: str = "exact"
    saving_share: float | None = None
    transition: int | None = None  # first round at the full rate, counted from 1
    common_rate: float | None = None
    # what a step costs a record: the clip (default), or the norm of its own gradient
    charge: str | None = None

    def __post_init__(self) -> None:
        choose("method", self.method, METHODS)
        if self.rates == "scf":
            raise Refused(
                "rates from the curve fit overspend, so training does not use them; use "
                "scf-clamped or exact"
            )
        choose("way to rates", self.rates, SAFE_METHODS)
        if self.saving_share is not None and not (self.method == "rpdp" and self.rates == "exact"):
            raise InvalidInput(
                "saving_share works only with method rpdp and rates exact; remove it or change "
                "the others"
            )
        if (
            self.saving_share is not None
            and not 0.01 <= finite_number("saving_share", self.saving_share) <= 1
        ):
            raise InvalidInput(f"saving_share must be from 0.01 to 1, got {self.saving_share!r}")
        if self.transition is not None and self.saving_share is None:
            raise InvalidInput("transition needs saving_share; give both or neither")
        if self.common_rate is not None and not (
            self.method == "filter" and 0 < finite_number("common_rate", self.common_rate) <= 1
        ):
            raise InvalidInput(
                "common_rate is for method filter and must be above 0 and at most 1, got "
                f"{self.common_rate!r}"
            )
        if self.charge is not None:
            choose("charge", self.charge, CHARGES)
            if self.method != "filter":
                raise InvalidInput(
                    f"charge is for method filter, but the method is {self.method!r}; remove "
                    "charge or use filter"
                )
        if self.charge == "norm" and self.common_rate not in (None, 1):
            raise InvalidInput(
                "a filter by norms needs every record in every step: common_rate must be 1, got "
                f"{self.common_rate!r}"
            )

    @property
    def policy(self) -> str:
        return "uniform" if self.saving_share is None else "spend-as-you-go"

    def parameters(self) -> dict[str, Any]:
        return {"policy": self.policy} | {
            name: value for name, value in vars(self).items() if value is not None
        }


def rate_table(
    budget: FloatArray, terms: Terms, wanted: Wanted
) -> tuple[FloatArray, FloatArray | None, IntArray]:
    """Rates and steps, each (rounds, classes), and the class of each record. Steps None: all local
    steps in every round.
    """
    ones = np.ones(terms.rounds)
    match wanted.method:
        case "minimum":
            rate = np.full(
                budget.shape, float(assign(budget.min(keepdims=True), terms, wanted.rates)[0])
            )
        case "dropout":
            rate = np.where(
                budget >= budget.mean(),
                assign(budget.mean(keepdims=True), terms, wanted.rates)[0],
                0.0,
            )
        case "filter":
            by_norm = wanted.charge == "norm"
            rate, steps, of_record = (
                norm_table(budget, terms)
                if by_norm
                else filter_table(budget, terms, wanted.common_rate)
            )
            return (
                rate,
                None if np.all((steps == terms.local_steps) | (rate == 0)) else steps,
                of_record,
            )
        case _ if wanted.saving_share is not None:
            ones = round_shares(terms.rounds, wanted)
            rate = assign(budget, terms, stretches=stretches_of(ones))
        case _:
            rate = assign(budget, terms, wanted.rates)
    values, of_record = np.unique(rate, return_inverse=True)
    return ones[:, None] * values, None, of_record


def round_shares(rounds: int, wanted: Wanted) -> FloatArray:
    """Each round's share of the full rate."""
    begins = rounds // 2 + 1 if wanted.transition is None else wanted.transition
    if not 1 <= begins <= rounds:
        raise InvalidInput(
            f"transition must be a round from 1 to {rounds}, got {wanted.transition!r}"
        )
    return np.where(np.arange(1, rounds + 1) < begins, float(wanted.saving_share or 1.0), 1.0)


def stretches_of(shares: FloatArray) -> Stretches:
    values, counts = np.unique(shares, return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))
