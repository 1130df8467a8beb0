"""At which Rényi order an account admits runs.

An account's order is fixed when it is registered, from its budget and delta alone. Any order is
safe; a good one costs little noise. The default is the best one for a typical run that spends the
whole budget: a hundred rounds at a rate of one half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.accounting.calibration import uniform
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import conversion_cost_at
from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.errors import InvalidInput, finite_number

TYPICAL_RATE, TYPICAL_ROUNDS = 0.5, 100
_GRID = 0.1  # budgets are rounded to such a share: the best order hardly moves between
_LARGEST = 500.0  # budgets above this are not private, and get the order of this one


def default_orders(budgets: FloatArray, delta: float) -> FloatArray:
    """The order of each account with one of these lifetime budgets.

    >>> default_orders(np.array([1.0, 5.0, 10.0]), 1e-5).round(1).tolist()
    [18.1, 5.2, 3.3]
    """
    step = np.floor(np.log(np.minimum(budgets, _LARGEST)) / _GRID)
    distinct, of_account = np.unique(step, return_inverse=True)
    typical = np.exp(distinct * _GRID)
    orders = np.full(typical.size, ORDERS[-1])
    # below this, no noise is enough for the typical run
    rows = np.flatnonzero(typical > 1.05 * conversion_cost(ORDERS, delta).min())
    if rows.size:
        found = uniform(typical[rows], delta, TYPICAL_RATE, TYPICAL_ROUNDS, ORDERS)
        orders[rows] = found.order
    return orders[of_account]


def leaves_room(orders: FloatArray, budgets: FloatArray, delta: float) -> BoolArray:
    """Whether these budgets can pay for anything at these orders."""
    room: BoolArray = conversion_cost_at(orders, np.full(orders.size, delta)) < 0.99 * budgets
    return room


def check_order(order: Any, budgets: FloatArray, delta: float) -> FloatArray:
    """An order that a person named, as the nearest of the public ones, for each of the budgets."""
    named = finite_number("order", order)
    if not ORDERS[0] <= named <= ORDERS[-1]:
        raise InvalidInput(
            f"order must lie between {ORDERS[0]:g} and {ORDERS[-1]:g}, got {order!r}"
        )
    nearest = min(ORDERS, key=lambda one: abs(np.log((one - 1) / (named - 1))))
    orders = np.full(budgets.size, nearest)
    room = leaves_room(orders, budgets, delta)
    if not room.all():
        least = float(budgets[~room].min())
        usual = float(default_orders(np.array([least]), delta)[0])
        raise InvalidInput(
            f"order {nearest:g} leaves a budget of {least:g} nothing to spend at delta {delta:g}: "
            f"give a higher one (the default for this budget is {usual:g})"
        )
    return orders
