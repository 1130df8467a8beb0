"""What a request for a plan may say: each of its parts is checked here, and read.

Guarantee: bad input is refused before any schedule is made; what has no effect is warned of.
Conditions are written so that NaN fails them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fedspend.accounting.accountants import (
    ACCOUNTANTS,
    AUTO,
    Accountant,
)
from fedspend.accounting.calibration import check_rate
from fedspend.accounting.conversion import check_planned_delta
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS
from fedspend.basics.arrays import FloatArray
from fedspend.basics.choices import near
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.noise.grid import check_bits
from fedspend.planning.clipping import check_clip
from fedspend.planning.columns import numbers_of
from fedspend.planning.influence import (
    Foresight,
    checked_contraction,
    checked_course,
    checked_influence,
)
from fedspend.planning.policies import (
    POLICIES,
    Policy,
    Terms,
    policy_for,
    round_weights,
    with_key,
)
from fedspend.planning.request import PlanRequest

NOISES = ("continuous", "discrete", "discrete-distributed")
MAX_CELLS = 50_000_000  # rounds x schedules


def checked_terms(request: PlanRequest) -> tuple[Terms, float]:
    """The terms of all schedules, and the clip. Discrete noise of older versions in the past is
    read at whole orders.
    """
    if request.noise not in NOISES:
        raise InvalidInput(
            f"noise must be one of {', '.join(NOISES)}; got {request.noise!r}"
            + near(request.noise, NOISES, "; ")
        )
    check_bits(whole_number("bits", request.bits, 1))
    whole = request.past is not None and bool(request.past.whole().any())
    terms = Terms(
        check_planned_delta(request.delta),
        check_rate("rate", request.rate),
        whole_number("rounds", request.rounds, 1),
        WHOLE_ORDERS if whole else ORDERS,
    )
    check_size(terms.rounds, 1)
    return terms, check_clip(request.clip)


def checked_accountant(request: PlanRequest) -> Accountant | None:
    """The accountant that is asked for; None: the plan chooses (`accounted_by`)."""
    if request.accountant == AUTO:
        return None
    if request.accountant not in ACCOUNTANTS:
        raise InvalidInput(
            f"accountant must be one of {', '.join((AUTO, *ACCOUNTANTS.names))}; got "
            f"{request.accountant!r}" + near(request.accountant, ACCOUNTANTS.names, "; ")
        )
    return ACCOUNTANTS[request.accountant]


def checked_policy(request: PlanRequest) -> Policy:
    policy = POLICIES[
        policy_for(
            request.method,
            request.policy,
            saves=request.saving_rate is not None,
            weighted=request.weights is not None,
        )
    ]
    stranger = next((key for key in request.options if key not in policy.keys), None)
    if stranger is not None:
        raise InvalidInput(
            f"policy {policy.name!r} has no option {stranger!r}; it takes "
            f"{', '.join(policy.keys) or 'none'}"
        )
    return policy


def weights_of(policy: Policy, terms: Terms, weights: Any) -> FloatArray:
    if weights is not None and not policy.weighs:
        raise InvalidInput(
            f"weights are for the policies {' and '.join(with_key('weights'))}, not for "
            f"{policy.name!r}; drop one of the two"
        )
    return (
        round_weights(policy.name, weights, terms.rounds)
        if policy.weighs
        else np.ones(terms.rounds)
    )


def foresight_of(
    policy: Policy, request: PlanRequest, terms: Terms, rates: FloatArray | None
) -> Foresight | None:
    """What the policy knows about training; None for one that does not look ahead."""
    contraction = checked_contraction(request.contraction)
    course = checked_course(terms.rounds, request.tail, request.server_momentum, rates)
    if request.tail is not None and request.tail > request.rounds:
        raise InvalidInput(
            f"tail is {request.tail}, but there are {request.rounds} rounds; set it to at most "
            f"{request.rounds}"
        )
    if policy.foresees:
        measured = checked_influence(request.influence, contraction, terms.rounds)
        return Foresight(course, contraction, measured)
    for name, given in (
        ("contraction", request.contraction),
        ("influence", request.influence),
        ("tail", request.tail),
    ):
        if given is not None:
            warnings.warn(
                f"{name} has no effect under policy {policy.name!r}", FedspendWarning, stacklevel=5
            )
    return None


def warn_of_delta(delta: float, units: int, unit: str = "client") -> None:
    if delta >= 1 / units:
        warnings.warn(
            f"delta {delta:g} is at or above 1/{unit}s = {1 / units:g}: it would permit "
            f"exposing one {unit} completely; choose a smaller delta",
            FedspendWarning,
            stacklevel=5,
        )


def check_past(past: Mechanisms | None, accountant: Accountant | None, clients: int) -> None:
    if past is None:
        return
    if not (accountant is None or accountant.at_orders):
        raise InvalidInput(
            "planning with past spending needs accountant 'rdp' or 'auto', got "
            f"{accountant.name!r}; drop that accountant"
        )
    if past.histories != clients:
        raise InvalidInput(
            f"there must be one history per client: got {past.histories} for {clients} clients"
        )


def check_size(rounds: int, schedules: int) -> None:
    """Refuse a plan too large for memory: a mistyped number should not fill it."""
    if rounds * schedules > MAX_CELLS:
        raise InvalidInput(
            f"{rounds} rounds of {schedules} distinct schedules are more than a plan can hold; "
            "plan fewer rounds"
        )


def saving_terms(
    policy: Policy, terms: Terms, saving_rate: Any, transition: Any, clients: int
) -> tuple[FloatArray, FloatArray]:
    """Saving rate and transition round of each client; neutral values for policies without them."""
    if not policy.saves:
        given = (
            "saving_rate"
            if saving_rate is not None
            else "transition"
            if transition is not None
            else None
        )
        if given is not None:
            warnings.warn(
                f"{given} has no effect under policy {policy.name!r}", FedspendWarning, stacklevel=5
            )
        return np.full(clients, terms.rate), np.ones(clients)
    if saving_rate is None:
        raise InvalidInput(
            f"policy {policy.name!r} needs a saving rate: the lower sampling rate for the rounds "
            "before the transition"
        )
    saving = numbers_of("saving_rate", saving_rate, clients)
    bad = ~((saving > 0) & (saving <= terms.rate))
    if bad.any():
        raise InvalidInput(
            f"saving_rate must lie in (0, {terms.rate:g}], at most the rate; got "
            f"{float(saving[bad][0])!r}"
        )
    switch = numbers_of(
        "transition", terms.rounds // 2 + 1 if transition is None else transition, clients
    )
    bad = ~((switch >= 1) & (switch <= terms.rounds) & (switch == np.floor(switch)))
    if bad.any():
        raise InvalidInput(
            f"transition must be a round from 1 to {terms.rounds}; got {float(switch[bad][0]):g}"
        )
    # Nothing is saved at the full rate or before round 1: the schedule is that of uniform, so let
    # them share storage.
    saving = np.where(switch == 1, terms.rate, saving)
    return saving, np.where(saving == terms.rate, 1.0, switch)
