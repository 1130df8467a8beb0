"""How parameters descend: SGD with momentum or Adam, with weight decay, a pull back to the start
(FedProx, Li et al. 2020), and a bound on the gradient of a batch.

Guarantee: what a client does between its start and its update is its own affair, whichever of these
it is: the update is clipped and noised afterwards, so none of them changes what is accounted. Each
client begins with an optimiser of its own, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedspend.errors import InvalidInput, finite_number

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Descent:
    """`proximal` is FedProx's mu: the loss gains mu / 2 times the squared distance to the start.
    `gradient_clip` bounds the norm of each batch's gradient; None: nothing does.
    """

    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    gradient_clip: float | None = None

    @property
    def plain(self) -> bool:
        """Whether this is SGD with momentum alone, for which engines have steps of their own."""
        return (self.optimizer, self.weight_decay, self.proximal, self.gradient_clip) == (
            "sgd",
            0.0,
            0.0,
            None,
        )

    def check(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InvalidInput(
                f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            )
        for name in ("weight_decay", "proximal"):
            if not finite_number(name, getattr(self, name)) >= 0:
                raise InvalidInput(f"{name} must be at least 0, got {getattr(self, name)!r}")
        if not 0 <= finite_number("momentum", self.momentum) < 1:
            raise InvalidInput(f"momentum must be at least 0 and below 1, got {self.momentum!r}")
        if (
            self.gradient_clip is not None
            and not finite_number("gradient_clip", self.gradient_clip) > 0
        ):
            raise InvalidInput(f"gradient_clip must be positive, got {self.gradient_clip!r}")
        if self.optimizer == "adam" and self.momentum:
            raise InvalidInput(
                "momentum is for optimizer sgd; adam has its own: drop momentum, or choose sgd"
            )

    def made(self, parameters: Sequence[torch.Tensor], lr: float) -> torch.optim.Optimizer:
        """A fresh optimiser for one client."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay
        )

    @torch.no_grad()
    def adjust(self, parameters: Sequence[nn.Parameter], start: Sequence[torch.Tensor]) -> None:
        """Add the pull back to the start to the gradients, then bound them together."""
        with_gradient = [
            (parameter, begun)
            for parameter, begun in zip(parameters, start, strict=True)
            if parameter.grad is not None
        ]
        if self.proximal:
            for parameter, begun in with_gradient:
                assert parameter.grad is not None
                parameter.grad.add_(parameter - begun, alpha=self.proximal)
        if self.gradient_clip is not None:
            nn.utils.clip_grad_norm_([one for one, _ in with_gradient], self.gradient_clip)


PLAIN = Descent()
