"""Clip, sum, noise: the one place where a release is made.

Guarantee: whatever the updates are, `ClipAndSum` gives each client an L2 norm of at most its clip, so zeroing one client moves the
sum by at most that; `release` adds Gaussian noise of exactly the planned deviation and divides by the planned denominator.
Norms are computed in float64; an update that is not finite counts as zero and changes neither noise nor denominator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedspend.arrays import FloatArray, IntArray
from fedspend.engines.base import Reduced
from fedspend.randomness import Randomness

# Clipped norms are scaled to this much below the bound, so that float32 rounding of the scaled update cannot exceed it.
_ROUNDING = 1 - 1e-6


@dataclass(frozen=True)
class ClipAndSum:
    """Reduces raw updates to a sum of clipped ones. `clip_norms` has one bound per client of the federation.

    With `layers` (sizes of consecutive pieces of the flat vector) each of the L pieces is clipped to `clip / sqrt(L)`, so
    that the whole stays within `clip`. An infinite clip leaves updates as they are.
    """

    clip_norms: FloatArray
    layers: tuple[int, ...] | None = None
    client_noise: float = 0.0  # deviation of the noise that each client adds to its own update (distributed noise)
    randomness: Randomness | None = None
    round: int = 0

    def __call__(self, updates: torch.Tensor, clients: IntArray) -> Reduced:
        # float32 squares cannot overflow float64, so a norm is finite exactly if every number in it is
        norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            updates = torch.where(finite[:, None], updates, torch.zeros((), dtype=updates.dtype))
            norms = torch.where(finite, norms, torch.zeros_like(norms))
        bounds = torch.from_numpy(self.clip_norms[clients])
        total = torch.zeros(updates.shape[1], dtype=torch.float64)
        clipped = torch.zeros(len(clients), dtype=torch.bool)
        pieces = self.layers or (updates.shape[1],)
        start = 0
        for size in pieces:
            piece = updates[:, start : start + size]
            norm = norms if len(pieces) == 1 else torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64)
            bound = bounds / len(pieces) ** 0.5
            over = norm > bound
            # `where` keeps a zero update from dividing by zero and an infinite bound from making 0 * inf
            scale = torch.where(over, bound * _ROUNDING / torch.where(over, norm, torch.ones_like(norm)), torch.ones_like(norm))
            for update, factor in zip(piece, scale.tolist(), strict=True):
                total[start : start + size].add_(update, alpha=factor)  # computed in float64, without a copy
            clipped |= over
            start += size
        summed = total.numpy()
        if self.client_noise > 0 and self.randomness is not None:
            for client in clients:
                summed += self.client_noise * self.randomness.normal(summed.size, "client-noise", self.round, int(client))
        return Reduced(summed, norms.numpy(), clipped.numpy(), (~finite).numpy())


def release_update(
    total: FloatArray, deviation: float, received_variance: float, denominator: float, randomness: Randomness, round: int
) -> FloatArray:
    """The noised mean update that is published.

    Under central noise nothing has been received and all of `deviation ** 2` is added here. Under distributed noise the
    clients that answered have already added `received_variance`; the server tops up to the full variance for all others.
    """
    missing = deviation**2 - received_variance
    if missing > 0:
        total = total + np.sqrt(missing) * randomness.normal(total.size, "noise", round)
    return total / denominator


def clip_factors(norms: torch.Tensor, bound: float) -> torch.Tensor:
    """What each row must be multiplied by to be within `bound`, from its float64 norm. A row that is not finite counts as zero."""
    finite = torch.isfinite(norms)
    over = norms > bound
    scale = torch.where(over, bound * _ROUNDING / torch.where(over, norms, torch.ones_like(norms)), torch.ones_like(norms))
    return torch.where(finite, scale, torch.zeros_like(norms))


def release_step(
    total: FloatArray, deviation: float, denominator: float, randomness: Randomness, step: int, client: int
) -> FloatArray:
    """The noised mean gradient of one local step of one client: its sum of clipped gradients, over the planned batch.

    Steps are numbered through all rounds, so that no two share noise.
    """
    if deviation > 0:
        total = total + deviation * randomness.normal(total.size, "record-noise", step, client)
    return total / denominator


def release_bit(reduced: Reduced, deviation: float, denominator: float, randomness: Randomness, round: int) -> float:
    """The noised share of clients whose update was within their clip.

    Each sampled client contributes `b - 1/2`, so zeroing one moves the sum by 1/2 and not by 1. A discarded update counts
    as clipped.
    """
    within = ~reduced.clipped & ~reduced.discarded
    shifted = float((within - 0.5).sum()) + deviation * float(randomness.normal(1, "bit-noise", round)[0])
    return shifted / denominator + 0.5
