"""DP-FedAvg, IDP-FedAvg, time-adaptive spending and DP-FedSGD: rounds that run exactly as the plan
says.

The first three share one mechanism (Kiani et al. 2025, Algorithm 2) and differ in the policy behind
their plan: `dp-fedavg` gives everyone the strictest budget, `idp-fedavg` gives each client its own,
`time-adaptive` also moves spending between rounds. `dp-fedsgd` may start from a noise level instead
of a budget; `dp_fedsgd` turns the one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedspend.planning.plan import Plan
from fedspend.server.methods.base import Release, RoundTerms, State


@dataclass(frozen=True)
class Planned:
    plan: Plan
    name: str

    def start(self) -> State:
        return {}

    def terms(self, round: int, state: State) -> RoundTerms:  # noqa: ARG002 - planned beforehand
        s, plan = self.plan.schedules, self.plan
        return RoundTerms(
            sampling_rate=s.sampling_rate[round, s.of_client],
            clip_norm=s.clip_norm[round, s.of_client],
            deviation=plan.clip * float(plan.round_noise[round]),
            denominator=len(plan.clients) * float(plan.round_rate[round]),
        )

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state
