"""What a schedule reveals to the observer that the plan assumes, and to observers who see more.

Guarantee: every epsilon here is an upper bound for its observer, read from the second accountant's
Rényi divergence or from a closed form. The plan promises only the first of them; the others say
what is lost when its assumption fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.verification.second_accountant import (
    Runs,
    _merged,
    epsilon_at,
    renyi_divergence,
)
from fedspend.verification.second_accountant.renyi import SHORT, panels_of

Divergence = Callable[[Any, Any, Any], FloatArray]
OF_DISTRIBUTED = "distributed noise"  # how assumptions about it begin
MOST_ORDERS, MOST_ROUNDS = 1000, 200  # that one schedule is read with


@dataclass(frozen=True)
class Observer:
    """Epsilon against one kind of observer: by budget if there are few schedules, and its range."""

    name: str
    assumption: str
    by_budget: tuple[tuple[float, float], ...]
    smallest: float
    median: float
    largest: float


def observers_of(
    schedules: Sequence[Runs],
    claim: FloatArray,
    budget: FloatArray,
    *,
    orders: FloatArray,
    delta: float,
    clients: int,
    colluders: int,
    by_budget: bool,
) -> tuple[Observer, ...]:
    """Epsilon of schedules against each observer, at the best of the sorted `orders`."""

    def lowest(divergence: Divergence, scale: float = 1.0) -> FloatArray:
        return np.array(
            [lowest_epsilon(divergence, runs, scale, orders, delta) for runs in schedules]
        )

    rows = [
        (
            "plan",
            "other clients and the public, who see every release and not who took part",
            claim,
        ),
        (
            "participation revealed",
            "learns which rounds a client took part in",
            lowest(participation_revealed),
        ),
        (
            "picked every round",
            "the client takes part in every round, so sampling hides nothing",
            lowest(no_amplification),
        ),
    ]
    if colluders > 0:
        known = (
            "distributed noise: they know and subtract their own noise, on updates, bits and "
            "metrics; all of them are sampled"
        )
        rows.append(
            (
                f"{colluders} colluding clients",
                known,
                lowest(renyi_divergence, math.sqrt(1 - colluders / clients)),
            )
        )
    # update, bit and metric of one message each have 1/N of the planned variance, so together they
    # have the plan's multiplier over sqrt(N), as the update alone has where there is nothing else
    alone = (
        "distributed noise, no secure aggregation: a message's update, bit and metric have only "
        "their own shares of noise"
    )
    rows.append(
        ("sees single updates", alone, lowest(participation_revealed, 1 / math.sqrt(clients)))
    )
    return tuple(
        _observer(name, assumption, budget, values, by_budget) for name, assumption, values in rows
    )


def _observer(
    name: str, assumption: str, budget: FloatArray, epsilon: FloatArray, by_budget: bool
) -> Observer:
    groups = (
        tuple((float(b), float(epsilon[budget == b].max())) for b in np.unique(budget))
        if by_budget
        else ()
    )
    return Observer(
        name,
        assumption,
        groups,
        float(epsilon.min()),
        float(np.median(epsilon)),
        float(epsilon.max()),
    )


def participation_revealed(
    rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike
) -> FloatArray:
    """Divergence of a round whose cohort is public.

    `log(1 - q + q exp((a-1) a / (2 sigma^2))) / (a-1)`
    """
    q, s, a = (np.asarray(value, dtype=np.float64) for value in (rate, noise, order))
    with np.errstate(divide="ignore"):
        log_moment: FloatArray = np.logaddexp(np.log1p(-q), np.log(q) + (a - 1) * a / (2 * s**2))
    return log_moment / (a - 1)


def no_amplification(rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike) -> FloatArray:  # noqa: ARG001
    """Divergence of a Gaussian round in which the client surely takes part: `a / (2 sigma^2)`."""
    result: FloatArray = np.asarray(order, dtype=np.float64) / (
        2 * np.asarray(noise, dtype=np.float64) ** 2
    )
    return result


def lowest_epsilon(
    divergence: Divergence, runs: Runs, scale: float, orders: FloatArray, delta: float
) -> float:
    """Epsilon of one schedule, its noise times `scale`, at the best of the sorted `orders`.

    Every eighth order is read, then those around the best. Any order gives a valid bound, so
    skipping some can only read higher; so orders whose integrals are long are skipped, and of very
    many orders most. Merging similar rounds reads higher, too.
    """
    rate, noise, count = _merged(
        np.asarray(runs[0], dtype=np.float64),
        np.asarray(runs[1], dtype=np.float64),
        np.asarray(runs[2], dtype=np.int64),
        MOST_ROUNDS,
    )
    orders = orders[panels_of(scale * noise.min(), orders)[1] <= SHORT]
    orders = orders[:: 1 + orders.size // MOST_ORDERS]
    if not orders.size:
        return math.inf

    def read(some: FloatArray) -> FloatArray:
        return epsilon_at(
            count @ divergence(rate[:, None], scale * noise[:, None], some[None, :]), some, delta
        )

    coarse = np.arange(0, orders.size, 8)
    values = read(orders[coarse])
    best = int(coarse[np.argmin(values)])
    return float(min(values.min(), read(orders[max(0, best - 7) : best + 8]).min()))


def spread(schedules: IntArray, budget: FloatArray, most: int) -> IntArray:
    """At most `most` of the schedules, spread from the smallest budget to the largest."""
    ordered = schedules[np.argsort(budget[schedules], kind="stable")]
    if ordered.size <= most:
        return ordered
    return ordered[np.linspace(0, ordered.size - 1, most).round().astype(np.int64)]
