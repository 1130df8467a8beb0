"""Meters: what the runs of an audit really did, compared with what was planned.

They are not private, so only audits have them, and they are not bounds: the verdict does not depend
on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.auditing.observations import Expected, Observations
from fedspend.basics.arrays import FloatArray, IntArray


class Tally:
    """Counts, over all runs, who took part and how long crafted contributions were."""

    def __init__(self, rounds: int, units: int) -> None:
        self.asked = np.zeros((rounds, units))  # how often each unit took part
        self.length = np.zeros(units)  # sum of lengths, in clips
        self.sent = np.zeros(units)

    def took_part(self, round: int, unit: int) -> None:
        self.asked[round, unit] += 1

    def was_sent(self, unit: int, length: float) -> None:
        self.length[unit] += length
        self.sent[unit] += 1


@dataclass(frozen=True)
class Meter:
    """A ratio of realised to planned, and its standard error."""

    ratio: float | None
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"ratio": self.ratio, "error": self.error}


def noise_by_round(seen: Observations) -> tuple[Meter, ...]:
    """The noise in the directions of zeroed canaries, whose signals are nothing but noise."""
    return tuple(_deviation(row) for row in seen.signal[:, ~seen.inside].astype(np.float64))


def noise_over_rounds(seen: Observations) -> Meter:
    """The noise of the sum of all rounds, in which reused noise shows."""
    zeroed = seen.signal[:, ~seen.inside].astype(np.float64)
    count = np.isfinite(zeroed).sum(axis=0)
    some = count > 0
    return _deviation(np.nansum(zeroed[:, some], axis=0) / np.sqrt(count[some]))


def _deviation(values: FloatArray) -> Meter:
    known = values[np.isfinite(values)]
    if known.size < 2:
        return Meter(None)
    found = float(np.sqrt(np.mean(known**2)))
    return Meter(found, found / float(np.sqrt(2 * known.size)))


def clip_of(tally: Tally, units: IntArray) -> Meter:
    """How long contributions were, in clips; with distributed noise, including the noise."""
    sent = tally.sent[units].sum()
    return Meter(float(tally.length[units].sum() / sent)) if sent > 0 else Meter(None)


def shift_of(seen: Observations, expected: Expected) -> Meter:
    """How far canaries moved their signals, relative to what clip and rates should give."""
    planned = (expected.rate * expected.shift * expected.steps)[:, seen.unit[seen.inside]]
    signal = seen.signal[:, seen.inside].astype(np.float64)
    known = np.isfinite(signal)
    total = float(planned[known].sum())
    if not total > 0:
        return Meter(None)
    return Meter(float(signal[known].sum()) / total, float(np.sqrt(known.sum())) / total)


def sampled_of(tally: Tally, rate: FloatArray, units: IntArray, runs: int) -> Meter:
    """How often units took part, relative to how often they should have."""
    planned = float(rate[:, units].sum()) * runs
    if not planned > 0:
        return Meter(None)
    variance = float((rate * (1 - rate))[:, units].sum()) * runs
    return Meter(float(tally.asked[:, units].sum()) / planned, variance**0.5 / planned)
