"""What a run reports while it runs, and what it returns at its end.

Guarantee: callbacks only listen: nothing they do can change what is released. One that raises stops
the run after the round it was called for, and the run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedspend.planning.protocol import AnyPlan
from fedspend.server.early_stopping import KEPT_ROUND, STOPPED, of_kept
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
    loggers: tuple[Any, ...] = ()  # names, or loggers of your own (`report.loggers`)


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
    def stopped_early(self) -> bool:
        """Whether the run's own rule ended it before its last planned round."""
        return bool(self.metrics[-1].get(STOPPED))

    @property
    def kept_round(self) -> int:
        """The round after which the model was the one that was kept: the last one, unless a
        stopping rule keeps the best.
        """
        found = self.metrics[-1].get(KEPT_ROUND)
        return int(self.metrics[-1]["round"] if found is None else found)

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
        """The noised metric of the model that the last round began with, or of the best one if that
        is kept, where the plan pays for one.
        """
        return self._last(private_key(self.metric))

    @property
    def private_accuracy(self) -> float | None:
        return self._last(private_key(ACCURACY))

    def _last(self, name: str) -> float | None:
        found = of_kept(self.metrics).get(name)
        return None if found is None else float(found)
