"""Whether a task is the one that was approved.

Guarantee: what a task asks is what the client's slice says for that round: its clip, the noise that
the client adds itself, the grid, bits and metrics. Where the clip follows releases, the client's
own noise is at least the planned multiple of it. What a task cannot show, the noise that a server
adds and how it samples, is not checked here; where clients draw their own coins, their rate is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedspend.approval.slices import Slice
from fedspend.client.declining import Declined
from fedspend.noise.numbers import NumberGrid
from fedspend.planning.clipping import LARGEST_CLIP, SMALLEST_CLIP

if TYPE_CHECKING:  # it needs torch, and an account does not
    from fedspend.client.task import ClientTask

_TOLERANCE = 1e-9  # plans match their own clips to this


def refuse_other_terms(slice: Slice, task: ClientTask) -> None:
    """Raise `Declined` unless the task has the slice's terms."""
    for what, good in compared(slice, task):
        if not good:
            raise Declined(
                "terms",
                f"round {task.shared.round + 1} of run {task.shared.run}: the task's {what} is not "
                "that of the approved slice",
            )


def compared(slice: Slice, task: ClientTask) -> Iterator[tuple[str, bool]]:
    """The parts of a task, and whether each is as planned. Written so that NaN is not."""
    terms, shared = slice.terms, task.shared
    yield "run", shared.run == terms.run
    yield "plan", shared.plan == slice.root
    yield "client", task.client == slice.client
    yield "round", 0 <= shared.round < terms.rounds
    yield "kind, for records,", task.records is None
    yield "size", shared.size == terms.size
    yield "kind, for votes or updates,", (shared.asked is not None) == terms.votes
    rate = float(slice.plan.sampling_rate[shared.round, 0])
    yield (
        "coin",
        task.coin is not None and _close(task.coin, rate)
        if terms.own_coins
        else (task.coin is None),
    )
    yield from _noise(slice, task)
    yield from _numbers(slice, task)


def _noise(slice: Slice, task: ClientTask) -> Iterator[tuple[str, bool]]:
    terms, shared, clip = slice.terms, task.shared, task.clip_norm
    if slice.clip_norm is None:
        yield "clip", SMALLEST_CLIP <= clip <= LARGEST_CLIP
    else:
        yield "clip", _close(clip, float(slice.clip_norm[shared.round]))
    deviation = clip * float(slice.plan.update_noise[shared.round, 0])
    part = deviation / math.sqrt(terms.clients) if terms.distributed else deviation
    if not terms.distributed:
        yield "own noise", shared.own_deviation == 0
    elif slice.clip_norm is None:
        yield "own noise", shared.own_deviation >= part * (1 - _TOLERANCE)
    else:
        yield "own noise", _close(shared.own_deviation, part)
    grid = shared.grid
    yield "grid", (None if grid is None else grid.bits) == terms.bits
    if grid is not None and terms.grid_steps is not None:
        fine = part * (1 + _TOLERANCE) >= grid.step * terms.grid_steps
        yield "grid", grid.dimension == terms.size and fine


def _numbers(slice: Slice, task: ClientTask) -> Iterator[tuple[str, bool]]:
    """Bits and metrics: asked for where the plan pays for them, with the planned noise."""
    terms, shared = slice.terms, task.shared
    yield "bit", shared.bit == (terms.bit_noise is not None)
    yield "noise on bits", shared.bit_grid == _grid(terms.bit_noise, slice, central=False)
    yield "metric", shared.metric == _grid(terms.metric_noise, slice, central=True)


def _grid(deviation: float | None, slice: Slice, *, central: bool) -> NumberGrid | None:
    """The grid of a number; under central noise only a metric has one."""
    terms = slice.terms
    if deviation is None or not (terms.distributed or central):
        return None
    return NumberGrid.of(deviation, terms.clients, distributed=terms.distributed)


def _close(value: float, planned: float) -> bool:
    return abs(value - planned) <= _TOLERANCE * planned
