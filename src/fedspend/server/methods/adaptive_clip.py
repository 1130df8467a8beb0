"""Adaptive clipping (Andrew et al. 2021), also with individual and time-adaptive budgets.

Each sampled client adds one bit, whether its update was within its clip; the noised sum of the bits
moves the clip towards a target quantile.

Guarantee: the bit is released shifted, `b - 1/2`, so its sensitivity is 1/2 and its multiplier
`2 sigma_b`. A client whose plan allows the total multiplier `sbar_n` gets
`sigma_n = (1/sbar_n^2 - 1/(2 sigma_b)^2)^(-1/2)` for its update; the two Gaussian releases together
cost exactly what the plan accounts; a private metric takes its part in the same way
(`planning.parts`). `s_t` and the clip ratios are recomputed from the `sigma_n`:
keeping the plan's ratios would overspend the strictest client. The clip of a round depends on
earlier releases only; where the plan has a clip schedule, its factors multiply the adapted clip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput
from fedspend.planning.parts import left_for_updates, usual_bit_noise
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
        self._left(self.plan.schedules.noise_multiplier)  # refuses too little noise
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
        of_update = self._left(s.noise_multiplier[round])
        s_t = float(harmonic_mean(of_update[None, :], s.clients_of)[0])
        return RoundTerms(
            sampling_rate=s.sampling_rate[round, s.of_client],
            clip_norm=(clip * s_t / of_update)[s.of_client],
            deviation=clip * s_t,
            denominator=len(self.plan.clients) * float(self.plan.round_rate[round]),
            bit_deviation=self.bit_noise,
        )

    def _left(self, total: FloatArray) -> FloatArray:
        """The noise multipliers of updates, where a round has these in all."""
        return left_for_updates(total, self.bit_noise, self.plan.metric_noise)

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
    """Bit noise is what the plan states. Older plans state none: then it is by default 0.05 times
    the expected cohort, or as much as the plan needs.
    """
    plan = Plan.expect(given.plan, "method 'adaptive-clip' needs a plan of clients")
    stated = plan.bit_noise
    replanned = "planned_anew_after" in plan.parameters  # which may have raised it
    if stated is not None and not replanned and bit_noise not in (None, stated):
        raise InvalidInput(
            f"the plan has bit_noise {stated:g}, but the config says {bit_noise:g}; make them agree"
        )
    noise = stated or bit_noise or usual_bit_noise(plan)
    return AdaptiveClip(plan, noise, target_quantile, clip_lr)


ADAPTIVE_CLIP = MethodEntry(
    "adaptive-clip",
    "the clip follows a quantile of the update norms, which uses some of each budget",
    ("target_quantile", "clip_lr", "bit_noise"),
    make=adaptive_clip,
    policies=OURS,
    own_policies=True,
)
