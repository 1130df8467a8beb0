"""A method: the clip shrinks by a planned factor a round, and the noise with it.

    fedspend --load examples/extending/method.py train examples/quickstart.toml -o runs/shrinking \\
        --set method.name=shrinking-clip --set privacy.policy=uniform --set train.rounds=5

A method says on which terms a round runs. It cannot spend more than the plan: terms that would cost
a client more than was planned are refused before the round begins.
"""

from dataclasses import dataclass, replace

import fedspend
from fedspend.planning.plan import Plan
from fedspend.server.methods.planned import Planned


@dataclass(frozen=True)
class ShrinkingClip:
    plan: Plan
    factor: float
    name: str = "shrinking-clip"

    def start(self):
        return {}

    def terms(self, round, state):
        planned, scale = Planned(self.plan, self.name).terms(round, state), self.factor**round
        # only the ratio of noise to clip is accounted: both may shrink together
        return replace(
            planned, clip_norm=planned.clip_norm * scale, deviation=planned.deviation * scale
        )

    def learn(self, state, _release):
        return state


fedspend.register(
    "method",
    "shrinking-clip",
    lambda given, factor=0.97: ShrinkingClip(given.plan, factor),
    help="clip and noise shrink together, round by round",
    keys=("factor",),
)
