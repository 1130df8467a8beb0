"""Clip, sum, noise: the one place where a release is made.

Guarantee: whatever the updates are, `ClipAndSum` gives each client an L2 norm of at most its clip, so zeroing one client moves the
sum by at most that; `release` adds Gaussian noise of exactly the planned deviation and divides by the planned denominator.
Norms are computed in float64; an update that is not finite counts as zero and changes neither noise nor denominator.
With a grid all this happens in whole numbers, and the noise is a discrete Gaussian: nothing is left to floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from fedspend.arrays import FloatArray, IntArray
from fedspend.discrete_gaussian import sample
from fedspend.engines.base import Reduced
from fedspend.grid import Grid
from fedspend.randomness import Randomness

# Clipped norms are scaled to this much below the bound, so that float32 rounding of the scaled update cannot exceed it.
_ROUNDING = 1 - 1e-6


@dataclass(frozen=True)
class ClipAndSum:
    """Reduces raw updates to a sum of clipped ones. `clip_norms` has one bound per client of the federation.

    With `layers` (sizes of consecutive pieces of the flat vector) each of the L pieces is clipped to `clip / sqrt(L)`, so
    that the whole stays within `clip`. An infinite clip leaves updates as they are. With a `grid`, updates are rounded to it and
    the sum counts its steps; whole numbers below 2^53 are exact in a double, in any order.
    """

    clip_norms: FloatArray
    layers: tuple[int, ...] | None = None
    client_noise: float = 0.0  # deviation of the noise that each client adds to its own update (distributed noise)
    randomness: Randomness | None = None
    round: int = 0
    grid: Grid | None = None

    def __call__(self, updates: torch.Tensor, clients: IntArray) -> Reduced:
        # float32 squares cannot overflow float64, so a norm is finite exactly if every number in it is
        norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            updates = torch.where(finite[:, None], updates, torch.zeros((), dtype=updates.dtype))
            norms = torch.where(finite, norms, torch.zeros_like(norms))
        own = self.clip_norms[clients]
        bounds = torch.from_numpy(own if self.grid is None else self.grid.inner(own))
        total = torch.zeros(updates.shape[1], dtype=torch.float64)
        clipped = torch.zeros(len(clients), dtype=torch.bool)
        pieces = self.layers or (updates.shape[1],)
        scales = []
        start = 0
        for size in pieces:
            piece = updates[:, start : start + size]
            norm = norms if len(pieces) == 1 else torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64)
            bound = bounds / len(pieces) ** 0.5
            over = norm > bound
            # `where` keeps a zero update from dividing by zero and an infinite bound from making 0 * inf
            scale = torch.where(over, bound * _ROUNDING / torch.where(over, norm, torch.ones_like(norm)), torch.ones_like(norm))
            if self.grid is None:
                for update, factor in zip(piece, scale.tolist(), strict=True):
                    total[start : start + size].add_(update, alpha=factor)  # computed in float64, without a copy
            scales.append(scale)
            clipped |= over
            start += size
        summed = total.numpy()
        if self.grid is not None and self.randomness is not None:
            factors = torch.stack(scales, dim=1).numpy()
            for client, update, scale in zip(clients, updates.numpy(), factors, strict=True):
                bounded = update.astype(np.float64) * (scale[0] if len(pieces) == 1 else np.repeat(scale, pieces))
                coins = self.randomness.generator("rounding", self.round, int(client))
                summed += self.grid.rounded(bounded, float(self.clip_norms[client]), coins)
        if self.client_noise > 0 and self.randomness is not None:
            for client in clients:
                summed += self._own_noise(self.randomness, summed.size, int(client))
        return Reduced(summed, norms.numpy(), clipped.numpy(), (~finite).numpy())

    def _own_noise(self, randomness: Randomness, size: int, client: int) -> FloatArray | IntArray:
        """What a client adds to its own update under distributed noise."""
        if self.grid is None:
            return self.client_noise * randomness.normal(size, "client-noise", self.round, client)
        return self.grid.noise(self.grid.in_steps(self.client_noise**2), randomness.words("client-noise", self.round, client))


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


def release_on_grid(
    total: FloatArray,
    deviation: float,
    received_variance: float,
    denominator: float,
    randomness: Randomness,
    round: int,
    grid: Grid,
) -> tuple[FloatArray, int]:
    """The same in whole numbers, modulo the grid's modulus; and how many coordinates left it."""
    missing = grid.in_steps(deviation**2) - grid.in_steps(received_variance)
    noised = total.astype(np.int64) + grid.noise(missing, randomness.words("noise", round))
    wrapped, overflowed = grid.wrapped(noised)
    update: FloatArray = wrapped.astype(np.float64) * grid.step / denominator
    return update, overflowed


Factors = Callable[[FloatArray], FloatArray]  # norms of the next rows, in order -> what to multiply each row by


def clip_factors(norms: FloatArray, bound: float) -> FloatArray:
    """What each row must be multiplied by to be within `bound`, from its float64 norm. A row that is not finite counts as zero."""
    over = norms > bound
    scale = np.where(over, bound * _ROUNDING / np.where(over, norms, 1.0), 1.0)
    return np.where(np.isfinite(norms), scale, 0.0)


def release_step(
    total: FloatArray, deviation: float, denominator: float, randomness: Randomness, step: int, client: int
) -> FloatArray:
    """The noised mean gradient of one local step of one client: its sum of clipped gradients, over the planned batch.

    Steps are numbered through all rounds, so that no two share noise.
    """
    if deviation > 0:
        total = total + deviation * randomness.normal(total.size, "record-noise", step, client)
    return total / denominator


def release_bit(
    reduced: Reduced, deviation: float, denominator: float, randomness: Randomness, round: int, discrete: bool = False
) -> float:
    """The noised share of clients whose update was within their clip.

    Each sampled client contributes `b - 1/2`, so zeroing one moves the sum by 1/2 and not by 1. A discarded update counts
    as clipped. `discrete` counts in halves, so that bits are whole numbers, and adds discrete Gaussian noise.
    """
    within = ~reduced.clipped & ~reduced.discarded
    if discrete:
        halves = int((2 * within.astype(np.int64) - 1).sum())
        halves += int(sample(Fraction(2 * deviation) ** 2, 1, randomness.words("bit-noise", round))[0])
        return halves / 2 / denominator + 0.5
    shifted = float((within - 0.5).sum()) + deviation * float(randomness.normal(1, "bit-noise", round)[0])
    return shifted / denominator + 0.5
