"""How much noise a schedule of a given shape needs.

Guarantee: together with what was spent before, a schedule made here spends its budget and no more,
by the exact kernel.
"""

from __future__ import annotations

import numpy as np

from fedspend.accounting.calibration import Sealed, seal, starting_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import BoolArray, FloatArray

_TURNS = 8


def scaled_to_budget(
    noise: FloatArray,
    rate: FloatArray,
    adjustable: BoolArray,
    budget: FloatArray,
    delta: float,
    past: Mechanisms,
    orders: tuple[float, ...],
) -> Sealed:
    """Scale the adjustable rounds of each schedule (rounds, n) to spend its budget, with `past`.

    Which order binds depends on the scale, so the two are found in turn; every turn gives a valid
    plan, and two or three turns usually suffice.
    """
    cost = starting_cost(budget.size, orders, delta, past)
    binding = np.full(budget.size, -1)
    for _ in range(_TURNS):
        best = (Mechanisms.of_schedules(noise, rate).curves(orders) + cost).argmin(axis=1)
        if np.array_equal(best, binding):
            break
        binding = best
        found = seal(noise, rate, adjustable, budget, binding, np.asarray(orders), delta, past=past)
        noise = found.noise
    return found
