"""The plan of a private tune: a plan for one trial of every setting, and the price of the best.

Guarantee: whichever setting a trial has, its Rényi curve is at most the pointwise maximum over all
settings; the curve of the tune is the price of that maximum (`accounting.trials`), rounded up; and
for every client its epsilon at the plan's delta is within the client's budget. Like any plan it
depends on budgets and public parameters only. It is read by Rényi curves and by nothing else.

The base mechanism is: draw a setting at random, train under its plan, give setting, score and
releases. Drawing the setting does not look at the data, so the divergence of that mixture is at
most the largest of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import ORDERS
from fedspend.accounting.trials import TUNE_ORDERS, NegativeBinomial, trials_from
from fedspend.basics.arrays import FloatArray, IntArray, distinct_rows
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput
from fedspend.ledger.rules import Proposal
from fedspend.planning.plan import ADJACENCY, Plan
from fedspend.planning.plan_file import CLIENT_PLAN
from fedspend.planning.plan_json import Content, Kind, Saved, built, floats, integers, load

FORMAT, VERSION = "fedspend-tune", 1
METHOD = "private tune"  # as the ledger calls it
OBSERVER = (
    "other clients and the public, who see the winner alone: neither how many trials there were, "
    "nor how long they took, nor any other trial"
)
ROUNDED_UP = 1e-9  # relative: more than the curves' own rounding


@dataclass(frozen=True, eq=False)
class TunePlan(Saved):
    """What a private tune may do, and what each client pays for it."""

    trials: NegativeBinomial
    settings: tuple[tuple[str, ...], ...]  # the overrides of each setting
    plans: tuple[Plan, ...]  # and the plan of a trial that has it
    clients: tuple[str, ...]
    budget: FloatArray
    delta: float
    of_class: IntArray  # (clients,) clients that pay the same
    curves: FloatArray  # (classes, orders)
    orders: tuple[float, ...] = TUNE_ORDERS
    ledger: str | None = None  # the head of the ledger whose past it was made on

    def __post_init__(self) -> None:
        check_tune_plan(self)

    @cached_property
    def claims(self) -> tuple[FloatArray, FloatArray]:
        """Epsilon of each class, and the order at which it is read."""
        read = self.curves + reading_cost(self.orders, self.delta)
        at = read.argmin(axis=1)
        return np.maximum(read.min(axis=1), 0.0), np.array(self.orders)[at]

    @property
    def epsilon(self) -> FloatArray:
        """What the tune costs each client, (clients,)."""
        return self.claims[0][self.of_class]

    @property
    def inner(self) -> FloatArray:
        """The most that one trial may cost each client, (clients,)."""
        least: FloatArray = self.plans[0].budget
        return least

    def proposal(self) -> Proposal:
        """What the ledger is asked to admit."""
        nothing = np.zeros((0, len(self.curves)))
        return Proposal(
            names=self.clients,
            budgets=self.budget,
            delta=self.delta,
            of_class=self.of_class,
            rate=nothing,
            noise=nothing,
            plan=self.hash,
            method=METHOD,
            order=self.claims[1],
            curves=self.curves,
            orders=np.array(self.orders),
        )

    def content(self) -> Content:
        return {
            "format": FORMAT,
            "version": VERSION,
            "guarantee": {
                "unit": "client",
                "adjacency": ADJACENCY,
                "observer": OBSERVER,
                "delta": self.delta,
            },
            "trials": self.trials.content(),
            "settings": [list(one) for one in self.settings],
            "clients": {
                "id": list(self.clients),
                "budget": self.budget.tolist(),
                "class": self.of_class.tolist(),
            },
            "ledger": self.ledger,
            "orders": list(self.orders),
            "curves": self.curves.tolist(),
            "plans": [plan.content() | {"hash": plan.hash} for plan in self.plans],
        }

    @property
    def who(self) -> str:
        return counted(len(self.clients), "client")


def reading_cost(orders: tuple[float, ...], delta: float) -> FloatArray:
    """The cost of reading a curve at each order: infinite at those that accounts are not read at,
    except beside discrete rounds of version 0.1.
    """
    cost: FloatArray = np.where(np.isin(orders, ORDERS), conversion_cost(orders, delta), np.inf)
    return cost


def check_tune_plan(plan: TunePlan) -> None:
    """Refuse parts that do not fit together; `checking.verify_tune` checks the promise."""
    clients, classes = len(plan.clients), len(plan.curves)
    sizes = (plan.budget.shape, plan.of_class.shape)
    if not (len(plan.settings) == len(plan.plans) >= 1 and sizes == ((clients,), (clients,))):
        raise InvalidInput("the tune's settings, plans, clients and budgets do not fit together")
    if plan.curves.shape != (classes, len(plan.orders)) or not (
        plan.of_class.min() >= 0 and plan.of_class.max() < classes
    ):
        raise InvalidInput("the tune's curves do not fit its clients and orders")
    for one in plan.plans:
        if one.clients != plan.clients or one.delta != plan.delta:
            raise InvalidInput("a trial's plan is not for the tune's clients and delta")


def from_content(content: Content) -> TunePlan:
    guarantee, clients = content["guarantee"], content["clients"]
    for name, expected in (("unit", "client"), ("adjacency", ADJACENCY), ("observer", OBSERVER)):
        if guarantee[name] != expected:
            raise InvalidInput(
                f"the guarantee's {name} {guarantee[name]!r} is not one that this version of "
                "fedspend can check"
            )
    ledger = content["ledger"]
    if not (ledger is None or isinstance(ledger, str)):
        raise InvalidInput("the tune is malformed: its ledger is no text")
    return TunePlan(
        trials=trials_from(content["trials"]),
        settings=tuple(tuple(map(str, one)) for one in content["settings"]),
        plans=tuple(built(CLIENT_PLAN, dict(one)) for one in content["plans"]),
        clients=tuple(map(str, clients["id"])),
        budget=floats(clients["budget"]),
        delta=float(floats([guarantee["delta"]])[0]),
        of_class=integers(clients["class"]),
        curves=np.stack([floats(one) for one in content["curves"]]),
        orders=tuple(floats(content["orders"]).tolist()),
        ledger=ledger,
    )


TUNE_PLAN: Kind[TunePlan] = Kind(
    FORMAT,
    VERSION,
    ("guarantee", "trials", "settings", "clients", "ledger", "orders", "curves", "plans"),
    build=from_content,
)


def load_tune_plan(path: Path) -> TunePlan:
    """The plan of a tune in a file; refuses one that is malformed or was altered."""
    return load(path, TUNE_PLAN)


def tuned_curves(plans: tuple[Plan, ...], trials: NegativeBinomial) -> tuple[FloatArray, IntArray]:
    """The curve of every class of clients, and the class of each client."""
    first, of_class = distinct_rows(*(plan.schedules.of_client for plan in plans))
    largest = np.zeros((first.size, len(TUNE_ORDERS)))
    known: dict[bytes, FloatArray] = {}
    for plan in plans:
        table = plan.schedules
        key = plan.accounted_noise.tobytes() + table.sampling_rate.tobytes()
        if key not in known:  # settings may differ in what costs nothing: learning rate, clip
            rounds = Mechanisms.of_schedules(plan.accounted_noise, table.sampling_rate)
            known[key] = rounds.curves(TUNE_ORDERS, exact=True)
        largest = np.maximum(largest, known[key][table.of_client[first]])
    curves: FloatArray = trials.price(largest, TUNE_ORDERS) * (1 + ROUNDED_UP)
    return curves, of_class


def summary(plan: TunePlan) -> dict[str, Any]:
    """What run.json and the certificate say of the tune."""
    return {
        "plan": plan.hash,
        "trials": plan.trials.content() | {"expected": plan.trials.mean},
        "settings": len(plan.settings),
        "epsilon": float(plan.epsilon.max()),
        "delta": plan.delta,
        "of one trial": float(plan.inner.max()),
    }


__all__ = ["TUNE_PLAN", "TunePlan", "load_tune_plan", "summary", "tuned_curves"]
