"""What came back from a round: the sum, whose answers are in it, whose are not and why, and how
much noise came with them.

Guarantee: everyone who was asked is in exactly one of `answered` and `discarded`, and only once.
The received variance counts the noise of those who answered and nobody else's, so whatever does not
arrive is topped up. An answer from outside, or from a user's own engine, is checked before it is
added: its client, round and run, its length, that it is finite, and its norm. Under central noise
an answer with too large a norm is clipped again (on the grid, where that cannot be done exactly, it
is discarded); under distributed noise its norm says nothing, because it includes noise, which was
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, pieces
from fedspend.client.bounding import ROUNDING
from fedspend.client.contribution import Contribution, Lost, Remarks, Reply
from fedspend.client.task import ClientTask, RoundTask
from fedspend.noise.grid import squared
from fedspend.noise.numbers import NumberGrid

NO_ANSWER = "it did not answer"
_SLACK = 1 + 1e-9  # a norm that is computed again may differ in its last bits


@dataclass(frozen=True, eq=False)
class Statistics:
    """What clients know about their contributions, one entry per answer. Not private: for
    simulations only.
    """

    norms: FloatArray
    clipped: BoolArray
    zeroed: BoolArray  # not finite at the client, so counted as zero
    active: IntArray | None = None  # records that took part in each local step, over all clients
    raised: BoolArray | None = None  # whose work raised an error


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of one round. `received_variance` is the variance of the noise that clients added
    to each coordinate of `total`.
    """

    total: FloatArray
    answered: tuple[str, ...]
    discarded: Mapping[str, str]  # id -> why
    received_variance: float | Fraction  # on a grid at every size (`grid.squared`)
    bits: float  # sum of the shifted bits
    reports: Mapping[str, str]  # id -> what was odd about its answers
    statistics: Statistics
    metrics: float = 0.0  # sum of the shifted metrics
    # variance of the noise that clients added to `bits` and to `metrics`
    received_bit_variance: Fraction = Fraction()
    received_metric_variance: Fraction = Fraction()


