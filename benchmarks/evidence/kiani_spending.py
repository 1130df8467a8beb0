"""Figure 2 of Kiani et al. (2025), what clients have spent after each round: plans, no training.

Saving is planned in two ways, by exact plans, which spend all of a budget, and by the paper's
Algorithm 1, read literally. What a round costs is read by the second accountant, which shares no
code with the planner; epsilon after each round is the planner's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import kiani
import numpy as np
from experiment import by_section
from judging import Verdict, word_for
from tables import markdown

from fedspend.basics.arrays import FloatArray
from fedspend.planning.plan import Plan
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

BUDGETS = (10.0, 20.0, 30.0)
TURN = 13  # the first round that spends what was saved
SHOWN = (1, 6, 12, 13, 18, 25)
UNIFORM = "uniform"
SAVING = {"exact": "saving, exact plan", "literal": "saving, Algorithm 1"}
EQUAL = 1e-6  # relative: a plan's own tolerance


@cache
def plan(spending: str) -> Plan:
    """With the paper's budgets, rates and rounds. Clip and learning rate do not move a plan."""
    from fedspend.configuration.config import any_config
    from fedspend.configuration.plan_inputs import resolve

    settings = kiani.private("fashion-mnist", BUDGETS, spending).at((0.2, 1.0), 1)
    return resolve(any_config(by_section(settings))).request.plan()


def plans() -> dict[str, Plan]:
    return {spending: plan(spending) for spending in (UNIFORM, *SAVING)}


@dataclass(frozen=True, eq=False)
class Curve:
    """What a client with one of the budgets spends."""

    budget: float
    cost: FloatArray  # of each round: its Rényi divergence, where uniform spending reads its budget
    total: float  # epsilon of all rounds, by the second accountant
    epsilon: FloatArray  # after each round, by the planner

    @property
    def within(self) -> bool:
        return self.total <= self.budget * (1 + EQUAL)

    @property
    def even(self) -> bool:
        """Whether every round costs the same."""
        return float(np.ptp(self.cost)) <= EQUAL * float(self.cost.min())

    @property
    def early(self) -> FloatArray:
        return self.cost[: TURN - 1]

    @property
    def late(self) -> FloatArray:
        return self.cost[TURN - 1 :]


def curves(made: Plan, uniform: Plan) -> list[Curve]:
    """One for each budget."""
    rate, noise = made.schedules.sampling_rate, made.schedules.noise_multiplier
    cost = renyi_divergence(rate, noise, uniform.schedules.order)
    own = renyi_divergence(rate, noise, made.schedules.order).sum(axis=0)
    total = epsilon_at(own, made.schedules.order, made.delta)
    spent = made.spent_by_schedule()
    return [
        Curve(budget, cost[:, n], float(total[n]), spent[:, n]) for n, budget in enumerate(BUDGETS)
    ]


def as_claimed(saving: Curve, uniform: Curve) -> bool:
    """Both within the budget; uniform spending even; saving below it in every round of the first
    half, and dearer in every later round than in any of those.
    """
    return bool(
        uniform.within
        and saving.within
        and uniform.even
        and saving.early.max() < uniform.cost.min()
        and saving.early.max() < saving.late.min()
    )


def judged(made: Mapping[str, Plan]) -> Verdict:
    base = curves(made[UNIFORM], made[UNIFORM])
    found = {way: curves(made[way], made[UNIFORM]) for way in SAVING}
    lines = [
        as_claimed(saving, uniform)
        for one in found.values()
        for saving, uniform in zip(one, base, strict=True)
    ]
    late = [
        saving.late.mean() / uniform.cost.mean()
        for saving, uniform in zip(found["literal"], base, strict=True)
    ]
    left = [1 - one.total / one.budget for one in found["literal"]]
    return word_for(sum(lines), len(lines)), (
        "computed from plans, below: within the budgets, uniform spending even, saving below it in "
        f"every round before {TURN} and dearer after that, in {sum(lines)} of {len(lines)} curves "
        f"(three budgets, by exact plans and by Algorithm 1, which leaves {100 * min(left):.0f} to "
        f"{100 * max(left):.0f}% over, so that its later rounds cost {min(late):.2f} to "
        f"{max(late):.2f} times uniform's)"
    )


def table(made: Mapping[str, Plan]) -> str:
    base = curves(made[UNIFORM], made[UNIFORM])
    names = {UNIFORM: "uniform (IDP-FedAvg)", **SAVING}
    body = []
    for way, name in names.items():
        for one, uniform in zip(curves(made[way], made[UNIFORM]), base, strict=True):
            spent = [f"{one.epsilon[n - 1]:.1f}" for n in SHOWN]
            costs = [f"{part.mean() / uniform.cost.mean():.2f}" for part in (one.early, one.late)]
            body.append([f"{name}, budget {one.budget:g}", *spent, *costs])
    return markdown(
        [
            "epsilon after round",
            *map(str, SHOWN),
            f"mean cost of a round before {TURN} (uniform: 1)",
            f"from {TURN} on",
        ],
        body,
    )
