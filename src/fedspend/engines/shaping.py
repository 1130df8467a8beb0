"""BLUR and LUS (Cheng et al. 2022): updates that lose less to clipping and noise. Local, and before clipping.

Guarantee: what is done here sees one client's own data and the public clip of the round, and clipping comes afterwards, so the clip
bounds a shaped update as it bounds any other and the plan's epsilon stays what it is. With `blur` and `lus` at 0 nothing here
runs. A number that is not finite stays one, so that the mechanism still discards the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedspend.errors import InvalidInput


@dataclass(frozen=True)
class Shape:
    """How a client shapes its update.

    `blur`, lambda: the local loss gains `lambda/2 max(0, |w - w_t|^2 - S^2)` with S the client's clip of the round, so its gradient
    gains `lambda (w - w_t)` while the local model is outside the ball of radius S.
    `lus`, sparsity: this share of each layer's update is set to zero, where `|gradient * update|` of the last step is smallest.
    """

    blur: float = 0.0
    lus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.blur < math.inf:
            raise InvalidInput(f"blur must be a number of at least 0, got {self.blur!r}; 0 switches it off, 0.4 is usual")
        if not 0 <= self.lus < 1:
            raise InvalidInput(
                f"lus must be at least 0 and below 1, got {self.lus!r}; 0 switches it off, 0.7 drops 70% of each layer"
            )

    def check_lr(self, lr: float) -> None:
        """Beyond `blur * lr = 1` a step back towards the start overshoots it (Lemma 2 asks for `lambda < 1 / lr`)."""
        if not self.blur * lr < 1:
            raise InvalidInput(f"blur times lr must be below 1, got {self.blur:g} * {lr:g}; lower one of them")


UNSHAPED = Shape()


def kept(values: int, lus: float) -> int:
    """How many of a layer's values LUS keeps: `ceil((1 - lus) * values)`, safe from the last bits of the product.

    >>> kept(10, 0.7), kept(10, 0.75), kept(3, 0.99), kept(5, 0.0)
    (3, 3, 1, 5)
    """
    return math.ceil(round((1 - lus) * values, 9))


def sparsify(updates: torch.Tensor, gradients: torch.Tensor, layers: tuple[int, ...], lus: float) -> None:
    """LUS in place: in every layer of every client (row) only the most important values stay, of equal ones those that come first.

    `layers` are the sizes of consecutive pieces of a row. The gradient of the last step serves for the importance and is
    overwritten.
    """
    importance, values = gradients.mul_(updates).abs_().numpy(), updates.numpy()
    start = 0
    for size in layers:
        piece = importance[:, start : start + size]
        keep = kept(size, lus)
        # numpy's selection and product take a tenth of the time of torch's topk and masked_fill
        threshold = np.partition(piece, size - keep, axis=1)[:, size - keep]
        mask = piece >= threshold[:, None]
        for client in range(len(piece)):
            surplus = np.count_nonzero(mask[client]) - keep
            if surplus > 0:
                equal = np.flatnonzero(piece[client] == threshold[client])
                mask[client, equal[-surplus:]] = False
        values[:, start : start + size] *= mask  # NaN times 0 is NaN, which has to reach the mechanism
        start += size
