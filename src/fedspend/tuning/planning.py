"""Finds the plan of a private tune: how much a trial may cost so that the tune fits every budget.

Guarantee: nothing here is trusted. The budgets of a trial are found by search; what the tune costs
with them is then computed from the finished plans, and refused if it is over anyone's budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.roots import safe_roots
from fedspend.accounting.trials import TUNE_ORDERS, NegativeBinomial
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.planning.plan import TRIAL, Plan
from fedspend.planning.request import PlanRequest
from fedspend.tuning.plan import TunePlan, reading_cost, tuned_curves

MOST_CLASSES = 500  # different clients, each with a curve of its own
# of a budget that is left unspent at most, and what the whole plan may differ from its sample
TOLERANCE, MARGIN = 1e-5, 1e-6
LEAST = 1e-3  # a trial gets no smaller part of a budget
SAME = "all settings of a tune must have the same clients, budgets and delta"


def plan_tune(
    settings: Sequence[tuple[str, ...]],
    requests: Sequence[PlanRequest],
    trials: NegativeBinomial,
    past: Mechanisms | None = None,
    ledger: str | None = None,
) -> TunePlan:
    """The plan in which every budget is spent on the tune, on top of `past`.

    `requests` has one request per setting, with the budgets of the clients for the whole tune.
    """
    first = requests[0]
    for one in requests[1:]:
        if not (
            one.clients == first.clients
            and np.array_equal(one.epsilons, first.epsilons)
            and one.delta == first.delta
        ):
            raise InvalidInput(SAME)
    inner = _Search(requests, trials, past).inner()
    plans = tuple(_trial_plan(one, inner) for one in requests)
    curves, of_class = tuned_curves(plans, trials)
    made = TunePlan(
        trials=trials,
        settings=tuple(settings),
        plans=plans,
        clients=first.clients,
        budget=np.array(first.epsilons, dtype=np.float64),
        delta=first.delta,
        of_class=of_class,
        curves=curves,
        ledger=ledger,
    )
    over = ~(made.epsilon <= made.budget)
    if over.any():
        at = int(np.flatnonzero(over)[0])
        raise Refused(
            f"the tune would cost client {made.clients[at]!r} {made.epsilon[at]:.9g}, over its "
            f"budget of {made.budget[at]:g}: no plan was found"
        )
    return made


def _trial_plan(request: PlanRequest, inner: FloatArray) -> Plan:
    """The plan of one trial, by Rényi curves, since the tune is read by these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        made = replace(request, epsilons=inner, accountant="rdp", past=None).plan()
    return made.replace(parameters=made.parameters | {TRIAL: True})


class _Search:
    """Looks for the budgets of a trial, one for each kind of client."""

    def __init__(
        self, requests: Sequence[PlanRequest], trials: NegativeBinomial, past: Mechanisms | None
    ) -> None:
        asked = requests[0]
        columns: list[np.ndarray[Any, np.dtype[Any]]] = [
            np.asarray(value)
            for one in requests
            for value in (one.saving_rate, one.transition)
            if isinstance(value, np.ndarray)
        ]
        if past is not None:
            columns.append(past.alike())
        first, self.of_client = distinct_rows(np.asarray(asked.epsilons), *columns)
        if first.size > MOST_CLASSES:
            raise Refused(
                f"a private tune takes at most {MOST_CLASSES} different kinds of clients, and "
                f"there are {first.size:,}: give fewer different budgets, for example by group"
            )
        self.first: IntArray = first  # of each kind, its first client
        # all clients, not one of each kind: rates may depend on how many there are
        self.requests = _distinct(requests)
        self.names = [asked.clients[int(n)] for n in first]
        self.budget: FloatArray = np.asarray(asked.epsilons, dtype=np.float64)[first]
        self.trials = trials
        self.before = reading_cost(TUNE_ORDERS, asked.delta) + (
            0.0 if past is None else past.take(first).curves(TUNE_ORDERS, exact=True)
        )

    def inner(self) -> FloatArray:
        """The budget of a trial for every client."""
        nothing = self.trials.price(np.zeros((1, len(TUNE_ORDERS))), TUNE_ORDERS)
        self._refuse_too_small((nothing + self.before).min(axis=1) >= self.budget * (1 - 1e-3))
        current = 0.5 * self.budget

        def evaluate(x: FloatArray, rows: IntArray) -> tuple[FloatArray, None]:
            current[rows] = self.budget[rows] * np.exp(-x)
            return np.log(self.cost(current) / (self.budget * (1 - MARGIN)))[rows], None

        start = np.full(self.budget.size, np.log(2.0))
        found = safe_roots(evaluate, start, 0.0, -np.log(LEAST), TOLERANCE)
        self._refuse_too_small(np.isnan(found))
        return (self.budget * np.exp(-found))[self.of_client]

    def cost(self, inner: FloatArray) -> FloatArray:
        """What the tune costs each kind of client if a trial may cost it `inner`."""
        plans = tuple(_trial_plan(one, inner[self.of_client]) for one in self.requests)
        curves, of_class = tuned_curves(plans, self.trials)
        epsilon: FloatArray = (curves[of_class[self.first]] + self.before).min(axis=-1)
        return np.maximum(epsilon, 1e-300)

    def _refuse_too_small(self, bad: BoolArray) -> None:
        bad = np.broadcast_to(bad, self.budget.shape)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise Refused(
                f"client {self.names[at]!r} has too little for a private tune (budget "
                f"{self.budget[at]:g}): trying {self.trials.mean:g} settings costs that much even "
                "if trials give nothing away; try fewer, or a larger budget"
            )


def _distinct(requests: Sequence[PlanRequest]) -> list[PlanRequest]:
    """The requests whose trials differ in what they cost: a clip alone costs nothing."""
    known: dict[str, PlanRequest] = {}
    with np.printoptions(threshold=2**31, floatmode="unique"):
        for one in requests:
            known.setdefault(repr(replace(one, clip=1.0)), one)
    return list(known.values())
