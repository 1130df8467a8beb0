"""BLUR and LUS (Cheng et al. 2022): shape updates at the client, before clipping, so that they lose
less to clipping and noise.

Guarantee: shaping sees only one client's own data and the public clip of the round, and clipping
comes afterwards, so the clip bounds a shaped update like any other and the plan's epsilon does not
change. With `blur` and `lus` at 0 nothing here runs. A number that is not finite stays so, and the
mechanism still discards the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedspend.basics.arrays import BoolArray, Float32Array
from fedspend.errors import InvalidInput

_CACHED_NUMBERS = 2**17  # numbers of updates that are processed together


@dataclass(frozen=True)
class Shape:
    """How a client shapes its update.

    `blur`, lambda: the local loss gains `lambda/2 max(0, |w - w_t|^2 - S^2)` with S the client's
    clip of the round, so its gradient gains `lambda (w - w_t)` while the local model is outside the
    ball of radius S. `lus`, sparsity: this share of each layer's update is set to zero, where
    `|gradient * update|` of the last step is smallest.
    """

    blur: float = 0.0
    lus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.blur < math.inf:
            raise InvalidInput(
                f"blur must be at least 0, got {self.blur!r}; 0 switches it off, 0.4 is usual"
            )
        if not 0 <= self.lus < 1:
            raise InvalidInput(
                f"lus must be at least 0 and below 1, got {self.lus!r}; 0 switches it off, 0.7 "
                "drops 70% of each layer"
            )

    def check_lr(self, lr: float) -> None:
        """From `blur * lr = 1` on, a step back towards the start may overshoot it (Lemma 2 requires
        `lambda < 1 / lr`).
        """
        if not self.blur * lr < 1:
            raise InvalidInput(
                f"blur times lr must be below 1, got {self.blur:g} * {lr:g}; lower one of them"
            )


UNSHAPED = Shape()


def kept(values: int, lus: float) -> int:
    """How many of a layer's values LUS keeps: `ceil((1 - lus) * values)`, robust to rounding of the
    product.

    >>> kept(10, 0.7), kept(10, 0.75), kept(3, 0.99), kept(5, 0.0)
    (3, 3, 1, 5)
    """
    return math.ceil(round((1 - lus) * values, 9))


def sparsify(
    updates: torch.Tensor, gradients: torch.Tensor, layers: tuple[int, ...], lus: float
) -> None:
    """LUS in place: in every layer of every client (row) only the most important values stay; among
    equal ones, the first.

    `layers` are the sizes of consecutive pieces of a row. Importance is computed from the gradient
    of the last step.
    """
    few = max(1, _CACHED_NUMBERS // updates.shape[1])
    for values, slopes in zip(torch.split(updates, few), torch.split(gradients, few), strict=True):
        importance = (slopes * values).abs_().numpy()
        start = 0
        for size in layers:
            place = (slice(None), slice(start, start + size))
            # NaN times 0 stays NaN
            values.numpy()[place] *= most_important(importance[place], kept(size, lus))
            start += size


def most_important(importance: Float32Array, keep: int) -> BoolArray:
    """Marks the `keep` largest values of every row; among equal ones, the first."""
    # numpy's selection takes a tenth of the time of torch's topk
    smallest = importance.shape[1] - keep
    threshold = np.partition(importance, smallest, axis=1)[:, smallest]
    mask: BoolArray = importance >= threshold[:, None]
    for row, least, chosen in zip(importance, threshold, mask, strict=True):
        surplus = np.count_nonzero(chosen) - keep
        if surplus > 0:
            chosen[np.flatnonzero(row == least)[-surplus:]] = False
    return mask
