"""Clients as canaries: crafted updates replace local training; everything after it is unchanged.

Guarantee: what leaves a canary went through `client.work.finished`, as any client's update does
(bound, rounding, own noise, bit), and what the audit sees of a round is its release. Clients run in
an engine, so canaries have their own engine, which no setting of a run can select.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedspend.auditing.meters import Tally
from fedspend.auditing.observations import Expected, Observations
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.basics.threads import single_threaded
from fedspend.client.contribution import Lost, Reply
from fedspend.client.task import ClientTask
from fedspend.client.work import Tools, finished
from fedspend.engines.base import Engine
from fedspend.runs.setup import Setup
from fedspend.server.methods.base import Release, RoundTerms

LENGTH = 1e3  # of a crafted update, in clips: so long that only the bound matters
SPARE = 8  # coordinates that belong to no canary


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthogonal directions of length one.

    `places[i]` are the coordinates of canary i, one in each separately clipped piece, with equal
    weight on each.
    """

    places: IntArray  # (canaries, pieces)
    size: int

    @property
    def weight(self) -> float:
        return float(1 / np.sqrt(self.places.shape[1]))

    def update(self, number: int, length: float) -> torch.Tensor:
        crafted = torch.zeros(self.size)
        crafted[torch.from_numpy(self.places[number])] = length * self.weight
        return crafted

    def along(self, vector: FloatArray) -> FloatArray:
        """The component of a vector in each canary's direction."""
        part: FloatArray = vector[self.places].sum(axis=1) * self.weight
        return part


def room_for_clients(setup: Setup) -> int:
    """How many canaries can have their own direction in one run."""
    return max(1, min(_pieces(setup)) - SPARE)


def _pieces(setup: Setup) -> tuple[int, ...]:
    student = setup.training.server.student
    size = (
        sum(parameter.numel() for parameter in setup.module.parameters())
        if student is None
        else student.ballot.size
    )
    return setup.training.layers or (size,)


def draw_directions(count: int, setup: Setup, generator: np.random.Generator) -> Directions:
    pieces = _pieces(setup)
    starts = np.cumsum((0, *pieces[:-1]))
    columns = [
        start + generator.permutation(size)[:count]
        for start, size in zip(starts, pieces, strict=True)
    ]
    return Directions(np.column_stack(columns), sum(pieces))


class CanaryEngine:
    """Canaries that are in send their crafted update.

    All others act as if they had no rows, or train as usual if there is an engine for them.
    """

    name = "canaries"
    outside = False

    def __init__(
        self,
        updates: Mapping[str, int],
        directions: Directions,
        tools: Tools,
        tally: Tally,
        canaries: frozenset[str],
        others: Engine | None = None,
    ) -> None:
        """`updates` maps each canary that is in to the number of its direction."""
        self._updates, self._directions, self._tools = updates, directions, tools
        self._tally, self._canaries, self._others = tally, canaries, others
        self._silent = torch.zeros(directions.size)

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        for task in tasks:
            self._tally.took_part(task.shared.round, task.number)
        if self._others is not None:
            yield from self._others.run([t for t in tasks if t.client not in self._canaries])
            tasks = [t for t in tasks if t.client in self._canaries]
        with single_threaded():
            for task in tasks:
                yield self._reply(task)

    def _reply(self, task: ClientTask) -> Reply:
        number = self._updates.get(task.client)
        # votes are replaced once cast, updates once trained: before the bound
        if task.shared.asked is not None:
            task = replace(task, shared=replace(task.shared, asked=None))
        if number is None:
            return finished(task, self._silent, 0, self._tools)
        update = self._directions.update(number, LENGTH * task.clip_norm)
        reply = finished(task, update, 1, self._tools)
        grid = task.shared.grid
        sent = reply.contribution.vector[self._directions.places[number]].sum()
        length = sent * self._directions.weight * (1.0 if grid is None else grid.step)
        self._tally.was_sent(task.number, length / task.clip_norm)
        return reply

    def close(self) -> None:
        if self._others is not None:
            self._others.close()


def expected_of_clients(setup: Setup, canaries: IntArray | None) -> Expected:
    """The expected signals, from the rounds' terms. An adaptive clip keeps its ratio to the noise.

    `canaries` are those of a run; None if the bits of others are not known to be zero.
    """
    start = setup.method.start()
    terms = [setup.method.terms(t, start) for t in range(setup.training.server.rounds)]
    rate = np.array([one.sampling_rate for one in terms])
    everyone = np.arange(rate.shape[1])
    update = np.array([one.clip_norm / one.deviation for one in terms])
    bit = np.array([_bit_shift(one, everyone, canaries)[0] for one in terms])
    return Expected(rate, np.sqrt(update**2 + bit**2), (rate > 0).astype(np.int64))


def _bit_shift(
    terms: RoundTerms, units: IntArray, canaries: IntArray | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Each unit's shift of the sum of bits, its deviation, and the other canaries' mean sum.

    The shift is in units of the deviation. The bits of other canaries count as noise, because they
    depend on unknown coins. A canary that is in exceeds its clip, so its bit is -1/2.
    """
    if terms.bit_deviation is None or canaries is None:
        return np.zeros(units.size), np.ones(units.size), np.zeros(units.size)
    chance = np.zeros(terms.sampling_rate.size)
    chance[canaries] = terms.sampling_rate[canaries] / 2
    spread = chance * (1 - chance) / 4
    others = spread.sum() - spread[units]
    deviation = np.sqrt(terms.bit_deviation**2 + others)
    return 0.5 / deviation, deviation, -(chance.sum() - chance[units]) / 2


def signals_of_clients(
    setup: Setup,
    releases: Sequence[Release],
    directions: Directions,
    units: IntArray,
    inside: BoolArray,
    run: int,
    *,
    bits: bool,
) -> Observations:
    """The signals, from what is public: a round's terms follow from the plan and past releases."""
    state, rows = setup.method.start(), []
    for t, release in enumerate(releases):
        terms = setup.method.terms(t, state)
        state = setup.method.learn(state, release)
        rows.append(_signal(terms, release, directions, units, units if bits else None))
    return Observations(np.full(units.size, run), units, inside, np.array(rows, dtype=np.float32))


def _signal(
    terms: RoundTerms,
    release: Release,
    directions: Directions,
    units: IntArray,
    canaries: IntArray | None,
) -> FloatArray:
    """The signal of the update; if a bit is released too, of both, weighted by what they tell."""
    total = release.update.astype(np.float64) * terms.denominator
    of_update: FloatArray = directions.along(total) / terms.deviation
    if release.bit is None or canaries is None:
        return of_update
    worth = terms.clip_norm[units] / terms.deviation
    bit_worth, deviation, others = _bit_shift(terms, units, canaries)
    of_bit = -((release.bit - 0.5) * terms.denominator - others) / deviation
    both: FloatArray = (worth * of_update + bit_worth * of_bit) / np.hypot(worth, bit_worth)
    return both
