"""Holds any method to its plan: no round begins on terms that cost more than planned.

Guarantee: in every round, each client is sampled at most at its planned rate, and update, bit and
metric together cost it at most what the planned noise multiplier costs: `(clip / deviation)^2 + 1 /
(2 sigma_b)^2 + 1 / (2 sigma_e)^2 <= 1 / sigma^2`. Noise on bits and metrics is not below what the
plan states, and no metric is released that it does not state. Records keep their planned rates,
steps, clip and noise. This holds for our methods and for a user's own: other terms are refused
before anything is reserved or sampled.
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
_LEAST_NUMBER_NOISE, _MOST_NUMBER_NOISE = 1e-6, 2.0**28


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


@dataclass(frozen=True)
class Measured:
    """`method`, with a private metric in every round. Methods need not know of it: clips and noise
    of the plan already leave room.
    """

    method: Method
    deviation: float

    @property
    def name(self) -> str:
        return self.method.name

    def start(self) -> State:
        return self.method.start()

    def terms(self, round: int, state: State) -> RoundTerms:
        return replace(self.method.terms(round, state), metric_deviation=self.deviation)

    def learn(self, state: State, release: Release) -> State:
        return self.method.learn(state, release)


def held_to(plan: AnyPlan, method: Method) -> Method:
    """The method, with the metric that the plan states, and with every round's terms checked
    against the plan.
    """
    if plan.unit == "client":
        of_clients = Plan.expect(plan, "a plan of clients")
        if of_clients.metric_noise is not None:
            method = Measured(method, of_clients.metric_noise)
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
            metric_deviation=(
                None if terms.metric_deviation is None else float(terms.metric_deviation)
            ),
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
    numbers = cost_of_number(who, "bits", terms.bit_deviation, plan.bit_noise)
    if terms.metric_deviation is not None and plan.metric_noise is None:
        raise Refused(f"{who}: a metric would be released, but the plan states none")
    numbers += cost_of_number(who, "metrics", terms.metric_deviation, plan.metric_noise)
    cost: FloatArray = (clip / terms.deviation) ** 2 + numbers
    allowed = table.noise_multiplier[round, table.of_client] ** -2.0
    _require(
        (clip >= 0) & (cost <= allowed * (1 + _ROUNDING)),
        plan.clients,
        f"{who}: clip and noise cost more than was planned",
    )
    return terms


def cost_of_number(who: str, what: str, deviation: float | None, planned: float | None) -> float:
    """What a bit or a metric costs every client: `1 / (2 sigma)^2`, its part of `1 / sigma^2`.

    The noise must be possible to draw, and not below what the plan states.
    """
    if deviation is None:
        return 0.0
    if not _LEAST_NUMBER_NOISE <= deviation <= _MOST_NUMBER_NOISE:
        raise Refused(f"{who}: noise of deviation {deviation!r} on {what} cannot be drawn")
    if planned is not None and not deviation >= planned * (1 - _ROUNDING):
        raise Refused(
            f"{who}: noise of deviation {deviation:.6g} on {what} is below the plan's {planned:.6g}"
        )
    return float((2 * deviation) ** -2.0)


def checked_for_records(plan: RecordPlan, who: str, round: int, terms: RoundTerms) -> RoundTerms:
    """Refuse terms that cost a record more than planned; those of a client's records are checked
    when its task is made.
    """
    own, clients = terms.records, len(plan.clients)
    if own is None or terms.bit_deviation is not None or terms.metric_deviation is not None:
        raise Refused(
            f"{who}: records are protected only by the noise on their own steps, so its terms need "
            "records and no bit or metric; refusing to run"
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
    if plan.silos is not None:  # the rates are the silo's own, and it checks them
        rate = steps = rate[:0]
    if not (
        asked.rate.shape == rate.shape
        and asked.steps.shape == steps.shape
        and bool((asked.rate <= rate * (1 + _ROUNDING)).all())
        and bool((asked.steps <= steps).all())
        and asked.noise_multiplier >= plan.terms.noise_multiplier * (1 - _ROUNDING)
        and asked.clip == plan.clip
        and asked.by_norm == plan.by_norm
        and asked.at_silo == (plan.silos is not None)
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
