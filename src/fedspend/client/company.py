"""Whether a record's gradient is the same at every place among others, on this machine.

Blocks of one size (`blocks`), or records one by one, see to it with all kernels that were met so
far. A module of one's own may do what nobody knows beforehand: so it is tried, and refused if bits
differ. Kernels are chosen by shapes, so that made-up rows tell as much as any; a few of them, as
two kernels round many numbers alike.
"""

from __future__ import annotations

import torch
from torch import nn

from fedspend.basics.threads import single_threaded
from fedspend.client.blocks import BY_PLACE
from fedspend.client.gradients import clipped_sum
from fedspend.errors import InvalidInput
from fedspend.models.flat import flat_vector
from fedspend.tasks.task import Task

_EXPECTED = (32, 288)  # records a step: the smallest blocks, and those of larger batches


def refuse_company(module: nn.Module, task: Task, rows: torch.Tensor, label: torch.Tensor) -> None:
    """Refuse a module that gives a row another gradient at another place, or without others."""
    start = flat_vector(module)
    for records in _EXPECTED:
        sum_of = clipped_sum(module, 1.0, task=task, records=records)
        with single_threaded():
            size = sum_of.block(rows[0], label)
            for row in rows:
                alone, among = (
                    sum_of.bits(start, _times(row, count), _times(label, count), size)
                    for count in (1, size)
                )
                if BY_PLACE in (alone, among) or alone != among:
                    raise InvalidInput(
                        "on this machine a record's gradient depends on its place among others: "
                        "the model is rounded in another way there, and no clip would bound one "
                        "record; use other layers"
                    )


def _times(value: torch.Tensor, count: int) -> torch.Tensor:
    return value.expand(count, *value.shape)
