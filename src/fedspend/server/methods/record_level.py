"""rPDP-FL and its baselines (Liu et al. 2024, Algorithm 3): noise is added in every local step.

So the server only averages. The denominator is the planned number of clients that take part and
have a record to train with, never the number that turned up. A client's task has the terms of its
own records only; where records stay at their silos, none, and every silo counts in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.records.planning import RecordPlan
from fedspend.server.methods.base import Given, Method, MethodEntry, Release, RoundTerms, State

if TYPE_CHECKING:
    from fedspend.client.task import RecordTerms


@dataclass(frozen=True)
class RecordLevel:
    plan: RecordPlan
    name: str = "rpdp"

    def start(self) -> State:
        return {}

    def terms(self, round: int, state: State) -> RoundTerms:  # noqa: ARG002 - planned beforehand
        clients, rate = len(self.plan.clients), self.plan.terms.client_rate
        batch = self.plan.expected_batch(round)
        return RoundTerms(
            sampling_rate=np.full(clients, rate),
            clip_norm=np.full(clients, np.inf),
            deviation=0.0,
            denominator=rate * max(1, int((batch[0] > 0).sum())),
            records=lambda number: self._own(round, number, batch[:, number]),
        )

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state

    def _own(self, round: int, number: int, batch: FloatArray) -> RecordTerms:
        from fedspend.client.task import RecordTerms, silo_terms  # need torch; a plan does not

        if self.plan.silos is not None:
            return silo_terms(self.plan.clip, self.plan.terms.noise_multiplier)
        plan, classes = self.plan, self.plan.classes_of_client[number]
        return RecordTerms(
            rate=plan.schedules.sampling_rate[round][classes],
            steps=plan.steps[round][classes],
            batch=batch,
            clip=plan.clip,
            noise_multiplier=plan.terms.noise_multiplier,
            by_norm=plan.by_norm,
            norm_budget=self._norm_budget[classes] if plan.by_norm else None,
        )

    @cached_property
    def _norm_budget(self) -> FloatArray:
        total: FloatArray = self.plan.steps.sum(axis=0)
        return total


def _entry(name: str, help: str, *keys: str) -> MethodEntry:
    def make(given: Given, **_: object) -> Method:  # what the keys say is in the plan
        wrong = f"method {name!r} needs a plan of records"
        return RecordLevel(RecordPlan.expect(given.plan, wrong), name)

    return MethodEntry(name, help, keys, make=make, unit="record")


RECORD_METHODS = (
    _entry(
        "rpdp", "every record is sampled as often as its budget allows", "rates", "saving_share"
    ),
    _entry("minimum", "every record as often as the strictest budget allows", "rates"),
    _entry("dropout", "only records that allow the mean budget or more, at its rate", "rates"),
    _entry("filter", "every record at one rate until its budget is spent", "common_rate", "charge"),
)
