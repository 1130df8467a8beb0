"""The gradient of a loss at a model's outputs, for many clients at once.

Guarantee: the numbers of `Task.rows`' gradient, up to float rounding; a client's own, whoever is
beside it (the dense engine tries that out for each of these before it relies on it). Outputs are
(clients, outputs, examples), and so are the targets of losses of numbers; classes are
(clients, 1, examples).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedspend.tasks.task import Task


@dataclass(frozen=True)
class Slope:
    """`at(outputs, targets)` is the gradient of each example's own loss."""

    at: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    by_class: bool = False  # targets are whole numbers
    bits: bool = False  # targets are 0 or 1

    def arranged(self, targets: torch.Tensor, clients: int, width: int) -> torch.Tensor:
        """Targets of (steps, clients, examples), one after the other, as `at` takes them."""
        if self.by_class:
            return targets.view(-1, clients, 1, width)
        wide = targets.reshape(len(targets), -1).float()
        return wide.view(-1, clients, width, wide.shape[1]).mT.contiguous()

    def made_up(
        self, outputs: int, shape: tuple[int, ...], width: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Targets to try things out on."""
        if self.by_class:
            return torch.randint(outputs, (*shape, 1, width), generator=generator)
        drawn = torch.randn(*shape, outputs, width, generator=generator)
        return (drawn > 0).float() if self.bits else drawn


_MINUS_ONE = torch.full((1, 1, 1), -1.0)


def _cross_entropy(outputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Softmax minus one-hot."""
    return torch.softmax(outputs, 1).scatter_add_(1, classes, _MINUS_ONE.expand_as(classes))


def _squared(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (outputs - wanted).mul_(2 / outputs.shape[1])


def _absolute(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (outputs - wanted).sign_().div_(outputs.shape[1])


def _logistic(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(outputs).sub_(wanted).div_(outputs.shape[1])


CROSS_ENTROPY = Slope(_cross_entropy, by_class=True)
_SLOPES = {
    "classification": CROSS_ENTROPY,
    "squared": Slope(_squared),
    "absolute": Slope(_absolute),
    "binary": Slope(_logistic, bits=True),
    "multi-label": Slope(_logistic, bits=True),
}


def slope_of(task: Task) -> Slope | None:
    """The loss's gradient, if it is written out here."""
    return None if task.own else _SLOPES.get(task.name)
