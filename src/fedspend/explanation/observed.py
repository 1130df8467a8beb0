"""What each observer of a plan could tell about one unit: the trade-off curve of the unit's rounds.

Guarantee: every curve is an upper bound for its observer, computed from the rounds and not from
what the plan claims about them; a claim that the rounds do not support is refused. No curve is
above what its epsilon and the plan's delta allow. An observer who sees less can do no more than one
who sees more, so the curve of the second also bounds the first. Discrete noise in plans without
grid steps (version 0.1) is accounted by Rényi divergences alone, and so is client sampling of
records: no privacy loss distribution is proven for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedspend.accounting.accountants import PLD
from fedspend.accounting.conversion import epsilon as epsilon_of
from fedspend.accounting.pld import schedule_epsilon
from fedspend.accounting.rdp import ORDERS, rdp
from fedspend.accounting.tradeoff import (
    TradeOff,
    from_claim,
    from_renyi,
    gaussian,
    known_participation,
    sampled_gaussians,
    tightest,
)
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan, Unit
from fedspend.records.planning import RecordPlan
from fedspend.records.verification import divergence, observers_of_records, rounds_of
from fedspend.verification.observers import (
    OF_DISTRIBUTED,
    Divergence,
    Observer,
    no_amplification,
    observers_of,
    participation_revealed,
)
from fedspend.verification.second_accountant import epsilon_at

Numbers = tuple[float, ...]
Rounds = tuple[
    Numbers, Numbers, tuple[int, ...]
]  # rates, noise multipliers, number of rounds with each
COLLUDERS = 10  # as in `fedspend verify`
GRID_TOLERANCE = 1e-4  # claims by PLD may be read on another grid


@dataclass(frozen=True, eq=False)
class Sight:
    """What one observer could tell about one unit."""

    observer: str
    assumption: str
    promised: bool  # whether the plan's promise is against this observer
    epsilon: float
    curve: TradeOff


def sights(
    plan: AnyPlan, schedule: int, colluders: int = 0, *, central: bool = False
) -> tuple[Sight, ...]:
    """What each observer of one schedule could tell, the promised observers first.

    If noise is known to be `central`, observers of distributed noise are left out. A plan whose
    claim is below what its own rounds cost is refused.
    """
    seen = _BY_UNIT[plan.unit](plan, schedule, colluders)
    least = seen.least()
    if not plan.schedules.epsilon[schedule] >= least * (1 - 1e-6):
        raise Refused(
            f"schedule {schedule} of the plan claims epsilon {plan.schedules.epsilon[schedule]:.6g}"
            f", but its rounds cost {least:.6g}; check the plan with fedspend verify"
        )
    return tuple(
        Sight(
            one.name,
            one.assumption,
            n < plan.promised_observers,
            one.largest,
            _within(seen.curves[one.name](), plan, one),
        )
        for n, one in enumerate(seen.observers)
        if not (central and one.assumption.startswith(OF_DISTRIBUTED))
    )


def seen_by(plan: AnyPlan, schedule: int) -> tuple[Observer, ...]:
    """Epsilon of one schedule against each observer, without curves: a fraction of the time."""
    return _BY_UNIT[plan.unit](plan, schedule, 0).observers


def at_once(plan: Plan, schedule: int) -> TradeOff:
    """What the promised observer of one client could tell, in closed form: above the curve of
    `sights`, since it counts every round as if the client surely took part.
    """
    claim = from_claim(float(plan.schedules.epsilon[schedule]), plan.delta)
    if plan.discrete and plan.grid_steps is None:
        return claim
    rounds = _counted(plan.schedules.sampling_rate[:, schedule], plan.accounted_noise[:, schedule])
    return tightest(_Continuous(plan.orders).always(rounds), claim)


def _within(curve: TradeOff, plan: AnyPlan, observer: Observer) -> TradeOff:
    """The curve, capped at what the observer's epsilon allows."""
    return tightest(curve, from_claim(observer.largest, plan.delta))


@dataclass(frozen=True, eq=False)
class _Seen:
    """Observers with their epsilons, and how to compute each one's curve and the least valid claim.

    `least()` is what the rounds cost at the plan's orders, or by PLD up to the width of its grid; 0
    for a user's own accountant.
    """

    observers: tuple[Observer, ...]
    curves: dict[str, Callable[[], TradeOff]]
    least: Callable[[], float]


def check_colluders(plan: AnyPlan, colluders: int) -> int:
    """The number of clients who pool what they know; 0 means the usual number."""
    most = len(plan.clients) - 1
    if not 0 <= colluders <= most:
        raise InvalidInput(
            f"colluders must be fewer than the {len(plan.clients)} clients of the plan, got "
            f"{colluders}"
        )
    return colluders or min(COLLUDERS, most)


# --- plans of clients -----------------------------------------------------------------------------


