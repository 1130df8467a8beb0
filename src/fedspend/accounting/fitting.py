"""How much noise a schedule of a given shape needs.

Guarantee: together with what was spent before, a schedule made here spends its budget and no more,
by the exact kernel.
"""

from __future__ import annotations

import numpy as np

from fedspend.accounting.calibration import Sealed, seal, starting_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import NOISE_RANGE
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
    plan, and two or three turns usually suffice. Noise that is far too small at first would have
    the smallest order bind, at which no noise meets a small budget; so only orders count that leave
    room for the adjustable rounds.
    """
    cost = starting_cost(budget.size, orders, delta, past)
    without = np.where(adjustable, NOISE_RANGE[1], noise)
    least = Mechanisms.of_schedules(without, rate).curves(orders) + cost
    barred = np.where(least < budget[:, None], 0.0, np.inf)
    barred[np.isinf(barred).all(axis=1)] = 0.0  # sealing says that no noise is enough
    binding = np.full(budget.size, -1)
    for _ in range(_TURNS):
        spent = Mechanisms.of_schedules(noise, rate).curves(orders) + cost
        best = (spent + barred).argmin(axis=1)
        if np.array_equal(best, binding):
            break
        binding = best
        found = seal(noise, rate, adjustable, budget, binding, np.asarray(orders), delta, past=past)
        noise = found.noise
    return found
