"""A user's own policy: a function gives the shape of the noise, the budget decides its size.

Guarantee: whatever the function returns, every schedule is scaled until it spends its budget
exactly, and is sealed like the schedules of the built-in policies. The function sees budgets and
public terms only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.accounting.calibration import check_feasible, starting_cost, uniform
from fedspend.accounting.fitting import scaled_to_budget
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish

_WIDEST = 1e3  # limit on the largest noise of a schedule over its smallest


@dataclass(frozen=True, eq=False)
class Ask:
    """What a user's own policy may look at: public terms, and one budget per schedule."""

    rounds: int
    rate: float
    delta: float
    epsilon: FloatArray  # (schedules,)


def own_policy(
    name: str, help: str, keys: tuple[str, ...], make: Callable[..., Any], for_all: bool = False
) -> Policy:
    """The policy that `make` describes.

    `make(ask, **keys)` returns relative noise, (rounds,) or (rounds, schedules), or a pair of noise
    and sampling rates.
    """

    def spend(terms: Terms, wish: Wish) -> Spending:
        ask = Ask(terms.rounds, terms.rate, terms.delta, wish.budget.copy())
        answer = make(ask, **wish.options)
        noise, rate = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        shape = checked(name, "noise", noise, terms.rounds, wish.budget.size)
        rates = checked(
            name, "rates", terms.rate if rate is None else rate, terms.rounds, wish.budget.size
        )
        return fitted(name, terms, wish, shape, rates)

    return Policy(name, help, keys, spend=spend, for_all=for_all)


def checked(name: str, what: str, answer: Any, rounds: int, schedules: int) -> FloatArray:
    """A table (rounds, schedules) of positive numbers."""
    try:
        array = np.asarray(answer, dtype=np.float64)
        array = array[:, None] if array.ndim == 1 else array
        table: FloatArray = np.array(np.broadcast_to(array, (rounds, schedules)))
    except (TypeError, ValueError):
        raise InvalidInput(
            f"policy {name!r} must return {what} as {rounds} numbers, one per round, or as "
            f"{rounds} x {schedules}, one per round and schedule; got {_kind(answer)}"
        ) from None
    if not np.all(np.isfinite(table) & (table > 0)):
        bad = table[~(np.isfinite(table) & (table > 0))][0]
        raise InvalidInput(
            f"policy {name!r} must return positive, finite {what}; got {float(bad)!r}"
        )
    return table


def _kind(answer: Any) -> str:
    shape = getattr(answer, "shape", None)
    return f"{type(answer).__name__}" + ("" if shape is None else f" of shape {shape}")


def fitted(name: str, terms: Terms, wish: Wish, shape: FloatArray, rates: FloatArray) -> Spending:
    """The schedules with this shape that spend their budgets exactly."""
    if not np.all(rates <= 1):
        raise InvalidInput(
            f"policy {name!r} must return sampling rates of at most 1; got {float(rates.max())!r}"
        )
    if not np.all(shape.max(axis=0) <= _WIDEST * shape.min(axis=0)):
        raise InvalidInput(
            f"policy {name!r} must keep the noise of a schedule within a factor of {_WIDEST:g}; "
            f"got {float((shape.max(axis=0) / shape.min(axis=0)).max()):.3g}"
        )
    budget, orders = wish.budget, terms.orders
    past = Mechanisms.none(budget.size) if wish.past is None else wish.past
    check_feasible(budget, starting_cost(budget.size, orders, terms.delta, past))
    start = uniform(budget, terms.delta, terms.rate, terms.rounds, orders, past).noise[0]
    typical = np.exp(np.log(shape).mean(axis=0))
    # somewhere to begin, at noise that the accountant can read
    scale = np.maximum(start / typical, NOISE_RANGE[0] / shape.min(axis=0))
    everything = np.ones(shape.shape, dtype=bool)
    found = scaled_to_budget(shape * scale, rates, everything, budget, terms.delta, past, orders)
    return Spending(found.noise, rates, found.epsilon, found.order)
