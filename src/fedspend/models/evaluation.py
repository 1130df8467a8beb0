"""A model's scores, mean cross-entropy and accuracy, computed in batches without changing the
model.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedspend.models.flat import as_batch

_BATCH = 1024


@torch.no_grad()
def scores(module: nn.Module, parameters: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """The score of `module` for each row and class, in evaluation mode, with these parameters (a
    flat vector).
    """
    named = list(module.named_parameters())
    pieces = torch.split(parameters, [parameter.numel() for _, parameter in named])
    state = {
        name: piece.view(parameter.shape)
        for (name, parameter), piece in zip(named, pieces, strict=True)
    }
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
def right_answers(
    module: nn.Module, parameters: torch.Tensor, features: torch.Tensor, labels: torch.Tensor
) -> int:
    """How many rows `module` with these parameters (a flat vector) gives their own class."""
    return int((scores(module, parameters, features).argmax(dim=1) == labels).sum())


def majority_share(labels: torch.Tensor) -> float:
    """The accuracy of always guessing the most common class.

    >>> majority_share(torch.tensor([0, 1, 1, 1]))
    0.75
    """
    return float(torch.bincount(labels).max()) / len(labels) if len(labels) else math.nan
