"""What a run reports while it runs, and what it returns at its end.

Guarantee: callbacks only listen: nothing they do can change what is released. One that raises stops
the run after the round it was called for, and the run can be resumed.
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
    """What a run returns. `model` has the final parameters.

    `ledger` is where the run was charged, under the name `run` and the accounts of `project`; None
    if nothing was charged: without privacy, and for simulations without a run directory.
    """

    metrics: list[MetricsLine]
    model: torch.nn.Module
    plan: AnyPlan | None
    folder: Path | None
    ledger: str | None = None
    project: str = ""
    run: str = ""

    @property
    def accuracy(self) -> float:
        return float(self.metrics[-1]["accuracy"])
