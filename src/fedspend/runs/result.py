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
from fedspend.tasks.words import ACCURACY, private_key

OnRound = Callable[[MetricsLine, int], None]  # (metrics of the round, number of rounds)
OnNote = Callable[[str], None]
# (round, metric, loss), exact and about rows of clients: for the operator's eyes, not for files
OnOperator = Callable[[int, float, float], None]


@dataclass(frozen=True)
class Listeners:
    """Who is told what while a run goes on."""

    on_round: OnRound | None = None
    on_note: OnNote = lambda _: None
    on_operator: OnOperator | None = None


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
    metric: str = ACCURACY  # the name of the metric that models are judged by first

    @property
    def value(self) -> float | None:
        """The metric of the final model; None where a real run has no public rows to measure it."""
        return self._last(self.metric)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final model; None where it is not among the metrics, and where a real run
        has no public rows to measure it.
        """
        return self._last(ACCURACY)

    @property
    def private_value(self) -> float | None:
        """The noised metric of the model that the last round began with, if the plan pays for
        one.
        """
        return self._last(private_key(self.metric))

    @property
    def private_accuracy(self) -> float | None:
        return self._last(private_key(ACCURACY))

    def _last(self, name: str) -> float | None:
        found = self.metrics[-1].get(name)
        return None if found is None else float(found)
