"""The clients' learning rate by round, as `train.lr_schedule` says: for training and for plans."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedspend.configuration.sections import TrainSettings


def lr_schedule(lr: float, kind: str, end: float, rounds: int) -> Callable[[int], float]:
    """Learning rate of rounds 0..rounds-1, from `lr` to `end * lr`."""

    def at(round: int) -> float:
        share = round / max(1, rounds - 1)
        if kind == "linear":
            return lr * (1 - (1 - end) * share)
        if kind == "cosine":
            return lr * (end + (1 - end) * (1 + math.cos(math.pi * share)) / 2)
        return lr

    return at


def relative_rates(train: TrainSettings, rounds: int) -> list[float] | None:
    """The learning rate of each round relative to the first; None if it does not change."""
    if train.lr_schedule == "constant" or train.lr_end == 1:
        return None
    at = lr_schedule(1.0, train.lr_schedule, train.lr_end, rounds)
    return [max(0.0, at(round)) for round in range(rounds)]
