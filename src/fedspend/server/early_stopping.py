"""Ending a run before its last round, once its metric no longer improves; and which model it keeps.

Guarantee: the rule reads what may be recorded about a round, and nothing else: a metric of public
rows, or one that was released privately and paid for (`configuration.stopping` refuses others). So
it is post-processing of releases. It never makes a round cheaper: the rounds that a stopped run
leaves out stay charged, because when it stopped depends on what was released (adaptive composition;
docs/how-to/tasks.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedspend.basics.arrays import Float32Array
from fedspend.basics.json_values import number
from fedspend.stored.run import EPSILON_OF, MetricsLine
from fedspend.tasks.words import private_key

BEST, LAST = "best", "last"
# in a line of metrics: the round after which the model was the one that is kept, if that is not the
# last; 0 is the model that the first round began with
KEPT_ROUND = "kept_round"
STOPPED = "stopped"  # in the last line of a run that stopped by its rule
# what a line says about the run so far, and not about the model that is kept
_OF_THE_RUN = (
    "round",
    "epsilon",
    EPSILON_OF,
    "randomness",
    "evaluation",
    "metric",
    KEPT_ROUND,
    STOPPED,
)


@dataclass(frozen=True)
class StopRule:
    """When to stop, and which model to keep."""

    key: str  # under which name a line of metrics has the value that is watched
    patience: int  # stop after this many rounds in a row without a better value
    lower: bool = False  # whether lower is better
    least: float = 0.0  # by how much a value must be better to count
    first: int = 1  # the first round that may be the last
    keep: str = BEST
    # a private metric of a round is about the model that the round began with, an exact one about
    # the model that it ended with
    of_beginning: bool = False

    def better(self, value: float, best: float | None) -> bool:
        if best is None:
            return True
        gain = best - value if self.lower else value - best
        return gain > self.least


@dataclass(frozen=True, eq=False)
class Watched:
    """What a stopping rule has seen so far: all that it needs to go on."""

    best: float | None = None
    best_round: int | None = None
    waited: int = 0  # rounds since then
    stopped: bool = False
    # the best model, if it is kept
    model: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    def noted(
        self, rule: StopRule, line: MetricsLine, begun_with: Float32Array, ended_with: Float32Array
    ) -> Watched:
        """After one more round. A value that is missing, or not finite, is no improvement."""
        value, round = number(line.get(rule.key)), int(line["round"])
        if value is not None and rule.better(value, self.best):
            about, model = (round - 1, begun_with) if rule.of_beginning else (round, ended_with)
            kept = model.copy() if rule.keep == BEST else self.model
            return Watched(value, about, 0, False, kept)
        waited = self.waited + 1
        return Watched(
            self.best,
            self.best_round,
            waited,
            waited >= rule.patience and round >= rule.first,
            self.model,
        )


NOTHING_SEEN = Watched()


def in_line(watched: Watched) -> MetricsLine:
    """What a line of metrics says of the rule."""
    told: MetricsLine = {KEPT_ROUND: watched.best_round} if watched.model.size else {}
    return told | ({STOPPED: True} if watched.stopped else {})


def of_kept(lines: Sequence[MetricsLine]) -> MetricsLine:
    """The last line, with the metrics of the model that is kept. Metrics that were never measured
    for it are None.
    """
    last = lines[-1]
    kept = last.get(KEPT_ROUND)
    if type(kept) is not int:
        return last
    by_round = {line["round"]: line for line in lines}
    exact = by_round.get(kept, {})
    # a round's private metric is about the model that the round began with
    private = by_round.get(kept + 1, {})
    found = {
        name: (private if name.startswith(private_key("")) else exact).get(name)
        for name in last
        if name not in _OF_THE_RUN
    }
    return last | found
