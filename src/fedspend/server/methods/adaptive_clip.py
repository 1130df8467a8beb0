"""Adaptive clipping (Andrew et al. 2021), also with individual and time-adaptive budgets.

Each sampled client adds one bit, whether its update was within its clip; the noised sum of the bits
moves the clip towards a target quantile.

Guarantee: the bit is released shifted, `b - 1/2`, so its sensitivity is 1/2 and its multiplier
`2 sigma_b`. A client whose plan allows the total multiplier `sbar_n` gets
`sigma_n = (1/sbar_n^2 - 1/(2 sigma_b)^2)^(-1/2)` for its update; the two Gaussian releases together
cost exactly what the plan accounts. `s_t` and the clip ratios are recomputed from the `sigma_n`:
keeping the plan's ratios would overspend the strictest client. The clip of a round depends on
earlier releases only; where the plan has a clip schedule, its factors multiply the adapted clip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.errors import InvalidInput
from fedspend.planning.plan import Plan, harmonic_mean
from fedspend.planning.policies.table import OURS
from fedspend.server.methods.base import Given, Method, MethodEntry, Release, RoundTerms, State


@dataclass(frozen=True)
class AdaptiveClip:
    plan: Plan
    bit_noise: float  # sigma_b, standard deviation of the noise on the sum of bits
    target_quantile: float = 0.5
    clip_lr: float = 0.2
    name: str = "adaptive-clip"

    def __post_init__(self) -> None:
        largest = float(self.plan.schedules.noise_multiplier.max())
        if not largest < 2 * self.bit_noise:
            raise InvalidInput(
                f"bit_noise {self.bit_noise:g} is too small: the plan's noise multipliers reach "
                f"{largest:.4g} and must stay below twice bit_noise; use at least {largest:.4g} "
                "(0.05 times the expected cohort is usual)"
            )
        if not 0 < self.target_quantile < 1:
            raise InvalidInput(
                f"target_quantile must lie strictly between 0 and 1, got {self.target_quantile!r}"
            )
        if not self.clip_lr > 0:
            raise InvalidInput(f"clip_lr must be positive, got {self.clip_lr!r}")

    def start(self) -> State:
        return {"clip": self.plan.clip}

    def terms(self, round: int, state: State) -> RoundTerms:
        s, clip = self.plan.schedules, state["clip"] * float(self.plan.clip_factors[round])
        total = s.noise_multiplier[round]
        of_update = (total**-2.0 - (2 * self.bit_noise) ** -2.0) ** -0.5
        s_t = float(harmonic_mean(of_update[None, :], s.clients_of)[0])
        return RoundTerms(
            sampling_rate=s.sampling_rate[round, s.of_client],
            clip_norm=(clip * s_t / of_update)[s.of_client],
            deviation=clip * s_t,
            denominator=len(self.plan.clients) * float(self.plan.round_rate[round]),
            bit_deviation=self.bit_noise,
        )

    def learn(self, state: State, release: Release) -> State:
        """`C <- C exp(-eta (share - target))`, where share is that of clients within the clip."""
        if release.bit is None:
            raise InvalidInput("adaptive-clip needs the released bit")
        share = float(np.clip(release.bit, 0.0, 1.0))
        return {
            "clip": state["clip"] * float(np.exp(-self.clip_lr * (share - self.target_quantile)))
        }


def adaptive_clip(
    given: Given,
    *,
    bit_noise: float | None = None,
    target_quantile: float = 0.5,
    clip_lr: float = 0.2,
) -> Method:
    """Bit noise is by default 0.05 times the expected cohort, or as much as the plan needs."""
    plan = Plan.expect(given.plan, "method 'adaptive-clip' needs a plan of clients")
    expected = float(plan.round_rate.min()) * given.clients
    usual = max(0.05 * expected, 1.01 * float(plan.schedules.noise_multiplier.max()) / 2)
    return AdaptiveClip(plan, bit_noise or usual, target_quantile, clip_lr)


ADAPTIVE_CLIP = MethodEntry(
    "adaptive-clip",
    "the clip follows a quantile of the update norms, which uses some of each budget",
    ("target_quantile", "clip_lr", "bit_noise"),
    make=adaptive_clip,
    policies=OURS,
    own_policies=True,
)
