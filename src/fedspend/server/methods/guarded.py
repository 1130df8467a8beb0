"""Holds any method to its plan: no round begins on terms that cost more than planned.

Guarantee: in every round, each client is sampled at most at its planned rate, and update and bit
together cost it at most what the planned noise multiplier costs:
`(clip / deviation)^2 + 1 / (2 sigma_b)^2 <= 1 / sigma^2`. Records keep their planned rates, steps,
clip and noise. This holds for our methods and for a user's own: other terms are refused before
anything is reserved or sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.errors import Refused
from fedspend.planning.plan import Plan
from fedspend.records.planning import RecordPlan
from fedspend.server.methods.base import Method, Release, RoundTerms, State

if TYPE_CHECKING:
    from fedspend.client.task import RecordTerms
    from fedspend.planning.protocol import AnyPlan

_ROUNDING = 1e-9
_MOST_BIT_NOISE = 2.0**28


@dataclass(frozen=True)
class Guarded:
    """`method`, with every round's terms passed through `check`, which refuses or returns them."""

    method: Method
    check: Callable[[str, int, RoundTerms], RoundTerms]  # (method and round, round, terms)

    @property
    def name(self) -> str:
        return self.method.name

    def start(self) -> State:
        return self.method.start()

    def terms(self, round: int, state: State) -> RoundTerms:
        who = f"round {round + 1}, method {self.name!r}"
        return self.check(who, round, plain(who, self.method.terms(round, state)))

    def learn(self, state: State, release: Release) -> State:
        return self.method.learn(state, release)


def held_to(plan: AnyPlan, method: Method) -> Method:
    """The method, with every round's terms checked against the plan."""
    if plan.unit == "client":
        of_clients = Plan.expect(plan, "a plan of clients")
        return Guarded(method, partial(checked_for_clients, of_clients))
    return Guarded(
        method, partial(checked_for_records, RecordPlan.expect(plan, "a plan of records"))
    )


def plain(who: str, terms: RoundTerms) -> RoundTerms:
    """The same terms as numbers and arrays of our own, in doubles: what is checked is what is used.

    A masked array hides entries from every check, low precision loses noise when it is squared, and
    an array that the method keeps could change after the check.
    """
    if any(isinstance(x, np.ma.MaskedArray) for x in (terms.sampling_rate, terms.clip_norm)):
        raise Refused(f"{who}: masked arrays are refused; give plain ones")
    try:
        return RoundTerms(
            sampling_rate=np.array(terms.sampling_rate, dtype=np.float64, subok=False),
            clip_norm=np.array(terms.clip_norm, dtype=np.float64, subok=False),
            deviation=float(terms.deviation),
            denominator=float(terms.denominator),
            bit_deviation=None if terms.bit_deviation is None else float(terms.bit_deviation),
            records=terms.records,
        )
    except (TypeError, ValueError):
        raise Refused(f"{who}: its terms must be numbers") from None


def checked_for_clients(plan: Plan, who: str, round: int, terms: RoundTerms) -> RoundTerms:
    """Refuse terms that cost a client more than planned. Conditions are written to fail for NaN."""
    table, rate, clip = plan.schedules, terms.sampling_rate, terms.clip_norm
    clients = len(plan.clients)
    if rate.shape != (clients,) or clip.shape != (clients,) or terms.records is not None:
        raise Refused(f"{who}: its terms do not match the {clients} clients of the plan")
    if not (0 < terms.deviation < np.inf and 0 < terms.denominator < np.inf):
        raise Refused(
            f"{who}: noise of deviation {terms.deviation!r} over {terms.denominator!r} clients is "
            "not a planned release"
        )
    planned_rate = table.sampling_rate[round, table.of_client]
    _require(
        (rate >= 0) & (rate <= planned_rate * (1 + _ROUNDING)),
        plan.clients,
        f"{who}: the sampling rate is not between 0 and the planned one",
    )
    if terms.bit_deviation is not None and not 1e-6 <= terms.bit_deviation <= _MOST_BIT_NOISE:
        raise Refused(f"{who}: noise of deviation {terms.bit_deviation!r} on bits cannot be drawn")
    bit = 0.0 if terms.bit_deviation is None else (2 * terms.bit_deviation) ** -2.0
    cost: FloatArray = (clip / terms.deviation) ** 2 + bit
    allowed = table.noise_multiplier[round, table.of_client] ** -2.0
    _require(
        (clip >= 0) & (cost <= allowed * (1 + _ROUNDING)),
        plan.clients,
        f"{who}: clip and noise cost more than was planned",
    )
    return terms


def checked_for_records(plan: RecordPlan, who: str, round: int, terms: RoundTerms) -> RoundTerms:
    """Refuse terms that cost a record more than planned; those of a client's records are checked
    when its task is made.
    """
    own, clients = terms.records, len(plan.clients)
    if own is None or terms.bit_deviation is not None:
        raise Refused(
            f"{who}: records are protected only by the noise on their own steps, so its terms need "
            "records and no bit; refusing to run"
        )
    if terms.sampling_rate.shape != (clients,):
        raise Refused(f"{who}: its terms are not for the {clients} clients")
    _require(
        (terms.sampling_rate >= 0)
        & (terms.sampling_rate <= plan.terms.client_rate * (1 + _ROUNDING)),
        plan.clients,
        f"{who}: a sampling rate is above the planned one",
    )

    def checked(number: int) -> RecordTerms:
        asked = own(number)
        check_record_terms(who, plan, round, number, asked)
        return asked

    return replace(terms, records=checked)


def check_record_terms(
    who: str, plan: RecordPlan, round: int, number: int, asked: RecordTerms
) -> None:
    """Refuse terms that cost one of a client's records more than planned."""
    classes = plan.classes_of_client[number]
    rate, steps = plan.schedules.sampling_rate[round][classes], plan.steps[round][classes]
    client = plan.clients[number]
    if not (
        asked.rate.shape == rate.shape
        and asked.steps.shape == steps.shape
        and bool((asked.rate <= rate * (1 + _ROUNDING)).all())
        and bool((asked.steps <= steps).all())
        and asked.noise_multiplier >= plan.terms.noise_multiplier * (1 - _ROUNDING)
        and asked.clip == plan.clip
        and asked.by_norm == plan.by_norm
        and (not plan.by_norm or within_norm_budgets(asked, plan, classes))
    ):
        raise Refused(f"{who}, client {client!r}: its records' terms are not the planned ones")


def within_norm_budgets(asked: RecordTerms, plan: RecordPlan, classes: IntArray) -> bool:
    """Whether no record may pay for more, in squared clips, than the plan accounts."""
    planned = plan.steps.sum(axis=0)[classes]
    given = asked.norm_budget
    return (
        given is not None
        and given.shape == planned.shape
        and bool((given <= planned * (1 + _ROUNDING)).all())
    )


def _require(good: BoolArray, clients: tuple[str, ...], otherwise: str) -> None:
    if not bool(good.all()):
        client = clients[int(np.flatnonzero(~good)[0])]
        raise Refused(f"{otherwise} for client {client!r}; refusing to begin the round")
