"""What an audit sees of its runs, and what it knows about them beforehand. Plain data.

A *canary* is a unit (a client or a record) whose contribution is crafted: as long as its clip
allows, in its own direction. A coin decides whether it contributes (`inside`) or is zeroed. A
*signal* is the component of a round's release in a canary's direction, in deviations of the planned
noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import BoolArray, Float32Array, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Expected:
    """What the plan says about a unit's signal, (rounds, units).

    In each of a round's `steps` steps the unit takes part with probability `rate`, and then shifts
    the signal by `shift`.
    """

    rate: FloatArray
    shift: FloatArray
    steps: IntArray


@dataclass(frozen=True, eq=False)
class Observations:
    """One entry per coin, over all runs."""

    run: IntArray
    unit: IntArray
    inside: BoolArray
    signal: Float32Array  # (rounds, coins); NaN if the round visibly says nothing about the coin

    def some(self, chosen: BoolArray) -> Observations:
        return Observations(
            self.run[chosen], self.unit[chosen], self.inside[chosen], self.signal[:, chosen]
        )


def joined(parts: list[Observations]) -> Observations:
    return Observations(
        np.concatenate([part.run for part in parts]),
        np.concatenate([part.unit for part in parts]),
        np.concatenate([part.inside for part in parts]),
        np.concatenate([part.signal for part in parts], axis=1),
    )
