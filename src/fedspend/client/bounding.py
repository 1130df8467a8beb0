"""Bounding one contribution: clipping, rounding to the grid, and the client's own noise.

Guarantee: whatever comes in, the bounded vector has an L2 norm of at most `clip_norm`, so zeroing
this client moves any sum by at most that. Norms are float64; a vector that is not finite counts as
zero. On a grid the result is whole numbers, and the bound is checked on them. Noise is added after
the bound and does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fedspend.basics.arrays import FloatArray
from fedspend.client.task import ClientTask
from fedspend.noise.randomness import Randomness

# Clipped norms are scaled to this much below the bound, so that rounding of the scaled vector
# cannot exceed it.
ROUNDING = 1 - 1e-6

# norms of the next rows, in order -> what to multiply each row by
Factors = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Bounded:
    vector: FloatArray
    norm: float  # before clipping; 0 if it was not finite
    clipped: bool
    finite: bool


def bounded(vector: torch.Tensor, task: ClientTask, randomness: Randomness) -> Bounded:
    """`vector` within the task's clip. With layers, each of the L pieces is clipped to
    `clip / sqrt(L)`.

    Its numbers are float32. The result overwrites the float64 copy: for a large model, fresh memory
    costs more time than all the rest of this.
    """
    shared, grid, exact = task.shared, task.shared.grid, vector.double()
    norm = _norm(exact)
    if not math.isfinite(norm):
        return Bounded(np.zeros(vector.numel()), 0.0, clipped=False, finite=False)
    bound = task.clip_norm if grid is None else float(grid.inner(np.array([task.clip_norm]))[0])
    values: FloatArray = exact.numpy()
    if shared.layers is None or len(shared.layers) == 1:
        clipped = not norm <= bound  # so that a clip that is NaN leaves NaN, and no update
        if clipped:
            values *= bound * ROUNDING / norm
    else:
        clipped = _clip_layers(exact, shared.layers, bound)
    if grid is not None:
        # the coins need no secrecy: the bound holds however they fall
        coins = randomness.coins(shared.round, task.number)
        values = grid.rounded(values, task.clip_norm, coins)
    return Bounded(values, norm, clipped, finite=True)


def _norm(exact: torch.Tensor) -> float:
    """Squares of float32 numbers cannot overflow float64: finite exactly if every number is."""
    return float(torch.linalg.vector_norm(exact))


def _clip_layers(exact: torch.Tensor, layers: tuple[int, ...], bound: float) -> bool:
    """Scale each layer in place; whether any was too long."""
    each, clipped = bound / len(layers) ** 0.5, False
    for piece in torch.split(exact, list(layers)):
        norm = _norm(piece)
        if not norm <= each:
            piece *= each * ROUNDING / norm
            clipped = True
    return clipped


def own_noise(task: ClientTask, randomness: Randomness, size: int) -> FloatArray:
    """What a client adds to its own contribution under distributed noise. On a grid, a variance
    that is not positive is refused.
    """
    shared = task.shared
    if shared.grid is None:
        return shared.own_deviation * randomness.normal(
            size, "client-noise", shared.round, task.number
        )
    words = randomness.words("client-noise", shared.round, task.number)
    drawn = shared.grid.noise(shared.grid.variance(shared.own_deviation), words)
    return drawn.astype(np.float64)


def clip_factors(norms: FloatArray, bound: float) -> FloatArray:
    """What each row must be multiplied by to be within `bound`, from its float64 norm, with room
    for what a sum of rows loses to rounding. A row that is not finite counts as zero.
    """
    most = bound * ROUNDING
    over = norms > most
    scale = np.where(over, most / np.where(over, norms, 1.0), 1.0)
    return np.where(np.isfinite(norms), scale, 0.0)
