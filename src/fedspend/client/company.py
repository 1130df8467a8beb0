"""Whether a record's gradient is the same at every place among others, on this machine.

Blocks of one size (`blocks`), or records one by one, see to it with all kernels that were met so
far. A module of one's own may do what nobody knows beforehand: so it is tried, and refused if bits
differ. Kernels are chosen by shapes, so that made-up rows tell as much as any; a few of
them, as two kernels round many numbers alike.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedspend.basics.arrays import FloatArray
from fedspend.basics.threads import single_threaded
from fedspend.client.gradients import clipped_sum
from fedspend.errors import InvalidInput
from fedspend.models.flat import flat_vector
from fedspend.tasks.task import Task

_EXPECTED = (32, 288)  # records a step: the smallest blocks, and those of larger batches


def refuse_company(module: nn.Module, task: Task, rows: torch.Tensor, label: torch.Tensor) -> None:
    """Refuse a module that gives a row another gradient at another place, or without others."""
    if any(
        len(_norms(module, task, row, label, records)) > 1 for row in rows for records in _EXPECTED
    ):
        raise InvalidInput(
            "on this machine a record's gradient depends on its place among others: the model is "
            "rounded in another way there, and no clip would bound one record; use other layers"
        )


def _norms(
    module: nn.Module, task: Task, row: torch.Tensor, label: torch.Tensor, records: int
) -> set[bytes]:
    """The norms of the row's gradient at all places of a block, and alone, to the last bit. They
    are doubles, and other gradients have others.
    """
    found: set[bytes] = set()

    def noted(norms: FloatArray) -> FloatArray:
        found.update(norm.tobytes() for norm in norms)
        return np.zeros(len(norms))

    sum_of = clipped_sum(module, 1.0, noted, task, records=records)
    for count in {1, sum_of.block(row, label)}:
        with single_threaded():
            torch.manual_seed(0)  # the same dropout every time
            rows, labels = row.expand(count, *row.shape), label.expand(count, *label.shape)
            sum_of(flat_vector(module), rows, labels)
    return found
