"""What a policy is: it turns budgets and public terms into noise and sampling rates by round.

Guarantee: a `Spending` that a policy returns has been sealed with the exact kernel: none of its
schedules spends more than its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from fedspend.accounting.calibration import Sealed, seal
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.basics.progress import OnProgress
from fedspend.basics.registry import Entry

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Terms:
    """What every schedule of a plan has in common."""

    delta: float
    rate: float
    rounds: int
    orders: tuple[float, ...]

    @property
    def cost(self) -> FloatArray:
        return conversion_cost(self.orders, self.delta)


@dataclass(frozen=True, eq=False)
class Wish:
    """What a policy is given: it makes one schedule for each of n distinct lines.

    A line is a budget, a saving rate, a transition round and a past. A policy ignores what it does
    not need.
    """

    budget: FloatArray
    saving_rate: FloatArray
    transition: IntArray
    weights: FloatArray  # (rounds,)
    past: Mechanisms | None = None
    # (assumptions, rounds): how much a round's squared noise counts in the model that is handed
    # out, under each assumption about training
    importance: FloatArray | None = None
    clients_of: IntArray | None = None  # (n,) how many clients follow each line
    options: Mapping[str, Any] = field(default_factory=lambda: NO_OPTIONS)
    progress: OnProgress | None = None


@dataclass(frozen=True)
class Spending:
    """Schedules as (rounds, n), and what they are certified to spend."""

    noise: FloatArray
    rate: FloatArray
    epsilon: FloatArray
    order: FloatArray


@dataclass(frozen=True)
class Policy(Entry):
    """How budgets become schedules. `spend` returns the epsilon of past and schedule together.

    `keys` are the keys of [privacy] that the policy uses. With `for_all`, everyone follows the
    schedule of the strictest budget, and schedules are constant.
    """

    spend: Callable[[Terms, Wish], Spending] = field(kw_only=True)
    for_all: bool = field(default=False, kw_only=True)

    @property
    def saves(self) -> bool:
        return "saving_rate" in self.keys

    @property
    def weighs(self) -> bool:
        return "weights" in self.keys

    @property
    def foresees(self) -> bool:
        """Whether it plans for how training goes on after a round's noise."""
        return "contraction" in self.keys


def sealed(
    noise: FloatArray,
    rate: FloatArray,
    adjustable: BoolArray,
    budget: FloatArray,
    binding: IntArray,
    terms: Terms,
    past: Mechanisms | None,
) -> Spending:
    found: Sealed = seal(
        noise, rate, adjustable, budget, binding, np.asarray(terms.orders), terms.delta, past=past
    )
    return Spending(found.noise, rate, found.epsilon, found.order)


def by_itself(spending: Spending, terms: Terms) -> Spending:
    """The schedules with the epsilon that they spend alone, whatever was spent before them."""
    alone = Mechanisms.of_schedules(
        spending.noise, spending.rate, discrete=terms.orders == WHOLE_ORDERS
    )
    epsilon, order = alone.best(np.full(spending.epsilon.size, terms.delta))
    return Spending(spending.noise, spending.rate, epsilon, order)


def one_for_all(spending: Spending) -> Spending:
    """The schedule with the most noise, for everyone.

    For constant schedules only: then one of them has the most noise in every round.
    """
    most = [int(spending.noise[0].argmax())]
    return Spending(
        spending.noise[:, most],
        spending.rate[:, most],
        spending.epsilon[most],
        spending.order[most],
    )
