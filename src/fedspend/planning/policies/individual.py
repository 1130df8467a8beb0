"""`individual-rates`: larger budgets buy a higher sampling rate, in place of a larger clip.

Under `uniform` everyone is sampled at the same rate, and a larger budget means a larger clip. Here
it means being sampled more often. `rate` is the mean over clients, so taking part costs the same.

- `split = "rates"`: everyone has about the same noise multiplier and clip; only rates differ.
- `split = "best"`: rates and clips share the difference such that noise is smallest relative to the
  expected sum of clipped updates, `sum_n q_n c_n`: with `c_n = c s / sigma_n`, that ratio is
  `1 / sum_n q_n / sigma_n`.

Guarantee: rates are public and planned. Each client's noise is then calibrated to its own budget at
its own rate, and sealed: a client at rate 1 that could afford more gets a larger clip.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedspend.accounting.calibration import check_feasible, first_guess, starting_cost
from fedspend.accounting.rdp import NOISE_RANGE, rdp
from fedspend.accounting.roots import safe_roots
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.choices import choose
from fedspend.errors import InvalidInput
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish, sealed

Rates = Callable[[float], FloatArray]
SPLITS = ("best", "rates")
MOST_LINES = 512
_WIDEST = 10.0  # a rate is at most this many times the mean, and at least a tenth of it
_NODES, _TRIED = 17, 800  # rates at which noise is calibrated, and that are compared
_COARSE = 3  # while searching, every third order is enough
_CLOSE = 3e-4  # relative; less is of the size of the steps of the table


def individual_rates(terms: Terms, wish: Wish) -> Spending:
    split = choose("split", wish.options.get("split", SPLITS[0]), SPLITS)
    if wish.budget.size > MOST_LINES:
        raise InvalidInput(
            f"policy 'individual-rates' takes at most {MOST_LINES} distinct budgets, got "
            f"{wish.budget.size}; use policy 'uniform'"
        )
    already = starting_cost(wish.budget.size, terms.orders, terms.delta, wish.past)
    check_feasible(wish.budget, already)
    rate = found_rates(terms, wish, already, split)
    log_noise, binding = calibrated(terms, wish.budget, rate, already)
    shape = np.ones((terms.rounds, 1))
    noise, rates = shape * np.exp(log_noise), shape * rate
    return sealed(noise, rates, noise > 0, wish.budget, binding, terms, wish.past)


def found_rates(terms: Terms, wish: Wish, already: FloatArray, split: str) -> FloatArray:
    """The rate of each line; their mean over clients is the rate of the terms."""
    assert wish.clients_of is not None
    share = wish.clients_of / wish.clients_of.sum()
    tried, noise = noise_by_rate(terms, wish, already)

    def rates_at(price: float) -> FloatArray:
        """Falls with the price: of noise for all, or of rate for a client's worth `q / sigma`."""
        if split == "rates":
            return np.array([np.interp(-price, one, tried) for one in noise])
        best: FloatArray = tried[(tried / noise - price * tried).argmax(axis=1)]
        return best

    edge = float(noise.max()) if split == "rates" else float((1 / noise).max())
    found = at_mean(bisected(rates_at, share, terms.rate, -edge, edge), share, terms.rate)
    if split == "rates":
        return found

    def worth(rate: FloatArray) -> float:
        of_each = [q / np.interp(q, tried, one) for q, one in zip(rate, noise, strict=True)]
        return float(share @ np.array(of_each))

    # between close budgets the search sees little but the steps of its own table
    equal = np.full(found.size, terms.rate)
    return found if worth(found) > worth(equal) * (1 + _CLOSE) else equal


def noise_by_rate(terms: Terms, wish: Wish, already: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rates around that of the terms, and the noise of each line at each of them."""
    from scipy.interpolate import PchipInterpolator  # slow to import, and few plans need it

    low, high = terms.rate / _WIDEST, min(1.0, terms.rate * _WIDEST)
    nodes, lines = np.geomspace(low, high, _NODES), wish.budget.size
    log_noise, _ = calibrated(
        terms, np.repeat(wish.budget, _NODES), np.tile(nodes, lines), already, coarse=True
    )
    tried = np.geomspace(low, high, _TRIED)
    noise = [
        np.exp(PchipInterpolator(np.log(nodes), one)(np.log(tried)))
        for one in log_noise.reshape(lines, _NODES)
    ]
    return tried, np.array(noise)


def bisected(
    rates_at: Rates, share: FloatArray, mean: float, low: float, high: float
) -> FloatArray:
    for _ in range(60):
        price = (low + high) / 2
        low, high = (low, price) if share @ rates_at(price) < mean else (price, high)
    return rates_at(high)


def at_mean(rate: FloatArray, share: FloatArray, mean: float) -> FloatArray:
    """The same rates, scaled so that their mean is right; none above 1."""
    full = np.full(rate.size, mean >= 1)
    for _ in range(rate.size):
        if full.all():
            return np.ones(rate.size)
        free = (mean - share[full].sum()) / (share[~full] @ rate[~full])
        if not (rate[~full] * free > 1).any():
            break
        full |= rate * free > 1
    return np.where(full, 1.0, np.minimum(rate * free, 1.0))


def calibrated(
    terms: Terms, budget: FloatArray, rate: FloatArray, already: FloatArray, coarse: bool = False
) -> tuple[FloatArray, IntArray]:
    """Log noise of each pair of budget and rate, and the column of the order that binds.

    `already` has a row per line; pairs come line by line.
    """
    columns = np.arange(0, len(terms.orders), _COARSE if coarse else 1)
    orders = tuple(np.asarray(terms.orders)[columns].tolist())
    room = budget[:, None] - np.repeat(already, budget.size // len(already), axis=0)[:, columns]
    binding = np.zeros(budget.size, dtype=np.int64)

    def gap(x: FloatArray, rows: IntArray) -> tuple[FloatArray, None]:
        cost = terms.rounds * rdp(rate[rows], np.exp(x), orders)
        best = (cost - room[rows]).argmin(axis=1)
        binding[rows] = columns[best]
        cells = (np.arange(rows.size), best)
        spent, left = cost[cells], room[rows][cells]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(left > 0, np.log(spent / left), 1.0), None

    start = np.array(
        [
            float(first_guess(np.array([one]), terms.delta, q, terms.rounds)[0])
            for one, q in zip(budget, rate, strict=True)
        ]
    )
    least, most = (float(np.log(edge)) for edge in NOISE_RANGE)
    found = safe_roots(gap, start, least, most, 1e-4 if coarse else 1e-9)
    return found, binding


INDIVIDUAL_RATES = Policy(
    "individual-rates",
    "constant noise; larger budgets are sampled more often, around the mean rate",
    ("split",),
    spend=individual_rates,
)
