"""FedAvg: no clip, no noise, no privacy. The baseline for private methods.

McMahan et al. (2017), with the fixed denominator `clients * rate` of Kiani et al. (2025, Algorithm
3), so that a private method without noise and without clipping is exactly this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.server.methods.base import MethodEntry, Release, RoundTerms, State


@dataclass(frozen=True)
class FedAvg:
    clients: int
    rate: float
    name: str = "fedavg"

    def start(self) -> State:
        return {}

    def terms(self, round: int, state: State) -> RoundTerms:  # noqa: ARG002
        return RoundTerms(
            sampling_rate=np.full(self.clients, self.rate),
            clip_norm=np.full(self.clients, np.inf),
            deviation=0.0,
            denominator=self.clients * self.rate,
        )

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state


FEDAVG = MethodEntry(
    "fedavg",
    "no privacy: the baseline for methods that protect clients",
    make=lambda given: FedAvg(given.clients, given.rate),
    unit=None,
)
PRIVACY_FREE = MethodEntry(
    "privacy-free",
    "no privacy: the baseline for methods that protect records",
    make=lambda given: FedAvg(given.clients, given.rate, "privacy-free"),
    unit=None,
)
