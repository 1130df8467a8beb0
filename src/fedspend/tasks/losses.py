"""The losses that have a name: functions of (output, target) that give one number a row.

Guarantee: a row's number depends on that row's output and target alone, so the gradient of a sum
over rows is made of gradients of single rows, and record-level methods can bound each. Output and
target must agree in shape: an output of shape (rows, 1) never spreads over a target of shape
(rows,), which would compare every row with every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput
from fedspend.tasks.kinds import IGNORED

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.cross_entropy(output, target, reduction="none")


def squared(output: Tensor, target: Tensor) -> Tensor:
    """The mean over a row's numbers of the squared error."""
    return _mean_of_row((alike(output, target) - target).square())


def absolute(output: Tensor, target: Tensor) -> Tensor:
    """The mean over a row's numbers of the absolute error."""
    return _mean_of_row((alike(output, target) - target).abs())


def one_logit(output: Tensor, target: Tensor) -> Tensor:
    """Logistic loss of one logit, which stands for class 1."""
    return _logistic(alike(output, target), target)


def several_labels(output: Tensor, target: Tensor) -> Tensor:
    """The mean over a row's labels of the logistic loss."""
    return _mean_of_row(_logistic(alike(output, target), target))


def next_token(output: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy over the places of a row that have a target; 0 without any."""
    from torch.nn import functional

    if output.dim() != 3 or output.shape[:2] != target.shape:
        raise InvalidInput(
            f"for targets of shape {tuple(target.shape)} the model must give (rows, length, "
            f"classes), got {tuple(output.shape)}"
        )
    each = functional.cross_entropy(
        output.flatten(0, 1), target.flatten(), reduction="none", ignore_index=IGNORED
    ).view(target.shape)
    return each.sum(dim=1) / (target != IGNORED).sum(dim=1).clamp(min=1)


def alike(output: Tensor, target: Tensor) -> Tensor:
    """The output in the shape of the target; refuses what does not fit."""
    if output.shape == target.shape:
        return output
    if len(output) != len(target) or output.numel() != target.numel():
        raise InvalidInput(
            f"the model gives shape {tuple(output.shape)}, and the targets have shape "
            f"{tuple(target.shape)}; they must hold as many numbers a row"
        )
    return output.reshape(target.shape)


def _logistic(output: Tensor, target: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.binary_cross_entropy_with_logits(
        output, target.to(output.dtype), reduction="none"
    )


def _mean_of_row(each: Tensor) -> Tensor:
    return each if each.dim() == 1 else each.flatten(1).mean(dim=1)
