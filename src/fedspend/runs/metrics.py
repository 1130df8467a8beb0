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

from fedspend.basics.arrays import FloatArray
from fedspend.errors import OperatorWarning
from fedspend.ledger.account import RunAccount
from fedspend.report.groups import Grouping, group_clients
from fedspend.runs.setup import Setup
from fedspend.server.rounds import FOR_THE_OPERATOR, Statistics, TrainingState
from fedspend.stored.run import EPSILON_OF, IN_ALL_RUNS, MetricsLine
from fedspend.tasks.task import ACCURACY, finite_or_none


@dataclass(frozen=True, eq=False)
class Observer:
    """Turns a round into the line that `metrics.jsonl` keeps."""

    setup: Setup
    grouping: Grouping | None
    account: RunAccount | None = None

    @classmethod
    def of(cls, setup: Setup, account: RunAccount | None = None) -> Observer:
        grouping = None if setup.plan is None else group_clients(setup.plan, setup.labels)
        return cls(setup, grouping, account)

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
            **self.spent(state.done),
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

    def when_stopped(self) -> MetricsLine:
        """What the last line of a run that its own rule stopped says in place of what `line` says:
        the rounds that it leaves out stay charged.
        """
        return {} if self.setup.plan is None else self.spent(self.setup.plan.rounds)

    def spent(self, rounds: int) -> MetricsLine:
        """Largest epsilon spent in each group, after so many charged rounds. Under a plan over
        lifetime budgets it is what accounts have spent in all runs, before the last round read by
        Rényi curves alone: never too low, and quick.
        """
        plan, grouping = self.setup.plan, self.grouping
        if plan is None or grouping is None:
            return {"epsilon": {}}
        lifetime: MetricsLine = {}
        if self.account is not None and "ledger" in plan.parameters:
            over = rounds == plan.rounds
            spent = self.account.spent(over=over, quick=not over)
            lifetime = {EPSILON_OF: IN_ALL_RUNS}
        else:
            spent = plan.spent_by_schedule()[rounds - 1][plan.schedules.of_client]
        return {"epsilon": largest_by_group(spent, grouping), **lifetime}


def largest_by_group(spent: FloatArray, grouping: Grouping) -> dict[str, float]:
    """The largest epsilon in each group."""
    return {
        label: float(spent[members].max())
        for label, members in zip(grouping.labels, grouping.members, strict=True)
    }
