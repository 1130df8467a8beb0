"""What several parties have run, and the epsilon it adds up to, for any mixture of rounds.

One round is a Gaussian on a Poisson sample, repeated `steps` times, inside a Poisson sample of
clients at `client_rate`. A client-level round has one step and a client rate of 1; a record-level
round has both (Liu et al. 2024, with the bound of `two_stage`).

Discrete noise has the divergence of the Gaussian at whole orders only, so a history with discrete
rounds is read at those.

A private tune is no round: it is known by its Rényi curve alone (`trials`), and no other accountant
can read a history with one.

A history may be bound to one order, fixed before anything was run: the sum of divergences at such
an order bounds even what was chosen by looking at earlier results (Feldman and Zrnic 2021), which
at the best of all orders it does not. At every other order it costs infinitely much, so whatever
plans on top of it plans at its order.

Guarantee: `rdp_at` uses the exact kernel, so an epsilon read from it at any one order is an upper
bound. `curves` only steers: unless `exact` is set, it interpolates where there are many distinct
rounds, and is used only to choose the order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.curves import curve
from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS, exact_rdp_at, rdp
from fedspend.accounting.trials import TUNE_ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, distinct_rows

# up to this many distinct rounds (in a block of 4096) the exact kernel steers, whatever their rates
_EXACT_ROUNDS = 64
_MANY_ROWS = 20_000  # above this, steering looks at every fourth order only
_CURVE_ORDERS = tuple(sorted({*TUNE_ORDERS, *ORDERS}))  # an account may be bound to any of `ORDERS`
_NO_TUNES: FloatArray = np.zeros((0, len(_CURVE_ORDERS)))


def two_stage(inner: FloatArray, client_rate: FloatArray, order: FloatArray) -> FloatArray:
    """Rényi divergence of a mechanism that runs with probability `client_rate` only.

    `inner` is its divergence when it runs. The bound is `log(1 - p + p exp((a-1) R)) / (a-1)`, by
    joint convexity of the moment. It holds against observers of the results, and against those who
    also see who took part.
    """
    if np.all(client_rate == 1):
        return inner
    degree = order - 1
    x = degree * inner
    small = np.log1p(client_rate * np.expm1(np.minimum(x, 1.0)))
    with np.errstate(divide="ignore"):  # a client rate of 0 costs nothing
        large = np.logaddexp(np.log1p(-np.minimum(client_rate, 1 - 1e-16)), np.log(client_rate) + x)
    value: FloatArray = np.where(client_rate == 1, inner, np.where(x < 1, small, large) / degree)
    return value


@dataclass(frozen=True, eq=False)
class Mechanisms:
    """Rounds of `histories` parties, one row for each kind of round, in the order of `history`."""

    history: IntArray  # which party's
    count: FloatArray  # how many rounds of this kind
    rate: FloatArray
    noise: FloatArray
    client_rate: FloatArray
    steps: FloatArray
    discrete: BoolArray
    histories: int
    curve: IntArray  # the row of `tuned` that this is, at rate 0; -1 for rounds
    tuned: FloatArray  # (tunes, _CURVE_ORDERS)
    bound: FloatArray  # (histories,) the only order at which a history is read; 0: at any

    @classmethod
    def none(cls, histories: int) -> Mechanisms:
        empty = np.zeros(0)
        return cls(
            np.zeros(0, dtype=np.int64),
            empty,
            empty,
            empty,
            empty,
            empty,
            np.zeros(0, dtype=bool),
            histories,
            np.zeros(0, dtype=np.int64),
            _NO_TUNES,
            np.zeros(histories),
        )

    @classmethod
    def of_schedules(
        cls,
        noise: FloatArray,
        rate: FloatArray,
        client_rate: float = 1.0,
        steps: int | FloatArray = 1,
        discrete: bool = False,
    ) -> Mechanisms:
        """One history per column of (rounds, histories) tables, of which `steps` may be one.

        A round at rate 0 does not count.
        """
        rounds, histories = noise.shape
        used = rate.T.ravel() > 0
        history = np.repeat(np.arange(histories), rounds)[used]
        flat = [
            np.broadcast_to(table, rate.shape).T.ravel()[used] for table in (rate, noise, steps)
        ]
        ones = np.ones(history.size)
        return cls(
            history,
            ones,
            flat[0],
            flat[1],
            client_rate * ones,
            flat[2] * ones,
            np.full(history.size, discrete),
            histories,
            np.full(history.size, -1),
            _NO_TUNES,
            np.zeros(histories),
        ).merged()

    @classmethod
    def of_tunes(cls, orders: FloatArray, curves: FloatArray) -> Mechanisms:
        """One history per row of Rényi curves (histories, orders), `orders` ascending."""
        number = np.arange(len(curves))
        ones = np.ones(number.size)
        kind = np.zeros(number.size, dtype=bool)
        tuned = curve_at(np.asarray(_CURVE_ORDERS), orders, curves)
        free = np.zeros(number.size)
        return cls(
            number, ones, 0 * ones, ones, ones, ones, kind, number.size, number.copy(), tuned, free
        )

    @classmethod
    def joined(cls, parts: list[Mechanisms], histories: int) -> Mechanisms:
        """Everything that `parts` have run; they must number their histories in the same way."""
        if not parts:
            return cls.none(histories)
        columns = ("history", "count", "rate", "noise", "client_rate", "steps", "discrete", "tuned")
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        before = np.cumsum([0, *(len(part.tuned) for part in parts)])
        curve = np.concatenate(
            [
                np.where(part.curve >= 0, part.curve + first, -1)
                for part, first in zip(parts, before[:-1], strict=True)
            ]
        )
        bound = np.max([part.bound for part in parts], axis=0)
        return cls(**joined, histories=histories, curve=curve, bound=bound).merged()

    def merged(self) -> Mechanisms:
        """These mechanisms with equal rounds of a history counted together."""
        if not self.history.size:
            return self
        keys = (
            self.curve,
            self.discrete,
            self.steps,
            self.client_rate,
            self.noise,
            self.rate,
            self.history,
        )
        by_key = np.lexsort(keys)
        new = np.ones(by_key.size, dtype=bool)
        new[1:] = np.logical_or.reduce([key[by_key][1:] != key[by_key][:-1] for key in keys])
        first = by_key[new]
        count = np.bincount(np.cumsum(new) - 1, weights=self.count[by_key]).astype(np.float64)
        return Mechanisms(
            self.history[first],
            count,
            self.rate[first],
            self.noise[first],
            self.client_rate[first],
            self.steps[first],
            self.discrete[first],
            self.histories,
            self.curve[first],
            self.tuned,
            self.bound,
        )

    def take(self, rows: IntArray) -> Mechanisms:
        """The histories `rows`, in that order; repeated ones are repeated."""
        sizes = np.bincount(self.history, minlength=self.histories)
        first = np.cumsum(sizes) - sizes
        wanted = sizes[rows]
        of_row = np.repeat(np.arange(rows.size), wanted)
        offset = np.arange(of_row.size) - np.repeat(np.cumsum(wanted) - wanted, wanted)
        at = first[rows][of_row] + offset
        return Mechanisms(
            of_row,
            self.count[at],
            self.rate[at],
            self.noise[at],
            self.client_rate[at],
            self.steps[at],
            self.discrete[at],
            rows.size,
            self.curve[at],
            self.tuned,
            self.bound[rows],
        )

    def renamed(self, names: IntArray, histories: int) -> Mechanisms:
        """These mechanisms with history `n` renumbered to `names[n]`."""
        bound = np.zeros(histories)
        bound[names] = self.bound
        return replace(self, history=names[self.history], histories=histories, bound=bound)

    def bound_to(self, orders: FloatArray) -> Mechanisms:
        """These histories, each read at its own order alone; at any, where that is 0."""
        return replace(self, bound=orders)

    def busy(self) -> BoolArray:
        """Which histories have anything in them."""
        found: BoolArray = np.bincount(self.history, minlength=self.histories) > 0
        return found

    def alike(self) -> IntArray:
        """A number for each history; equal histories have equal numbers."""
        rows = np.stack(
            [
                self.count,
                self.rate,
                self.noise,
                self.client_rate,
                self.steps,
                self.discrete,
                self.curve,
            ],
            axis=1,
        )
        ends = np.cumsum(np.bincount(self.history, minlength=self.histories))
        known: dict[bytes, int] = {}
        begins = np.concatenate([[0], ends[:-1]])
        return np.array(
            [
                known.setdefault(rows[a:b].tobytes() + order.tobytes(), len(known))
                for a, b, order in zip(begins, ends, self.bound, strict=True)
            ],
            dtype=np.int64,
        )

    def rdp_at(self, order: FloatArray) -> FloatArray:
        """Exact divergence of each history at its own order, (histories,).

        Discrete rounds count as at the next whole order: divergences rise with their order.
        """
        a = order[self.history]
        a = np.where(self.discrete, np.maximum(np.ceil(a), 2.0), a)
        inner = self.steps * exact_rdp_at(self.rate, self.noise, a)
        divergence = two_stage(inner, self.client_rate, a)
        for row in np.flatnonzero(self.curve >= 0):
            divergence[row] = self._tuned_at(a[row : row + 1], self.curve[row])[0]
        return self._total(self.count * divergence)

    def curves(self, orders: Any = ORDERS, *, exact: bool = False) -> FloatArray:
        """Divergence of each history at every order, (histories, orders).

        If `exact`, it is an upper bound at every order. A history that is bound to an order has a
        divergence, an exact one, at that order alone.
        """
        if self.bound.any():
            return self._curves_if_bound(orders, exact)
        out, alpha = np.zeros((self.histories, len(orders))), np.asarray(orders, dtype=np.float64)
        for first in range(0, self.history.size, 4096):
            block = slice(first, first + 4096)
            single = np.zeros((self.history[block].size, alpha.size))
            rounds = self.curve[block] < 0
            single[rounds] = _rounds(
                self.rate[block][rounds], self.noise[block][rounds], tuple(orders), exact
            )
            inner = self.steps[block, None] * single
            divergence = two_stage(inner, self.client_rate[block, None], alpha)
            for row in np.flatnonzero(~rounds):
                divergence[row] = self._tuned_at(alpha, self.curve[block][row])
            divergence = self.count[block, None] * divergence
            who, begins = np.unique(self.history[block], return_index=True)
            out[who] += np.add.reduceat(divergence, begins)
        return out

    def _curves_if_bound(self, orders: Any, exact: bool) -> FloatArray:
        out, fixed = np.full((self.histories, len(orders)), np.inf), self.bound > 0
        rows = np.flatnonzero(fixed)
        at = np.asarray(orders) == self.bound[rows, None]
        out[rows] = np.where(at, self.take(rows).rdp_at(self.bound[rows])[:, None], np.inf)
        free = np.flatnonzero(~fixed)
        out[free] = self.take(free).curves(orders, exact=exact)
        return out

    def whole(self) -> BoolArray:
        """Which histories have discrete rounds, and are read at the best of the whole orders."""
        found = np.zeros(self.histories, dtype=bool)
        found[self.history[self.discrete]] = True
        found &= self.bound == 0
        return found

    def best(self, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Epsilon of each history at its `delta`, and its order; 0 for a history without rounds."""
        epsilon, order = np.zeros(self.histories), np.full(self.histories, 2.0)
        busy, whole, fixed = self.busy(), self.whole(), self.bound > 0
        mine = np.flatnonzero(busy & fixed)
        if mine.size:
            at = order[mine] = self.bound[mine]
            total = self.take(mine).rdp_at(at) + conversion_cost_at(at, delta[mine])
            epsilon[mine] = np.maximum(total, 0.0)
        free = busy & ~fixed
        for rows, orders in ((free & ~whole, ORDERS), (free & whole, WHOLE_ORDERS)):
            mine = np.flatnonzero(rows)
            if mine.size:
                epsilon[mine], order[mine] = self.take(mine)._lowest(delta[mine], orders)
        return epsilon, order

    def _lowest(
        self, delta: FloatArray, orders: tuple[float, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Steering finds an order to start at; from there the exact kernel walks to the lowest."""
        alpha, rows = np.asarray(orders), np.arange(self.histories)
        cost = conversion_costs(delta, orders)
        step = 1 if self.history.size <= _MANY_ROWS else 4
        at = step * (self.curves(orders[::step]) + cost[:, ::step]).argmin(axis=1)
        found = self.rdp_at(alpha[at]) + cost[rows, at]
        for direction in (1, -1):
            moving = rows
            while moving.size:
                to = np.clip(at[moving] + direction, 0, alpha.size - 1)
                value = self.take(moving).rdp_at(alpha[to]) + cost[moving, to]
                lower = value < found[moving]
                moving, to, value = moving[lower], to[lower], value[lower]
                at[moving], found[moving] = to, value
        return np.maximum(found, 0.0), alpha[at]

    def _tuned_at(self, order: FloatArray, row: int) -> FloatArray:
        return curve_at(order, np.asarray(_CURVE_ORDERS), self.tuned[row])

    def _total(self, per_row: FloatArray) -> FloatArray:
        total: FloatArray = np.bincount(
            self.history, weights=per_row, minlength=self.histories
        ).astype(np.float64)
        return total


def curve_at(wanted: FloatArray, orders: FloatArray, curves: FloatArray) -> FloatArray:
    """Rényi curves (..., orders) at other orders: divergences rise with their order, so that of the
    next listed order is a bound; beyond the last nothing is known.

    >>> curve_at(np.array([2.0, 2.5, 9.0]), np.array([2.0, 3.0]), np.array([0.1, 0.2])).tolist()
    [0.1, 0.2, inf]
    """
    beyond = np.full((*curves.shape[:-1], 1), np.inf)
    return np.append(curves, beyond, axis=-1)[..., np.searchsorted(orders, wanted)]


def _rounds(
    rate: FloatArray, noise: FloatArray, orders: tuple[float, ...], exact: bool
) -> FloatArray:
    """Divergence of single rounds, (rounds, orders); interpolated where many are distinct."""
    first, of_row = distinct_rows(rate, noise)
    # a table per rate pays off only if there are few rates
    if exact or first.size <= max(_EXACT_ROUNDS, 4 * np.unique(rate).size):
        divergence: FloatArray = rdp(rate[first], noise[first], orders)[of_row]
        return divergence
    out = np.empty((rate.size, len(orders)))
    for q in np.unique(rate):
        mine = rate == q
        out[mine] = curve(float(q), orders).rdp(np.log(noise[mine]))
    return out


def conversion_cost_at(order: FloatArray, delta: FloatArray) -> FloatArray:
    """`conversion_cost` element by element."""
    cost: FloatArray = np.log1p(-1 / order) - (np.log(delta) + np.log(order)) / (order - 1)
    return cost


def conversion_costs(delta: FloatArray, orders: Any = ORDERS) -> FloatArray:
    """`conversion_cost` for many deltas, (deltas, orders)."""
    distinct, of_row = np.unique(delta, return_inverse=True)
    return np.stack([conversion_cost(orders, float(d)) for d in distinct])[of_row]
