"""What `metrics.jsonl` stores about a round.

Guarantee: for a real run, only what is planned or released, or measured on public rows, is stored;
only simulations store statistics of single updates or exact numbers about rows of clients. What the
operator should know but nobody should store is a warning.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from fedspend.errors import OperatorWarning
from fedspend.report.groups import Grouping, group_clients
from fedspend.runs.setup import Setup
from fedspend.server.rounds import FOR_THE_OPERATOR, Statistics, TrainingState
from fedspend.stored.run import MetricsLine
from fedspend.tasks.task import ACCURACY, finite_or_none


@dataclass(frozen=True, eq=False)
class Observer:
    """Turns a round into the line that `metrics.jsonl` keeps."""

    setup: Setup
    grouping: Grouping | None

    @classmethod
    def of(cls, setup: Setup) -> Observer:
        return cls(setup, None if setup.plan is None else group_clients(setup.plan, setup.labels))

    def line(self, state: TrainingState, statistics: Statistics) -> MetricsLine:
        evaluation = self.setup.evaluation
        loss, found = math.nan, dict[str, float]()
        if evaluation.exact:
            loss, found = self.setup.measured(state.model)
        task = self.setup.task
        line: MetricsLine = {
            "round": state.done,
            **{
                metric.name: finite_or_none(found.get(metric.name, math.nan))
                for metric in task.metrics
            },
            "loss": loss if np.isfinite(loss) else None,
            "evaluation": evaluation.mode,
            "epsilon": self.spent(state.done - 1),
            "randomness": self.setup.randomness.source,
        }
        if task.metric != ACCURACY:  # lines of plain classification are as they always were
            line["metric"] = task.metric
        if self.setup.plan is not None:
            line |= self.setup.plan.planned_facts(state.done - 1)
            hidden = self.setup.plan.hidden_statistics
            statistics = {name: value for name, value in statistics.items() if name not in hidden}
        if self.setup.randomness.simulation:
            return line | statistics
        self._tell(state.done, statistics)
        return line | {
            name: value for name, value in statistics.items() if name not in FOR_THE_OPERATOR
        }

    @staticmethod
    def _tell(round: int, statistics: Statistics) -> None:
        """Warn the operator of a real run of things that the metrics must not store."""
        reports: dict[str, str] = statistics.get("reports") or {}
        zeroed = int(statistics.get("discarded", 0)) - int(statistics.get("lost", 0))
        if zeroed > 0:
            message = f"round {round}: {zeroed} updates were not finite and counted as zero"
            warnings.warn(message, OperatorWarning, stacklevel=3)
        for client, why in reports.items():
            warnings.warn(f"round {round}, client {client!r}: {why}", OperatorWarning, stacklevel=3)

    def spent(self, round: int) -> dict[str, float]:
        """Largest epsilon spent so far in each group; none is known of another aggregation."""
        priced = self.setup.training.aggregation is None
        if self.setup.plan is None or self.grouping is None or not priced:
            return {}
        spent, of_client = (
            self.setup.plan.spent_by_schedule()[round],
            self.setup.plan.schedules.of_client,
        )
        return {
            label: float(spent[of_client[members]].max())
            for label, members in zip(self.grouping.labels, self.grouping.members, strict=True)
        }
