"""What the planner page shows for some settings: numbers, all from the plan that they ask for.

Guarantee: every number is computed by the planner, the accountants and the explanations that the
command line uses. The quick answer is by Rényi curves and closed forms; the exact one is by the
accountant that was asked for, with the trade-off curves of the plan's own rounds. Both are upper
bounds; the exact one is tighter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.accounting.tradeoff import TradeOff
from fedspend.basics.arrays import FloatArray
from fedspend.configuration.config import any_config
from fedspend.configuration.plan_inputs import resolve
from fedspend.explanation.meaning import (
    FPRS,
    accused_words,
    factor_words,
    guess_words,
    outcomes,
    percent,
)
from fedspend.explanation.observed import at_once, seen_by, sights
from fedspend.explanation.units import group
from fedspend.pages.planner.settings import Settings
from fedspend.planning.influence import expectation
from fedspend.planning.plan import Plan
from fedspend.report.groups import GroupTracks, group_clients, group_tracks
from fedspend.report.numbers import plan_numbers

DROWNED = 1.0  # noise that is as long as the longest average update


def answer(settings: Settings, *, exact: bool) -> dict[str, Any]:
    """Everything that the page shows."""
    return _answer(settings, exact)


@lru_cache(maxsize=32)
def _answer(settings: Settings, exact: bool) -> dict[str, Any]:
    plan = plan_of(settings, exact=exact)
    grouping = group_clients(plan)
    tracks = group_tracks(plan, grouping)
    subjects = [
        group(plan, label, members)
        for label, members in zip(grouping.labels, grouping.members, strict=True)
    ]
    schedules = [one.schedule for one in subjects]
    return {
        "settings": settings.to_dict(),
        "exact": exact,
        "plan": plan_numbers(plan, grouping),
        "rounds": list(range(1, plan.rounds + 1)),
        "groups": [by_round(one) for one in tracks],
        "observers": observers(plan, schedules),
        "meaning": meaning(plan, tracks, schedules, exact=exact),
        "average": average(plan, settings.parameters),
        "gain": gain(settings, plan, exact=exact),
        "command": settings.command(),
        "config": settings.config(),
    }


def plan_of(settings: Settings, *, exact: bool) -> Plan:
    """The plan of the page's command; the quick one by Rényi curves."""
    quick = replace(settings, accountant="rdp") if settings.accountant == AUTO else settings
    flags = (settings if exact else quick).flags()
    return resolve(any_config({}), flags).request.plan()


def by_round(group: GroupTracks) -> dict[str, Any]:
    """One group's course. Clients of a group have one schedule, so low and high are the same."""
    return {
        "label": group.label,
        "clients": group.clients,
        "budget": float(group.budget.mean[0]),
        "noise": group.noise.mean.tolist(),
        "rate": group.rate.mean.tolist(),
        "clip": group.clip.mean.tolist(),
        "spent": group.spent.mean.tolist(),
    }


def observers(plan: Plan, schedules: Sequence[int]) -> list[dict[str, Any]]:
    """Epsilon of every group against each observer, the promised one first."""
    seen = [seen_by(plan, one) for one in schedules]
    return [
        {
            "observer": same[0].name,
            "who": same[0].assumption,
            "promised": n < plan.promised_observers,
            "epsilon": [_finite(one.largest) for one in same],
        }
        for n, same in enumerate(zip(*seen, strict=True))
    ]


def meaning(
    plan: Plan, tracks: Sequence[GroupTracks], schedules: Sequence[int], *, exact: bool
) -> list[dict[str, Any]]:
    """What each group's epsilon allows against the promised observer."""
    found = []
    for track, schedule in zip(tracks, schedules, strict=True):
        epsilon = float(plan.schedules.epsilon[schedule])
        curve: TradeOff = (
            sights(plan, schedule, central=True)[0].curve if exact else at_once(plan, schedule)
        )
        found.append(
            {
                "label": track.label,
                "epsilon": epsilon,
                "odds": factor_words(epsilon),
                "tests": [percent(one.tpr) for one in outcomes(curve)],
                "best": percent(curve.accuracy),
                "words": f"{accused_words(curve, 'client')} {guess_words(curve)}",
                "from": curve.how,
            }
        )
    return found


def average(plan: Plan, parameters: int) -> dict[str, Any]:
    """Length of the noise in the average update, beside the longest that the update can be."""
    noise: FloatArray = math.sqrt(parameters) * np.asarray(plan.noise_of_average)
    signal: FloatArray = plan.clip * plan.clip_factors
    worst = float((noise / signal).max())
    return {
        "noise": noise.tolist(),
        "signal": signal.tolist(),
        "ratio": worst,
        "drowned": not worst < DROWNED,
        "words": _drowned_words(worst, parameters),
    }


def _drowned_words(ratio: float, parameters: int) -> str:
    if ratio < DROWNED:
        return (
            f"With {parameters:,} parameters the noise is at most {percent(ratio)} as long as the "
            "longest possible average update."
        )
    return (
        f"With {parameters:,} parameters the noise is up to {ratio:.3g} times as long as the "
        "longest possible average update. It can still average out over rounds, but expect slow "
        "learning: use more clients, larger budgets, fewer rounds, or a smaller model."
    )


def gain(settings: Settings, plan: Plan, *, exact: bool) -> dict[str, Any] | None:
    """What policy `optimal` expects against uniform spending, for these terms."""
    if settings.policy != "optimal":
        if not exact:
            return None
        asked = replace(
            settings,
            policy="optimal",
            saving_rate=None,
            transition=None,
            ratio=None,
            accountant="rdp",
        )
        plan = plan_of(asked, exact=True)
    expected = plan.parameters.get("expected")
    if not expected or "variance_of_uniform" not in expected:
        return None
    return {"variance": expected["variance_of_uniform"], "words": expectation(expected)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


HEADINGS = tuple(f"at {percent(fpr)}" for fpr in FPRS)
