"""What a round releases besides updates, a bit or a metric, and what its price leaves for updates.

Guarantee: a client's number lies in [-1/2, 1/2] and is 0 where it has nothing to report, so zeroing
a client moves a sum of them by at most 1/2: noise of deviation sigma on that sum has the multiplier
`2 sigma`. Independent Gaussian releases about one sampled client add up like one whose `1 /
multiplier^2` is the sum of theirs. So a client whose plan allows the multiplier `sbar` in a round
gets `1 / sigma^2 = 1 / sbar^2 - 1 / (2 sigma_b)^2 - 1 / (2 sigma_e)^2` for its update, and all of
it together costs exactly what the plan accounts (docs/explanation/methods.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number

if TYPE_CHECKING:
    from fedspend.planning.plan import Plan
    from fedspend.planning.request import PlanRequest

BIT_NOISE, METRIC_NOISE = "bit_noise", "metric_noise"  # names in a plan's parameters
# noise of a share of clients that people find useful: 0.05 of it
_USUAL = 0.05
# What a metric may take of a round by default: 1/4^2 of the cost of the client with most noise.
_METRIC_MULTIPLES = 2.0
# What a bit may take: at most about 98% of a round.
_BIT_ROOM = 1.01


def taken(bit_noise: float | None, metric_noise: float | None) -> float:
    """What bit and metric take of `1 / sbar^2`.

    >>> taken(None, None), taken(2.0, None), taken(2.0, 1.0)
    (0.0, 0.0625, 0.3125)
    """
    numbers = (deviation for deviation in (bit_noise, metric_noise) if deviation is not None)
    return float(sum((2 * deviation) ** -2.0 for deviation in numbers))


def left_for_updates(
    total: FloatArray, bit_noise: float | None, metric_noise: float | None
) -> FloatArray:
    """The noise multipliers of updates, from those of everything that a round releases."""
    numbers = taken(bit_noise, metric_noise)
    if numbers == 0:
        return total
    left: FloatArray = total**-2.0 - numbers
    if not bool((left > 0).all()):
        raise InvalidInput(too_little(float(total.max()), bit_noise, metric_noise))
    updates: FloatArray = left**-0.5
    return updates


def too_little(largest: float, bit_noise: float | None, metric_noise: float | None) -> str:
    """Why this noise on bits and metrics leaves nothing for updates, and what would."""
    if metric_noise is None:
        return (
            f"bit_noise {bit_noise:g} is too small: the plan's noise multipliers reach "
            f"{largest:.4g} and must stay below twice bit_noise; use at least {largest:.4g} "
            "(0.05 times the expected cohort is usual)"
        )
    if bit_noise is None:
        return (
            f"evaluation.noise {metric_noise:g} is too small: the plan's noise multipliers reach "
            f"{largest:.4g} and must stay below twice that; use at least {largest:.4g} (0.05 times "
            "the expected cohort is usual)"
        )
    return (
        f"bit_noise {bit_noise:g} and evaluation.noise {metric_noise:g} leave nothing for updates: "
        f"the plan's noise multipliers reach {largest:.4g}; use at least {largest:.4g} for both"
    )


def usual_metric_noise(plan: Plan) -> float:
    """0.05 times the expected cohort, or so much that updates hardly notice."""
    return max(
        _USUAL * expected_cohort(plan),
        _METRIC_MULTIPLES * float(plan.schedules.noise_multiplier.max()),
    )


def usual_bit_noise(plan: Plan) -> float:
    """0.05 times the expected cohort, or as much as the plan needs beside its metric."""
    largest = float(plan.schedules.noise_multiplier.max())
    if plan.metric_noise is not None:
        largest = float(left_for_updates(np.array([largest]), None, plan.metric_noise)[0])
    return max(_USUAL * expected_cohort(plan), _BIT_ROOM * largest / 2)


def expected_cohort(plan: Plan) -> float:
    return float(plan.round_rate.min()) * len(plan.clients)


def with_parts(plan: Plan, request: PlanRequest) -> Plan:
    """The plan, stating how much noise the bit and the metric get where they are asked for, with
    the clips that this leaves for updates.
    """
    for name, asked, noise, usual in (
        (METRIC_NOISE, request.metric, request.metric_noise, usual_metric_noise),
        (BIT_NOISE, request.bit, request.bit_noise, usual_bit_noise),
    ):
        if asked or noise is not None:
            plan = stating(plan, {name: usual(plan) if noise is None else checked(name, noise)})
    return plan


def checked(name: str, noise: object) -> float:
    number = finite_number(name, noise)
    if not number > 0:
        raise InvalidInput(f"{name} must be positive, got {noise!r}")
    return number


def stating(plan: Plan, parts: dict[str, float]) -> Plan:
    from dataclasses import replace

    from fedspend.planning.plan import clip_norms

    parameters = plan.parameters | parts
    s = plan.schedules
    updates = left_for_updates(
        s.noise_multiplier, parameters.get(BIT_NOISE), parameters.get(METRIC_NOISE)
    )
    clip_norm = clip_norms(plan.clip * plan.clip_factors, updates, s.clients_of)
    return plan.replace(parameters=parameters, schedules=replace(s, clip_norm=clip_norm))
