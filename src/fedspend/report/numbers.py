"""A plan's summary as plain numbers for JSON: what the tables show, unrounded."""

from __future__ import annotations

from typing import Any

from fedspend.planning.plan import ADJACENCY, OBSERVER, Plan
from fedspend.report.groups import Grouping, GroupTracks, Track, group_tracks, landmarks, quarters


def plan_numbers(plan: Plan, grouping: Grouping) -> dict[str, Any]:
    """Header, per-round numbers and one entry per group."""
    return {
        "policy": plan.policy,
        "method": plan.parameters.get("method"),
        "accountant": plan.accountant,
        "accountant_chosen": plan.parameters.get("accountant"),
        "rounds": plan.rounds,
        "delta": plan.delta,
        "clip": plan.clip,
        "clip_factors": plan.clip_factors.tolist(),
        "dropped_rounds": plan.dropped_rounds,
        "expected": plan.parameters.get("expected"),
        "clients": len(plan.clients),
        "schedules": plan.schedules.count,
        "adjacency": ADJACENCY,
        "observer": OBSERVER,
        "hash": plan.hash,
        "groups_are_bands": grouping.banded,
        "groups": [
            group_numbers(group, plan.rounds, lifetime="ledger" in plan.parameters)
            for group in group_tracks(plan, grouping)
        ],
        "round_noise": plan.round_noise.tolist(),
        "round_rate": plan.round_rate.tolist(),
        "noise_of_average": plan.noise_of_average,
    }


def group_numbers(group: GroupTracks, rounds: int, *, lifetime: bool = False) -> dict[str, Any]:
    """`lifetime`: past and plan together spend the budgets; what they leave is not known."""

    def at(track: Track, rounds_shown: list[int]) -> dict[str, Any]:
        return {str(t): spread(track, t - 1) for t in rounds_shown}

    ends = [1, rounds]
    return {
        "group": group.label,
        "clients": group.clients,
        "budget": spread(group.budget, 0),
        "noise_multiplier": at(group.noise, landmarks(rounds)),
        "sampling_rate": at(group.rate, ends),
        "clip_norm": at(group.clip, ends),
        "epsilon_spent": at(group.spent, quarters(rounds)),
        "spent": spread(group.spent, rounds - 1),
        "unspent_fraction": None if lifetime else spread(group.unspent, 0),
    }


def spread(track: Track, index: int) -> dict[str, float]:
    low, mean, high = track.at(index)
    return {"low": low, "mean": mean, "high": high}
