"""DP-FedAvg, IDP-FedAvg, time-adaptive spending and DP-FedSGD: rounds that run exactly as planned.

The first three share one mechanism (Kiani et al. 2025, Algorithm 2) and differ in the policy behind
their plan: `dp-fedavg` gives everyone the strictest budget, `idp-fedavg` gives each client its own,
`time-adaptive` also moves spending between rounds, by default to where it does the most good.
`dp-fedsgd` may start from a noise level instead of a budget; `dp_fedsgd` converts one into the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedspend.planning.plan import Plan
from fedspend.planning.policies.optimal import OPTIMAL
from fedspend.planning.policies.table import OURS
from fedspend.server.methods.base import Given, Method, MethodEntry, Release, RoundTerms, State


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
            deviation=float(plan.round_deviation[round]),
            denominator=len(plan.clients) * float(plan.round_rate[round]),
        )

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state


def planned(name: str) -> Callable[..., Method]:
    """Returns the maker of a method that follows the plan and does nothing else."""

    def make(given: Given, **_: object) -> Method:  # what the keys say is in the plan
        return Planned(Plan.expect(given.plan, f"method {name!r} needs a plan of clients"), name)

    return make


DP_FEDAVG = MethodEntry(
    "dp-fedavg",
    "everyone gets the protection that the strictest client wants",
    make=planned("dp-fedavg"),
    policies=("strictest",),
    clip_schedule="follows",
)
IDP_FEDAVG = MethodEntry(
    "idp-fedavg",
    "each client spends its own budget, evenly over the rounds",
    make=planned("idp-fedavg"),
    policies=("uniform", "individual-rates"),
    clip_schedule="follows",
)
TIME_ADAPTIVE = MethodEntry(
    "time-adaptive",
    "each client spends its own budget, more of it in some rounds than in others",
    make=planned("time-adaptive"),
    policies=("optimal", "spend-as-you-go", "spend-as-you-go-literal", "weights", "geometric"),
    own_policies=True,
    clip_schedule="follows",
)
DP_FEDSGD = MethodEntry(
    "dp-fedsgd",
    "a few local steps; noise may be set by a level in place of a budget",
    ("noise_level",),
    make=planned("dp-fedsgd"),
    policies=("strictest",),
)
AE_DPFL = MethodEntry(
    "ae-dpfl",
    "clients vote on public rows, and a student learns from the noised votes",
    make=planned("ae-dpfl"),
    # a student learns from all votes so far, so noise has no influence that fades
    policies=tuple(name for name in OURS if name != OPTIMAL.name),
    own_policies=True,
    clip_schedule="constant",
)
