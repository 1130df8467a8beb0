"""A record-level plan's summary by budget level and client, for tables and for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import FloatArray
from fedspend.records.planning import ADJACENCY, OBSERVER, RecordPlan
from fedspend.records.spending import OBSERVERS
from fedspend.report.groups import Grouping, GroupTracks, Track, group_tracks, track
from fedspend.report.numbers import spread


@dataclass(frozen=True, eq=False)
class Level:
    """Records with the same budget, or with budgets in the same band."""

    group: GroupTracks
    picked: Track  # epsilon against a server that picks who takes part
    left_out: int  # never sampled


@dataclass(frozen=True, eq=False)
class Silo:
    """What a client contributes to a step."""

    client: str
    records: int
    left_out: int
    batch: FloatArray  # (rounds,) expected batch in each round's first step

    @property
    def step_noise(self) -> float:
        """At best, a step's noise in a coordinate is `noise_multiplier * clip` times this."""
        return 1 / float(self.batch.max())


def epsilon_if_picked(plan: RecordPlan) -> FloatArray:
    """Epsilon of each class if the server picks who takes part: a client may be in every round."""
    if plan.terms.client_rate == 1:
        return plan.schedules.epsilon
    noise, rate = plan.schedules.noise_multiplier, plan.schedules.sampling_rate
    return Mechanisms.of_schedules(noise, rate, 1.0, plan.steps).best(
        np.full(plan.schedules.count, plan.delta)
    )[0]


def levels_of_plan(plan: RecordPlan, grouping: Grouping) -> list[Level]:
    of_record, picked = plan.schedules.of_client, epsilon_if_picked(plan)
    levels = []
    for group, rows in zip(group_tracks(plan, grouping), grouping.members, strict=True):
        classes, count = np.unique(of_record[rows], return_counts=True)
        levels.append(
            Level(
                group, track(picked[None, classes], count), int(np.isin(rows, plan.left_out).sum())
            )
        )
    return levels


def silos(plan: RecordPlan) -> list[Silo]:
    sizes = np.bincount(plan.owner, minlength=len(plan.clients))
    idle = np.bincount(plan.owner[plan.left_out], minlength=len(plan.clients))
    batch = np.stack([plan.expected_batch(t)[0] for t in range(plan.rounds)], axis=1)
    columns = zip(plan.clients, sizes.tolist(), idle.tolist(), batch, strict=True)
    return [Silo(*column) for column in columns]


def record_plan_numbers(plan: RecordPlan, grouping: Grouping) -> dict[str, Any]:
    lifetime = "ledger" in plan.parameters  # past and plan together spend the budgets
    return {
        "unit": "record",
        **plan.parameters,
        **vars(plan.terms),
        "clip": plan.clip,
        "records": len(plan.records),
        "clients": len(plan.clients),
        "classes": plan.schedules.count,
        "adjacency": ADJACENCY,
        "observer": OBSERVER,
        "hash": plan.hash,
        "levels_are_bands": grouping.banded,
        "levels": [_level(level, lifetime) for level in levels_of_plan(plan, grouping)],
        "by_client": [
            {
                "client": silo.client,
                "records": silo.records,
                "left_out": silo.left_out,
                "expected_batch": silo.batch.tolist(),
                "step_noise": plan.terms.noise_multiplier * silo.step_noise,
            }
            for silo in silos(plan)
        ],
        **active_records(plan),
        "left_out": [plan.records[n] for n in plan.left_out],
    }


def active_records(plan: RecordPlan) -> dict[str, list[int]]:
    """Active records at each round's start, and by step if records stop within rounds.

    With a filter by norms this is private, so it is left out.
    """
    if plan.by_norm:
        return {}
    by_step = plan.active_by_step.tolist()
    by_round = {"active_records": by_step[:: plan.terms.local_steps]}
    return by_round | ({"active_records_by_step": by_step} if plan.filters else {})


def _level(level: Level, lifetime: bool) -> dict[str, Any]:
    group = level.group
    spent = spread(group.spent, -1)
    return {
        "budget": spread(group.budget, 0),
        "records": group.clients,
        "left_out": level.left_out,
        "rate": {"first": spread(group.rate, 0), "last": spread(group.rate, -1)},
        "epsilon": dict(zip(OBSERVERS, (spent, spent, spread(level.picked, 0)), strict=True)),
        "unspent_fraction": None if lifetime else spread(group.unspent, 0),
    }