class Tally:
    """Takes answers one at a time, in any order, and keeps only their sum."""

    def __init__(self, tasks: Sequence[ClientTask], size: int, *, checked: bool = False) -> None:
        """`checked`: answers come from other machines or from a user's own engine, so none of them
        is trusted.
        """
        self._tasks, self._checked = {task.client: task for task in tasks}, checked
        self._total, self._bits, self._metrics = np.zeros(size), 0.0, 0.0
        self._answered: dict[str, None] = {}  # in order
        self._discarded: dict[str, str] = {}
        self._reports: dict[str, str] = {}
        self._remarks: list[Remarks] = []

    def add(self, reply: Reply) -> None:
        contribution = reply.contribution
        task = self._tasks.get(contribution.client)
        if task is None:
            self._reports[contribution.client] = "it answered without being asked"
            return
        if contribution.run != task.shared.run:
            self._reports[contribution.client] = (
                f"it sent an answer for run {contribution.run!r}, which was ignored"
            )
            return
        if contribution.round != task.shared.round:
            self._reports[contribution.client] = (
                f"it sent an answer for round {contribution.round + 1}, which was ignored"
            )
            return
        if self._counted(contribution.client):
            self._reports[contribution.client] = "it answered twice; the first answer counts"
            return
        problem = self._problem(contribution, task) if self._checked else ""
        if problem:
            self.discard(contribution.client, problem)
            return
        vector = self._within(contribution, task) if self._checked else contribution.vector
        self._total += vector
        # who sits out by its own coin says so by having no remarks, and sends no update
        self._bits += contribution.bit or 0.0
        self._metrics += contribution.metric or 0.0
        self._answered[contribution.client] = None
        if reply.remarks is not None:
            self._remarks.append(reply.remarks)
            if reply.remarks.raised:
                self._reports[contribution.client] = reply.remarks.problem

    def discard(self, client: str, why: str) -> None:
        """Discards this client's answer; a later one will not count either."""
        if client in self._tasks and not self._counted(client):
            self._discarded[client] = why

    def answers(self) -> Answers:
        """Ends the round: clients that have not answered by now did not answer."""
        missing = {client: NO_ANSWER for client in self._tasks if not self._counted(client)}
        shared = next((task.shared for task in self._tasks.values()), None)
        noise, count = 0.0 if shared is None else shared.own_deviation, len(self._answered)
        on_grid = shared is not None and shared.grid is not None
        return Answers(
            total=self._total,
            answered=tuple(self._answered),
            discarded=self._discarded | missing,
            received_variance=squared(noise, count) if on_grid else count * noise**2,
            bits=self._bits,
            reports=self._reports,
            statistics=_statistics(self._remarks),
            metrics=self._metrics,
            received_bit_variance=self._received(None if shared is None else shared.bit_grid),
            received_metric_variance=self._received(None if shared is None else shared.metric),
        )

    def _received(self, grid: NumberGrid | None) -> Fraction:
        """Variance of the noise on a number, of those who answered."""
        own = Fraction(0 if grid is None else grid.own_deviation)
        return len(self._answered) * own**2

    def _counted(self, client: str) -> bool:
        return client in self._answered or client in self._discarded

    def _problem(self, contribution: Contribution, task: ClientTask) -> str:
        vector, bit, shared = contribution.vector, contribution.bit, task.shared
        if vector.shape != self._total.shape or vector.dtype != np.float64:
            return (
                f"its vector is {vector.dtype} of shape {vector.shape}, not float64 of "
                f"{self._total.shape}"
            )
        lowest, highest = vector.min(initial=0.0), vector.max(initial=0.0)  # NaN if one is
        if not -np.inf < lowest <= highest < np.inf:
            return "its vector is not finite"
        if shared.grid is not None and not (contribution.whole or _whole(vector)):
            return "its vector is not on the grid"
        if shared.grid is not None and not max(-lowest, highest) <= 2.0 ** (shared.grid.bits - 1):
            return f"its vector exceeds the grid's {shared.grid.bits} bits"
        if not _bit_fits(bit, shared):
            return f"its bit is {bit!r}"
        metric = contribution.metric
        if not _metric_fits(metric, shared.metric):
            return f"its metric is {metric!r}"
        if shared.grid is not None and not shared.grid.fine and shared.own_deviation == 0:
            norm, bound = _norm(vector) * shared.grid.step, task.clip_norm
            if not norm <= bound * _SLACK:
                return f"its norm is {norm:.6g}, above its clip {bound:.6g}"
        return ""

    def _within(self, contribution: Contribution, task: ClientTask) -> FloatArray:
        """The vector, clipped again if its norm is too large and can be checked."""
        vector, shared, grid = contribution.vector, task.shared, task.shared.grid
        if shared.own_deviation > 0 or (grid is not None and not grid.fine):
            return vector
        norm = _norm(vector) * (1.0 if grid is None else grid.step)
        if norm <= task.clip_norm * _SLACK:
            return vector
        self._reports[task.client] = (
            f"its norm was {norm:.6g}, above its clip {task.clip_norm:.6g}; it was clipped again"
        )
        clipped: FloatArray = vector * (task.clip_norm * ROUNDING / norm)
        return clipped if grid is None else np.trunc(clipped)


def _bit_fits(bit: float | None, shared: RoundTask) -> bool:
    """Whether there is a bit exactly where one is asked for, and one that a client can send."""
    if bit is None or not shared.bit:
        return bit is None and not shared.bit
    return bit in (-0.5, 0.0, 0.5) if shared.bit_grid is None else shared.bit_grid.holds(bit)


def _metric_fits(metric: float | None, grid: NumberGrid | None) -> bool:
    """Whether there is a metric exactly where one is asked for, on its grid, and, where it carries
    no noise, within its bounds.
    """
    if metric is None or grid is None:
        return metric is None and grid is None
    return grid.holds(metric) and (grid.own_deviation > 0 or -0.5 <= metric <= 0.5)


def _whole(vector: FloatArray) -> bool:
    """Whether all numbers are whole."""
    return all((vector[piece] == np.rint(vector[piece])).all() for piece in pieces(vector.size))


def _norm(vector: FloatArray) -> float:
    """The norm; infinite if it overflows, and then it is above any clip."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))


def _statistics(remarks: Sequence[Remarks]) -> Statistics:
    active = [one.active for one in remarks if one.active is not None]
    return Statistics(
        norms=np.array([one.norm for one in remarks]),
        clipped=np.array([one.clipped for one in remarks], dtype=bool),
        zeroed=np.array([bool(one.problem) for one in remarks], dtype=bool),
        active=np.sum(active, axis=0) if active else None,
        raised=np.array([one.raised for one in remarks], dtype=bool),
    )


def gather(
    tasks: Sequence[ClientTask],
    replies: Iterable[Reply | Lost],
    size: int,
    *,
    checked: bool = False,
) -> Answers:
    """Collects the replies as they come in."""
    tally = Tally(tasks, size, checked=checked)
    for reply in replies:
        if isinstance(reply, Lost):
            tally.discard(reply.client, reply.why)
        else:
            tally.add(reply)
    return tally.answers()
