"""`optimal`: constant rate, and noise where it does the least harm to the model that is handed out.

Guarantee: schedules are scaled to their budgets and sealed like those of every policy; what is
optimised here is only their shape. The result has no more noise in the model than `uniform`,
under the assumption that was given; with several assumptions, at most 1% more under any of them.

The problem. Round t's noise has deviation `c_t s_t`, where `1/s_t` is the mean of the clients'
`u_nt = 1/sigma_nt`, and counts with importance `a_t = (h_t c_t)^2`. We minimise `sum_t a_t s_t^2`
such that each client's Rényi cost stays within its budget. In the u's, both the sum and, at one
order, the cost are convex, so a schedule that meets the conditions of optimality

    d cost_n / d u_nt = a_t s_t^3 * constant_n        for every round t and client n

is the best one at its order. They are solved in turns: the rewards `a_t s_t^3` give schedules, the
schedules give other rewards. For large noise the cost is a sum of `u^2`, and `sigma_t^2` comes out
as `1 / (h_t c_t)`; under sampling the cost is steeper in u, and the best noise is more even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.accounting.calibration import starting_cost
from fedspend.accounting.curves import Curve, curve
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.planning.plan import harmonic_mean
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish
from fedspend.planning.policies.constant import constant
from fedspend.planning.policies.weighted import in_shape

MOST_NODES = 24  # lines that are optimised; the shapes of others lie in between
WIDEST_NOISE = 100.0  # largest noise of a schedule over its smallest, before it is scaled
# against uniform, under the worst of several assumptions: 1% is promised, and sealing moves it
MOST_LOSS = 0.009
_TURNS, _CLOSE = 80, 1e-4
_STEP = 0.01  # of the tables in log noise
_ALIKE = 0.002  # rounds whose log importance differs by less get the same noise


def optimal(terms: Terms, wish: Wish) -> Spending:
    flat = constant(terms, wish)
    assert wish.importance is not None
    problem = Problem.of(terms, wish, flat)
    assumed = wish.importance / wish.importance.sum(axis=1, keepdims=True)
    if len(assumed) == 1:
        found = in_shape(terms, wish, problem.shapes(assumed[0]))
        return found if problem.worst(found, flat, assumed) <= 1 else flat
    for share in problem.shares(assumed):
        found = in_shape(terms, wish, problem.shapes(mixed(assumed, share)))
        if problem.worst(found, flat, assumed) <= 1 + MOST_LOSS * 1.05:
            return found
    return flat


def mixed(assumed: FloatArray, share: float) -> FloatArray:
    """From equal importance, whose best schedule is uniform, to that of the likeliest assumption.

    That is the one in the middle: assumptions are in order.
    """
    rounds = assumed.shape[1]
    mixture: FloatArray = (1 - share) / rounds + share * assumed[len(assumed) // 2]
    return mixture


@dataclass(frozen=True, eq=False)
class Problem:
    """A few lines that stand for all: their budgets, their curve, and how many clients they are."""

    spending: Curve
    room: FloatArray  # (nodes, orders) what the rounds of a line may cost
    clients_of: FloatArray  # (nodes,)
    level: FloatArray  # (nodes,) log of the uniform noise, ascending
    binding: IntArray  # (nodes,) column of the order that binds under uniform noise
    rounds: int
    all_levels: FloatArray  # (lines,) log of every line's uniform noise
    all_clients: IntArray

    @classmethod
    def of(cls, terms: Terms, wish: Wish, flat: Spending) -> Problem:
        assert wish.clients_of is not None
        levels = np.log(flat.noise[0])
        by_level = np.argsort(levels, kind="stable")
        picks = np.unique(np.linspace(0, levels.size - 1, MOST_NODES).astype(np.int64))
        nodes = by_level[picks]
        nodes = nodes[np.append(True, np.diff(levels[nodes]) > 1e-9)]
        place = np.interp(levels, levels[nodes], np.arange(nodes.size))
        of_node = np.round(place).astype(np.int64)
        past = None if wish.past is None else wish.past.take(nodes)
        already = starting_cost(nodes.size, terms.orders, terms.delta, past)
        room = wish.budget[nodes, None] - already
        spending = curve(terms.rate, terms.orders)
        cost = terms.rounds * spending.rdp(levels[nodes])
        return cls(
            spending=spending,
            room=room,
            clients_of=np.bincount(of_node, wish.clients_of, nodes.size).astype(np.float64),
            level=levels[nodes],
            binding=(cost - room).argmin(axis=1),
            rounds=terms.rounds,
            all_levels=levels,
            all_clients=wish.clients_of,
        )

    def shapes(self, importance: FloatArray) -> FloatArray:
        """Log noise of every line, (rounds, lines), before it is scaled to its budget."""
        log_noise = self.best(importance)
        place = np.interp(self.all_levels, self.level, np.arange(self.level.size))
        low = np.minimum(place.astype(np.int64), max(self.level.size - 2, 0))
        high = np.minimum(low + 1, self.level.size - 1)
        part = place - low
        return (1 - part) * log_noise[:, low] + part * log_noise[:, high]

    def best(self, importance: FloatArray) -> FloatArray:
        """Log noise of the nodes, (rounds, nodes), that meets the conditions of optimality."""
        log_a, of_round, times = alike(importance)
        tables = self.tables(float(np.ptp(log_a)) / 4)
        log_noise = np.tile(self.level, (log_a.size, 1))
        column, reward = self.binding.copy(), log_a / 4  # right for large noise
        for _ in range(_TURNS):
            for n, order in enumerate(column.tolist()):
                marginal, cost = tables.of(order)
                log_noise[:, n] = tables.most_reward(
                    marginal, cost, reward, times, float(self.room[n, order])
                )
                total = times @ self.spending.rdp(log_noise[:, n])
                column[n] = int((total - self.room[n]).argmin())
            s = harmonic_mean(np.exp(log_noise), self.clients_of)
            wanted = log_a + 3 * np.log(s)
            step = wanted - reward
            step -= (step * times).sum() / times.sum()
            # A quarter of the way: for large noise that is all of it, else the turns still shrink.
            reward = reward + step / 4
            if np.abs(step).max() < _CLOSE:
                break
        return log_noise[of_round]

    def tables(self, reach: float) -> Tables:
        """Costs from the least noise that one round alone could have to the most that matters."""
        least, most = (float(np.log(edge)) for edge in NOISE_RANGE)
        low, high = float(self.level[0]), min(float(self.level[-1]) + reach + 1.0, most)
        while low > least and bool((self.spending.rdp(np.array([low])) < self.room).any(1).any()):
            low = max(low - 0.2, least)
        x = np.arange(low, high + _STEP, _STEP)
        return Tables(x, self.spending.rdp(x))

    def worst(self, found: Spending, flat: Spending, assumed: FloatArray) -> float:
        """The largest noise in the model over uniform's, over all assumptions."""
        ours, theirs = (
            assumed @ harmonic_mean(one.noise, self.all_clients) ** 2 for one in (found, flat)
        )
        return float((ours / theirs).max())

    def shares(self, assumed: FloatArray) -> list[float]:
        """How far to move from uniform, furthest first, so that no assumption loses much."""
        flat = harmonic_mean(np.exp(self.level[None, :]), self.clients_of)[0] ** 2

        def loss(share: float) -> float:
            s = harmonic_mean(np.exp(self.best(mixed(assumed, share))), self.clients_of)
            return float((assumed @ s**2).max() / flat) - 1

        low, high = 0.0, 1 / 16
        while high < 1 and loss(high) <= MOST_LOSS:
            low, high = high, 2 * high
        while high - low > 0.02 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if loss(middle) <= MOST_LOSS else (low, middle)
        return [low * 0.9**k for k in range(6)] if low > 0 else []