def _of_client(plan: Plan, schedule: int, colluders: int) -> _Seen:
    clients, colluders = len(plan.clients), check_colluders(plan, colluders)
    table = plan.schedules
    rounds = _counted(table.sampling_rate[:, schedule], plan.accounted_noise[:, schedule])
    claim = table.epsilon[schedule : schedule + 1]
    observers = observers_of(
        [rounds],
        claim,
        claim,
        orders=np.sort(np.asarray(plan.orders)),
        delta=plan.delta,
        clients=clients,
        colluders=colluders,
        by_budget=False,
    )
    read = (
        _Discrete(plan.orders)
        if plan.discrete and plan.grid_steps is None
        else _Continuous(plan.orders)
    )
    alone = _scaled(rounds, 1 / math.sqrt(clients))
    fewer = _scaled(rounds, math.sqrt(1 - colluders / clients))
    curves = {
        "plan": lambda: read.hidden(rounds),
        "participation revealed": lambda: read.seen(rounds),
        "picked every round": lambda: read.always(rounds),
        f"{colluders} colluding clients": lambda: read.hidden(fewer),
        "sees single updates": lambda: read.seen(alone),
    }

    def least() -> float:
        if plan.accountant == "rdp":
            rates, noises, counts = map(np.asarray, rounds)
            total = counts @ rdp(rates, noises, plan.orders)
            return float(epsilon_of(total, plan.orders, plan.delta))
        if plan.accountant == PLD:
            noise, rate = plan.accounted_noise[:, schedule], table.sampling_rate[:, schedule]
            return schedule_epsilon(noise, rate, plan.delta) * (1 - GRID_TOLERANCE)
        return 0.0

    return _Seen(observers, curves, least)


@dataclass(frozen=True)
class _Continuous:
    """Curves if participation is hidden, if it is seen, and if a client is always in.

    Each is bounded by the next.
    """

    orders: Numbers

    def hidden(self, rounds: Rounds) -> TradeOff:
        return tightest(_sampled(rounds, self.orders), self.seen(rounds))

    def seen(self, rounds: Rounds) -> TradeOff:
        return tightest(known_participation(*rounds), self.always(rounds))

    def always(self, rounds: Rounds) -> TradeOff:
        _, noises, counts = rounds
        return gaussian(math.sqrt(sum(k / s**2 for s, k in zip(noises, counts, strict=True))))


@dataclass(frozen=True)
class _Discrete:
    """The same curves for discrete noise without grid steps, from Rényi divergences.

    Without hidden sampling, those of the Gaussian hold at every order (Canonne, Kamath, Steinke
    2020); with it, at whole orders only.
    """

    orders: Numbers

    def hidden(self, rounds: Rounds) -> TradeOff:
        def sampled(rate: FloatArray, noise: FloatArray, order: FloatArray) -> FloatArray:
            found: FloatArray = rdp(rate[:, 0], noise[:, 0], order)
            return found

        return tightest(self._read(sampled, rounds, self.orders), self.seen(rounds))

    def seen(self, rounds: Rounds) -> TradeOff:
        return tightest(self._read(participation_revealed, rounds, ORDERS), self.always(rounds))

    def always(self, rounds: Rounds) -> TradeOff:
        return self._read(no_amplification, rounds, ORDERS)

    def _read(self, divergence: Divergence, rounds: Rounds, orders: Numbers) -> TradeOff:
        rate, noise, count = (np.asarray(column)[:, None] for column in rounds)
        order = np.asarray(orders)
        return from_renyi((count * divergence(rate, noise, order)).sum(axis=0), order)


@lru_cache(maxsize=64)
def _sampled(rounds: Rounds, orders: Numbers) -> TradeOff:
    """Cached, because a distribution takes up to a second and groups share schedules."""
    rates, noises, counts = map(np.asarray, rounds)
    by_renyi = from_renyi((counts[:, None] * rdp(rates, noises, orders)).sum(axis=0), orders)
    return tightest(sampled_gaussians(*rounds), by_renyi)


def _counted(rate: FloatArray, noise: FloatArray) -> Rounds:
    """The distinct rounds of one schedule."""
    found = sorted(Counter(zip(rate.tolist(), noise.tolist(), strict=True)).items())
    return (
        tuple(q for (q, _), _ in found),
        tuple(s for (_, s), _ in found),
        tuple(k for _, k in found),
    )


def _scaled(rounds: Rounds, factor: float) -> Rounds:
    rates, noises, counts = rounds
    return rates, tuple(factor * s for s in noises), counts


# --- plans of records -----------------------------------------------------------------------------


def _of_record(plan: RecordPlan, schedule: int, colluders: int) -> _Seen:
    if colluders:
        raise InvalidInput("colluders are for plans of clients; leave them out")
    chosen = np.array([schedule])
    rounds = rounds_of(plan, schedule)
    observers = observers_of_records(plan, chosen, np.ones(plan.schedules.count))
    if not rounds:  # never sampled: there is nothing to see
        idle = tuple(Observer(one.name, one.assumption, (), 0.0, 0.0, 0.0) for one in observers)
        return _Seen(idle, {one.name: lambda: gaussian(0.0) for one in idle}, lambda: 0.0)
    orders = np.asarray(plan.orders)
    total = divergence(plan, chosen, orders[None, :], picked=False)[0]

    def picked() -> TradeOff:
        noise = plan.terms.noise_multiplier
        if plan.by_norm:
            # squared norms add up to one Gaussian mechanism's (Koskela, Tobaben, Honkela 2023)
            return gaussian(math.sqrt(sum(k * steps for (_, steps), k in rounds)) / noise)
        rates = tuple(q for (q, _), _ in rounds)
        counts = tuple(int(k * steps) for (_, steps), k in rounds)
        return _sampled((rates, (noise,) * len(rounds), counts), plan.orders)

    def promised() -> TradeOff:
        if plan.terms.client_rate == 1:
            return picked()
        return tightest(from_renyi(total, orders), picked())

    curves = {
        "plan": promised,
        "server sees who takes part": promised,
        "server picks who takes part": picked,
    }
    return _Seen(observers, curves, lambda: float(epsilon_at(total, orders, plan.delta).min()))


_BY_UNIT: dict[Unit, Callable[[Any, int, int], _Seen]] = {
    "client": _of_client,
    "record": _of_record,
}
