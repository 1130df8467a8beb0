"""All that a client does with a task: train, shape, vote, bound, add its own noise. The reference
engine calls this as it is.

Guarantee: the reply is a function of the task, the client's own rows, its own state and its own
randomness. A client without rows contributes exactly zero to the vector and to the bit, and one
without held-out rows to the metric (and, under distributed noise, its shares of noise, so that
nobody can tell). So does a client whose own coin says that it does not take part; it does all the
work, so it takes as long. One whose training, votes or metric raise an error contributes what one
does whose update is not finite: an error that ended the round would tell everybody, without noise,
that its rows are such.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedspend.basics.arrays import IntArray
from fedspend.basics.threads import single_threaded
from fedspend.client.bounding import bounded, own_noise
from fedspend.client.contribution import Contribution, Remarks, Reply, worded
from fedspend.client.numbers import clip_bit, metric
from fedspend.client.participation import takes_part
from fedspend.client.record_steps import record_update
from fedspend.client.rows import Rows
from fedspend.client.state import MemoryStates, States
from fedspend.client.task import ClientTask
from fedspend.client.training import trained
from fedspend.client.voting import check_asked, votes
from fedspend.noise.randomness import Randomness
from fedspend.tasks.task import CLASSIFY, Task

NOT_FINITE = "its update was not finite"


@dataclass(frozen=True, eq=False)
class Tools:
    """What a client works with besides its rows. The module is never run, only copies of it."""

    module: nn.Module
    randomness: Randomness
    public_rows: torch.Tensor | None = None  # what is voted on
    states: States = field(default_factory=MemoryStates)
    # the rows that each client holds out and never trains on, by id; None: nobody does
    held_out: Callable[[str], Rows] | None = None
    goal: Task = CLASSIFY  # what is descended, and what a private metric measures


def contribute(task: ClientTask, rows: Rows, tools: Tools) -> Reply:
    """One client's whole work."""
    with single_threaded():
        if task.records is not None:
            update, active, problem = record_update(
                task, rows, tools.module, tools.randomness, tools.states, tools.goal
            )
            return finished(task, update, len(rows), tools, active, problem=problem)
        try:
            update = trained(task, rows, tools.module, tools.randomness, tools.goal)
        except Exception as error:
            return failing(task, error, len(rows), tools)
        return finished(task, update, len(rows), tools)


def failing(task: ClientTask, error: Exception, rows: int, tools: Tools) -> Reply:
    """What leaves a client whose training raised `error`: what leaves one that diverged."""
    update = torch.full((task.shared.parameters.size,), math.nan)
    return finished(task, update, rows, tools, problem=worded(error))


def finished(
    task: ClientTask,
    update: torch.Tensor,
    rows: int,
    tools: Tools,
    active: IntArray | None = None,
    *,
    problem: str = "",
) -> Reply:
    """From the update of a local training to what leaves the client. `problem` is what its work
    raised.
    """
    if task.shared.asked is not None and problem:
        update = torch.full((task.shared.size,), math.nan)
    elif task.shared.asked is not None:
        check_asked(task, tools.public_rows)
        try:
            update = votes(task, update, tools.module, tools.public_rows)
        except Exception as error:
            update, problem = torch.full((task.shared.size,), math.nan), worded(error)
    own, present = bounded(update, task, tools.randomness), takes_part(task, tools.randomness)
    vector = own.vector if present else np.zeros_like(own.vector)
    if task.shared.own_deviation > 0:
        vector = vector + own_noise(task, tools.randomness, vector.size)
    held_out = None if tools.held_out is None else tools.held_out(task.client)
    measured, wrong = metric(
        task, held_out, tools.module, tools.randomness, tools.goal, present=present
    )
    problem = problem or wrong
    contribution = Contribution(
        client=task.client,
        round=task.shared.round,
        vector=vector,
        bit=clip_bit(task, own, rows if present else 0, tools.randomness),
        run=task.shared.run,
        metric=measured,
    )
    if not present:  # nothing is known of an update that counts for nothing
        return Reply(contribution)
    said = problem or ("" if own.finite else NOT_FINITE)
    remarks = Remarks(own.norm, own.clipped, said, active, raised=bool(problem))
    return Reply(contribution, remarks)
