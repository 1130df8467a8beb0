"""`grouped`: each group of equal budgets is summed and noised by itself, as in GDPFed.

A baseline for comparison, after the description of GDPFed and GDPFed+ (Xu, Hu and Kotevska 2025,
arXiv 2505.13655). There the server is curious and sees each group's sum, so a group g, sampled at
the rate q_g, has noise of its own, with the multiplier sigma_g that its budget demands; the model
sees the noise of all groups, of variance `c^2 sum_g sigma_g^2`. Everyone has the same clip c.

- `split = "equal"`: one rate for all groups.
- `split = "best"`: rates with the given mean that make that variance smallest.

Guarantee: noise and rates are planned and sealed. Here the groups' sums are added before anybody
sees them, and everybody profits from the noise of all groups: the plan's noise multiplier is
`sqrt(sum_g sigma_g^2)`, and what it claims is what that costs, below the budgets. What stays
unspent is the price of groups that are released one by one.
"""

from __future__ import annotations

import numpy as np

from fedspend.accounting.calibration import check_feasible, starting_cost
from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import choose
from fedspend.errors import InvalidInput
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish, by_itself, sealed
from fedspend.planning.policies.individual import at_mean, bisected, calibrated, noise_by_rate

SPLITS = ("best", "equal")
MOST_GROUPS = 20


def grouped(terms: Terms, wish: Wish) -> Spending:
    split = choose("split", wish.options.get("split", SPLITS[0]), SPLITS)
    if wish.budget.size > MOST_GROUPS:
        raise InvalidInput(
            f"policy 'grouped' adds the noise of every group and takes at most {MOST_GROUPS} "
            f"distinct budgets, got {wish.budget.size}; use policy 'uniform'"
        )
    already = starting_cost(wish.budget.size, terms.orders, terms.delta, wish.past)
    check_feasible(wish.budget, already)
    rate = (
        np.full(wish.budget.size, terms.rate)
        if split == "equal"
        else least_noise(terms, wish, already)
    )
    log_noise, binding = calibrated(terms, wish.budget, rate, already)
    shape = np.ones((terms.rounds, 1))
    noise, rates = shape * np.exp(log_noise), shape * rate
    own = sealed(noise, rates, noise > 0, wish.budget, binding, terms, wish.past).noise
    together = np.sqrt((own**2).sum(axis=1, keepdims=True)) * np.ones_like(own)
    # the epsilon and order are read again: this is more noise than any one budget demands
    return by_itself(Spending(together, rates, wish.budget, wish.budget), terms)


def least_noise(terms: Terms, wish: Wish, already: FloatArray) -> FloatArray:
    """The rate of each group; their mean over clients is the rate of the terms.

    All groups have the same slope of variance by expected participation: `d sigma_g^2 / d q_g` in
    proportion to their number of clients.
    """
    assert wish.clients_of is not None
    share = wish.clients_of / wish.clients_of.sum()
    tried, noise = noise_by_rate(terms, wish, already)
    variance = noise**2

    def rates_at(price: float) -> FloatArray:
        best: FloatArray = tried[(variance + price * share[:, None] * tried).argmin(axis=1)]
        return best

    steepest = np.abs(np.diff(variance, axis=1) / np.diff(tried)).max(axis=1)
    edge = float((steepest / share).max()) * 2
    return at_mean(bisected(rates_at, share, terms.rate, -edge, edge), share, terms.rate)


GROUPED = Policy(
    "grouped",
    "for comparison: each group of equal budgets has noise and rate of its own, as in GDPFed",
    ("split",),
    spend=grouped,
)
