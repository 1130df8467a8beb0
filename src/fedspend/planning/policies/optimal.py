"""`optimal`: constant rate, and noise where it does the least harm to the model that is handed out.

Guarantee: schedules are scaled to their budgets and sealed like those of every policy; what is
optimised here is only their shape. The result has no more noise in the model than `uniform`,
under the assumption that was given; with several assumptions, at most 1% more under any of them.
A client's schedule depends on its own budget and on public terms, on nobody else's budget.

The problem. Round t's noise has deviation `c_t s_t`, where `1/s_t` is the mean of the clients'
`u_nt = 1/sigma_nt`, and counts with importance `a_t = (h_t c_t)^2`. We minimise `sum_t a_t s_t^2`
such that each client's Rényi cost stays within its budget. For clients of one budget that is
`sum_t a_t / u_t^2`, convex in u, as the cost is at one order; so a schedule that meets

    d cost / d u_t = a_t sigma_t^3 * constant        for every round t

is the best one at its order. For large noise the cost is a sum of `u^2`, and `sigma_t^2` comes out
as `1 / (h_t c_t)`; under sampling the cost is steeper in u, and the best noise is more even.

Several budgets are each given their own best schedule. `(sum_t a_t / u_t^2)^(-1/2)` is concave in u
and linear along uniform schedules, so what holds for each budget holds for the mean of all: it is
no worse than `uniform`, or by no more than 1%. Shapes hardly depend on the budget, and optimising
all of them together would gain next to nothing (docs/explanation/methods.md has numbers).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.accounting.curves import Curve, curve
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish
from fedspend.planning.policies.constant import constant
from fedspend.planning.policies.weighted import in_shape

WIDEST_NOISE = 100.0  # largest noise of a schedule over its smallest, before it is scaled
# against uniform, under the worst of several assumptions: 1% is promised, and sealing moves it
MOST_LOSS = 0.009
_LEVELS = 0.125  # shapes are found at these steps of log noise, and interpolated in between
_TURNS = 12  # from one binding order to the next
_STEP = 0.01  # of the tables in log noise
_ALIKE = 0.002  # rounds whose log importance differs by less get the same noise
# different noises of a schedule: accountants read them one by one, and more hardly gain anything
MOST_NOISES = 50


def optimal(terms: Terms, wish: Wish) -> Spending:
    flat = constant(terms, wish)
    assert wish.importance is not None
    assumed = wish.importance / wish.importance.sum(axis=1, keepdims=True)
    found = in_shape(terms, wish, shapes(terms, np.log(flat.noise[0]), assumed))
    most = 1.0 if len(assumed) == 1 else 1 + MOST_LOSS * 1.05
    better = (assumed @ found.noise**2 <= most * (assumed @ flat.noise**2)).all(axis=0)
    return found if better.all() else either(better, found, flat)


def either(first: BoolArray, one: Spending, other: Spending) -> Spending:
    return Spending(
        np.where(first, one.noise, other.noise),
        np.where(first, one.rate, other.rate),
        np.where(first, one.epsilon, other.epsilon),
        np.where(first, one.order, other.order),
    )


def shapes(terms: Terms, levels: FloatArray, assumed: FloatArray) -> FloatArray:
    """Log noise, (rounds, lines), for each line's log uniform noise, before it is scaled.

    They are found at public levels and interpolated, so that no line depends on another.
    """
    low = np.floor(levels / _LEVELS).astype(np.int64)
    wanted, spending = np.unique(np.concatenate([low, low + 1])), curve(terms.rate, terms.orders)
    found = np.stack(
        [Node.at(k * _LEVELS, terms, spending).shape(assumed) for k in wanted.tolist()], axis=1
    )
    part, place = levels / _LEVELS - low, np.searchsorted(wanted, low)
    return (1 - part) * found[:, place] + part * found[:, place + 1]


def mixed(assumed: FloatArray, share: float) -> FloatArray:
    """From equal importance, whose best schedule is uniform, to that of the likeliest assumption.

    That is the one in the middle: assumptions are in order.
    """
    rounds = assumed.shape[1]
    mixture: FloatArray = (1 - share) / rounds + share * assumed[len(assumed) // 2]
    return mixture


@dataclass(frozen=True, eq=False)
class Node:
    """A budget that uniform noise of `exp(level)` spends."""

    level: float
    spending: Curve
    room: FloatArray  # (orders,) what the rounds may cost
    binding: int  # column of the order that binds under uniform noise
    x: FloatArray  # log noises
    cost: FloatArray  # (x, orders) what one round costs at each of them

    @classmethod
    def at(cls, level: float, terms: Terms, spending: Curve) -> Node:
        least, most = (float(np.log(edge)) for edge in NOISE_RANGE)
        level = min(max(level, least), most)
        uniform = terms.rounds * spending.rdp(np.array([level]))[0] + terms.cost
        room = uniform.min() - terms.cost
        # from noise at which one round alone spends everything, to more than any round should have
        low = level
        while low > least and bool((spending.rdp(np.array([low]))[0] < room).any()):
            low = max(low - 0.2, least)
        x = np.arange(low, min(level + np.log(WIDEST_NOISE) + 1, most) + _STEP, _STEP)
        return cls(level, spending, room, int(uniform.argmin()), x, spending.rdp(x))

    def shape(self, assumed: FloatArray) -> FloatArray:
        """Log noise by round: the best under one assumption, or a safe one under several."""
        if len(assumed) == 1:
            return self.best(assumed[0])
        return self.best(mixed(assumed, self.share(assumed)))

    def best(self, importance: FloatArray) -> FloatArray:
        """Log noise by round that meets the condition of optimality."""
        log_a, of_round, times = alike(importance)
        column = self.binding
        for _ in range(_TURNS):
            log_noise = self.at_order(column, log_a, times)
            total = times @ self.spending.rdp(log_noise)
            before, column = column, int((total - self.room).argmin())
            if column == before:
                break
        return log_noise[of_round]

    def at_order(self, column: int, log_a: FloatArray, times: FloatArray) -> FloatArray:
        """Log noises whose marginal costs are in proportion to `a sigma^3`, and cost all there is.

        The marginal cost of `u = exp(-x)` is `-cost'(x) exp(x)`; over `sigma^3` it falls with x.
        """
        cost, room = self.cost[:, column], float(self.room[column])
        with np.errstate(divide="ignore"):
            slope = np.log(np.maximum(-np.gradient(cost, self.x), 1e-300)) - 2 * self.x
        falling = np.minimum.accumulate(slope - 1e-12 * np.arange(slope.size))[::-1]
        x = self.x[::-1]
        low = float(falling[0]) - float(log_a.max()) - 1.0
        high = float(falling[-1]) - float(log_a.min()) + 1.0
        while high - low > 1e-7:
            price = (low + high) / 2
            spent = times @ np.interp(np.interp(log_a + price, falling, x), self.x, cost)
            low, high = (low, price) if spent > room else (price, high)
        found: FloatArray = np.interp(log_a + low, falling, x)
        return found

    def share(self, assumed: FloatArray) -> float:
        """How far to move from uniform such that no assumption loses much."""
        flat = np.exp(2 * self.level)

        def loss(share: float) -> float:
            noise = np.exp(2 * self.best(mixed(assumed, share)))
            return float((assumed @ noise).max() / flat) - 1

        low, high = 0.0, 1 / 16
        while high < 1 and loss(high) <= MOST_LOSS:
            low, high = high, 2 * high
        while high - low > 0.02 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if loss(middle) <= MOST_LOSS else (low, middle)
        return low


def alike(importance: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """Log importances that differ, which of them each round has, and how many rounds have each.

    Rounds that hardly count are kept from having boundless noise.
    """
    log_a = np.log(np.maximum(importance, importance.max() / WIDEST_NOISE**4))
    step = _ALIKE
    if np.unique(np.round(log_a / step)).size > MOST_NOISES:
        step = max(step, float(np.ptp(log_a)) / (MOST_NOISES - 2))
    values, of_round, times = np.unique(
        np.round(log_a / step), return_inverse=True, return_counts=True
    )
    return values * step, of_round, times.astype(np.float64)


OPTIMAL = Policy(
    "optimal",
    "constant rate; noise where it does the least harm to the model that is handed out",
    ("contraction", "influence"),
    spend=optimal,
)
