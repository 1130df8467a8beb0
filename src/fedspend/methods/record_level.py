"""rPDP-FL and its baselines (Liu et al. 2024, Algorithm 3): noise is added in every local step, so the server only averages.

The denominator is the planned number of clients that take part and have a record to train with, never the number that turned up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.methods.base import Release, RoundTerms, State
from fedspend.records.planning import RecordPlan


@dataclass(frozen=True)
class RecordLevel:
    plan: RecordPlan
    name: str = "rpdp"

    def start(self) -> State:
        return {}

    def terms(self, round: int, state: State) -> RoundTerms:  # noqa: ARG002 - planned beforehand
        clients, rate = len(self.plan.clients), self.plan.terms.client_rate
        busy = int((self.plan.expected_batch(round)[0] > 0).sum())
        return RoundTerms(
            sampling_rate=np.full(clients, rate),
            clip_norm=np.full(clients, np.inf),
            deviation=0.0,
            denominator=rate * max(1, busy),
        )

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state
