"""A model's outputs, mean loss and metrics, computed in batches without changing the
model.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedspend.models.flat import as_batch, named_pieces
from fedspend.tasks.task import CLASSIFY, Task

_BATCH = 1024


@torch.no_grad()
def scores(module: nn.Module, parameters: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """The score of `module` for each row and class, in evaluation mode, with these parameters (a
    flat vector).
    """
    state = named_pieces(module, parameters)
    was_training = module.training
    module.eval()
    try:
        return torch.cat(
            [
                functional_call(module, state, (as_batch(rows),))
                for rows in torch.split(features, _BATCH)
            ]
        )
    finally:
        module.train(was_training)


@torch.no_grad()
def evaluate(
    module: nn.Module, parameters: torch.Tensor, features: torch.Tensor, labels: torch.Tensor
) -> tuple[float, float]:
    """Loss and accuracy of `module` with these parameters (a flat vector); both are NaN if there
    are no examples.
    """
    if len(labels) == 0:
        return math.nan, math.nan
    loss, correct = 0.0, 0
    by_batch = torch.split(scores(module, parameters, features), _BATCH)
    for scored, answers in zip(by_batch, torch.split(labels, _BATCH), strict=True):
        loss += float(functional.cross_entropy(scored, answers, reduction="sum"))
        correct += int((scored.argmax(dim=1) == answers).sum())
    return loss / len(labels), correct / len(labels)


@torch.no_grad()
def measure(
    module: nn.Module,
    parameters: torch.Tensor,
    features: torch.Tensor,
    targets: torch.Tensor,
    task: Task = CLASSIFY,
) -> tuple[float, dict[str, float]]:
    """The mean loss over rows, and every metric of the task; NaN without rows."""
    if task.classifies and [metric.name for metric in task.metrics] == ["accuracy"]:
        loss, accuracy = evaluate(module, parameters, features, targets)
        return loss, {"accuracy": accuracy}
    if len(targets) == 0:
        return math.nan, {metric.name: math.nan for metric in task.metrics}
    outputs = scores(module, parameters, features)
    loss = sum(
        float(task.total(some, wanted))
        for some, wanted in zip(
            torch.split(outputs, _BATCH), torch.split(targets, _BATCH), strict=True
        )
    )
    return loss / len(targets), task.measured(outputs, targets)


def majority_share(labels: torch.Tensor) -> float:
    """The accuracy of always guessing the most common class.

    >>> majority_share(torch.tensor([0, 1, 1, 1]))
    0.75
    """
    return float(torch.bincount(labels).max()) / len(labels) if len(labels) else math.nan
