"""Constant rate, and noise by weights: one per round (`weights`) or a fixed ratio (`geometric`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.accounting.calibration import bands, check_feasible, solve, starting_cost
from fedspend.accounting.curves import curve
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number
from fedspend.planning.policies.base import Policy, Spending, Terms, Wish, sealed


def weighted(terms: Terms, wish: Wish) -> Spending:
    """`sigma_t = s w_t^(-1/2)`, with one s per budget, solved exactly.

    At large noise, a round's share of the budget is its weight.
    """
    return in_shape(terms, wish, -0.5 * np.log(wish.weights / wish.weights.mean()))


def in_shape(terms: Terms, wish: Wish, log_shape: FloatArray) -> Spending:
    """Noise `s exp(log_shape)`, with one s per budget, solved exactly.

    The shape is (rounds,), the same for all budgets, or (rounds, budgets), and then s is near 1.
    """
    budget, past = wish.budget, wish.past
    already = starting_cost(budget.size, terms.orders, terms.delta, past)
    check_feasible(budget, already)
    log_noise, binding = np.empty(budget.size), np.empty(budget.size, dtype=np.int64)
    own = log_shape.ndim == 2
    kinds, times = alike_rounds(log_shape) if own else (log_shape, None)
    for band in bands(
        budget,
        terms.delta,
        terms.rate,
        terms.rounds,
        terms.orders,
        margin=12,
        wide=past is not None,
    ):
        cost = already[band.rows, band.columns]
        found = solve(
            curve(terms.rate, terms.orders),
            1.0,
            cost,
            budget[band.rows],
            np.zeros(band.rows.size) if own else band.start,
            kinds[:, band.rows] if own else kinds,
            band.columns,
            times=times,
        )
        log_noise[band.rows], binding[band.rows] = (
            found.log_noise,
            found.binding + band.columns.start,
        )
    noise = np.exp(log_noise + (log_shape if own else log_shape[:, None]))
    rate = np.full_like(noise, terms.rate)
    return sealed(noise, rate, np.ones(noise.shape, dtype=bool), budget, binding, terms, past)


def alike_rounds(log_shape: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The distinct rows of (rounds, budgets), and how often each occurs.

    Only neighbours are compared: importance rises or falls steadily over most of a run.
    """
    begins = np.append(True, (log_shape[1:] != log_shape[:-1]).any(axis=1))
    first = np.flatnonzero(begins)
    return log_shape[first], np.diff(np.append(first, len(log_shape))).astype(np.float64)


def round_weights(policy: str, weights: Any, rounds: int) -> FloatArray:
    """One weight per round, from `rounds` positive numbers, or from the ratio of `geometric`."""
    if policy == "geometric":
        ratio = finite_number(
            "weights (the ratio of policy 'geometric')", 1.05 if weights is None else weights
        )
        if not ratio > 0:
            raise InvalidInput(
                f"weights (the ratio of policy 'geometric') must be positive, got {weights!r}"
            )
        with np.errstate(over="ignore"):
            array: FloatArray = np.power(ratio, np.arange(rounds) - (rounds - 1) / 2)
    elif weights is None:
        raise InvalidInput("policy 'weights' needs weights: one positive number per round")
    else:
        try:
            array = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInput(f"weights must be numbers, got {weights!r}") from None
    if array.shape != (rounds,):
        raise InvalidInput(
            f"weights must be one number per round: got {array.size} for {rounds} rounds"
        )
    if not np.all(np.isfinite(array) & (array > 0)):
        raise InvalidInput(
            "weights must be positive and finite, got "
            f"{array[~(np.isfinite(array) & (array > 0))][0]!r}"
        )
    if array.max() / array.min() > 1e6:
        raise InvalidInput(
            f"weights must lie within a factor of 1e6 of each other, got {array.min():g} to "
            f"{array.max():g}"
        )
    return array


WEIGHTS = Policy(
    "weights",
    "constant rate; a round's share of the budget is its weight",
    ("weights",),
    spend=weighted,
)
GEOMETRIC = Policy(
    "geometric",
    "constant rate; each round's weight is that of the round before times a fixed ratio",
    ("weights",),
    spend=weighted,
)
