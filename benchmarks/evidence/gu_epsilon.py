"""What the settings of Gu et al. (2023) cost for real: epsilon in place of the proxy, for the
trainings of logistic regression. The losses are those of the figures; nothing is trained.
"""

from __future__ import annotations

import numpy as np
from experiment import Finished
from gu import CLIP, Panel, Training, panels
from gu_window import Window, window
from tables import markdown

from fedspend.accounting.conversion import epsilon
from fedspend.accounting.rdp import ORDERS, rdp
from fedspend.basics.arrays import FloatArray
from fedspend.design import non_dominated
from fedspend.server.methods.dp_fedsgd import multiplier_of

DELTA = 1e-5
MOST = (5, 10, 20, 50, 100, 500, 3000)  # epsilons
BY_RATE = (10, 50)
NOTHING = "Not run yet: `--only gu-logistic`."


def multipliers(seen: Window) -> FloatArray:
    pairs = zip(seen.rates.tolist(), seen.levels.tolist(), strict=True)
    return np.array(
        [multiplier_of(level, rate=rate, clients=seen.clients, clip=CLIP) for rate, level in pairs]
    )


def epsilons(seen: Window) -> FloatArray:
    """The real epsilon of every rate and noise level (rows) after every T (columns)."""
    of_a_round = rdp(seen.rates, multipliers(seen), ORDERS)
    rounds = np.arange(1, seen.rounds + 1)
    found: FloatArray = epsilon(rounds[:, None] * of_a_round[:, None, :], ORDERS, DELTA)
    return found


def tables(results: Finished) -> str:
    few, free = (
        next(one for one in panels("logistic") if one.figure == figure)
        for figure in ("Figure 3", "Figure 2")
    )
    seen_few, seen_free = (window(results, panel.grid, panel) for panel in (few, free))
    if seen_few is None or seen_free is None:
        return NOTHING
    cost_few, cost_free = epsilons(seen_few), epsilons(seen_free)
    body = [
        ["K = 10, rate 1: loss (T, sigma)", *lowest_losses(seen_few, cost_few)],
        ["K = 40, rate free: loss (T, sigma, q)", *lowest_losses(seen_free, cost_free)],
    ]
    parts = [
        markdown(["epsilon at most", *(f"{most:,}" for most in MOST)], body),
        at_the_end(results, few, cost_few),
        by_rate(seen_free, cost_free),
    ]
    return "\n\n".join(parts)


def lowest_losses(seen: Window, cost: FloatArray) -> list[str]:
    return [within(seen, cost, most) for most in MOST]


def within(seen: Window, cost: FloatArray, most: float) -> str:
    """The lowest loss that costs at most this epsilon, and its setting."""
    loss = np.where(cost <= most, seen.loss, np.inf)
    row, column = np.unravel_index(int(loss.argmin()), loss.shape)
    if not np.isfinite(loss[row, column]):
        return "-"
    setting = [f"{column + 1}", f"{seen.levels[row]:g}"]
    if len(np.unique(seen.rates)) > 1:
        setting.append(f"{seen.rates[row]:g}")
    return f"{loss[row, column]:.2f} ({', '.join(setting)})"


def at_the_end(results: Finished, panel: Panel, cost: FloatArray) -> str:
    """Accuracy, which is known after the last round alone, with the most and the least noise."""
    trainings = panel.grid.trainings()

    def told(one: Training) -> str:
        line = results.found[one.key]
        return (
            f"{100 * line['accuracy']:.0f}% at sigma {one.level:g} and epsilon "
            f"{cost[trainings.index(one), -1]:,.0f}"
        )

    most, least = trainings[0], trainings[-1]
    return f"Accuracy after {panel.rounds} rounds, K = 10: {told(most)}; {told(least)}."


def real_front(seen: Window, cost: FloatArray) -> np.ndarray:
    """Which settings no other one beats in both loss and epsilon."""
    found = np.isfinite(seen.loss)
    found[found] = non_dominated(np.column_stack([seen.loss[found], cost[found]]))
    return found


def by_rate(seen: Window, cost: FloatArray) -> str:
    row, _ = seen.front()
    on_proxy = np.bincount(row, minlength=len(seen.rates))
    on_epsilon = real_front(seen, cost).sum(axis=1)
    rates = np.unique(seen.rates)
    proxy, real = (
        np.array([counts[seen.rates == rate].sum() for rate in rates])
        for counts in (on_proxy, on_epsilon)
    )
    body = [
        [f"{rate:g}", str(proxy[n]), str(real[n])]
        + [f"{_lowest(seen, cost, rate, most):.2f}" for most in BY_RATE]
        for n, rate in enumerate(rates)
    ]
    headings = [f"lowest loss within epsilon {most}" for most in BY_RATE]
    made = markdown(["rate", "front by proxy", "front by epsilon", *headings], body)
    noise = multipliers(seen)
    upper = rates > np.median(rates)
    shares = [counts[upper].sum() / counts.sum() for counts in (proxy, real)]
    told = " and ".join(f"{100 * share:.0f}%" for share in shares)
    advice = (
        " So a rate is chosen by epsilon, not by the proxy." if shares[1] > 2 * shares[0] else ""
    )
    return (
        f"{made}\n\nNoise multipliers are {noise.min():.2f} to {noise.max():.1f}. The upper "
        f"{upper.sum()} of {len(rates)} rates have {told} of the two fronts.{advice}"
    )


def _lowest(seen: Window, cost: FloatArray, rate: float, most: float) -> float:
    mine = seen.rates == rate
    return float(np.where(cost[mine] <= most, seen.loss[mine], np.inf).min())
