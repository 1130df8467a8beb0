"""What a run tells while it goes on, and what it gives back at its end.

Guarantee: callbacks are told, never asked: nothing that they do can change what is released. One
that raises stops the run after the round that it was told of, and the run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedspend.planning.protocol import AnyPlan
from fedspend.stored.run import MetricsLine

OnRound = Callable[[MetricsLine, int], None]  # (metrics of the round, number of rounds)
OnNote = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run gives back. `model` carries the final parameters."""

    metrics: list[MetricsLine]
    model: torch.nn.Module
    plan: AnyPlan | None
    folder: Path | None

    @property
    def accuracy(self) -> float:
        return float(self.metrics[-1]["accuracy"])