@dataclass(frozen=True, eq=False)
class Tables:
    """Rényi costs at the log noises `x`, (x, orders)."""

    x: FloatArray
    cost: FloatArray

    def of(self, order: int) -> tuple[FloatArray, FloatArray]:
        """Log of the marginal cost of u = 1 / noise, which falls as noise grows; and the cost."""
        cost = self.cost[:, order]
        with np.errstate(divide="ignore"):
            marginal = np.log(np.maximum(-np.gradient(cost, self.x), 1e-300)) + self.x
        return np.minimum.accumulate(marginal - 1e-12 * np.arange(marginal.size)), cost

    def most_reward(
        self,
        marginal: FloatArray,
        cost: FloatArray,
        reward: FloatArray,
        times: FloatArray,
        room: float,
    ) -> FloatArray:
        """Log noises with marginal costs in proportion to the rewards that cost `room` in all."""
        falling, x = marginal[::-1], self.x[::-1]
        low, high = (
            marginal[-1] - float(reward.max()) - 1.0,
            marginal[0] - float(reward.min()) + 1.0,
        )
        while high - low > 1e-7:
            price = (low + high) / 2
            spent = times @ np.interp(np.interp(reward + price, falling, x), self.x, cost)
            low, high = (low, price) if spent > room else (price, high)
        found: FloatArray = np.interp(reward + low, falling, x)
        return found


def alike(importance: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """Log importances that differ, which of them each round has, and how many rounds have each.

    Rounds that hardly count are kept from having boundless noise.
    """
    log_a = np.log(np.maximum(importance, importance.max() / WIDEST_NOISE**4))
    values, of_round, times = np.unique(
        np.round(log_a / _ALIKE), return_inverse=True, return_counts=True
    )
    return values * _ALIKE, of_round, times.astype(np.float64)


OPTIMAL = Policy(
    "optimal",
    "constant rate; noise where it does the least harm to the model that is handed out",
    ("contraction", "influence"),
    spend=optimal,
)
