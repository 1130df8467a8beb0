"""Epsilon by our own privacy loss accountant.

Guarantee: the true epsilon lies in the `Bracket` that `fft_epsilon` returns. It needs neither
dp-accounting nor a Rényi divergence, so agreement with either is evidence for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import fft, special

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.verification.second_accountant.renyi import NODES, WEIGHTS


@dataclass(frozen=True)
class Bracket:
    """An estimate of epsilon, and bounds between which the true one lies."""

    lower: float
    estimate: float
    upper: float


LARGEST_GRID = 1 << 21
Direction = Literal["add", "remove"]


def fft_epsilon(
    rates: Sequence[float], noises: Sequence[float], counts: Sequence[int], delta: float
) -> Bracket:
    """Epsilon of runs of identical rounds, the larger of adding and removing a client.

    The privacy loss of a round is put on a grid of step h so that its mean is kept, rounds are
    composed by FFT, and the bracket is the accountant's error bound (Gopi, Lee, Wutschitz 2021,
    https://arxiv.org/abs/2106.02848): rounding moves a sum of k losses by at most
    `h sqrt(k/2 log(2/eta))` except with probability eta (Hoeffding). For delta below 1e-10 FFT
    round-off widens it.
    """
    (q, s), of_run = np.unique(
        np.array([rates, noises], dtype=np.float64), axis=1, return_inverse=True
    )
    k = np.bincount(of_run.reshape(-1), weights=counts).astype(np.int64)
    both = [_fft_direction("add", q, s, k, delta), _fft_direction("remove", q, s, k, delta)]
    return Bracket(
        *(max(getattr(one, name) for one in both) for name in ("lower", "estimate", "upper"))
    )


def _fft_direction(
    direction: Direction, q: FloatArray, s: FloatArray, k: IntArray, delta: float
) -> Bracket:
    rounds, eta = int(k.sum()), 1e-3 * delta
    hoeffding = math.sqrt(rounds / 2 * math.log(2 / eta))
    reach = -float(special.ndtri(eta / 100 / rounds))  # beyond it, all rounds together hold eta/100
    widest = float((2 * reach / s + 1 / s**2).max())
    first = _composed_losses(direction, q, s, k, widest / 2048, reach, eta)
    rough = _epsilon_of_losses(*first, delta)
    spread = float(first[0][-1] - first[0][0])
    mesh = max(
        5e-4 * max(rough, 2e-2 * spread) / hoeffding, spread / LARGEST_GRID, widest / LARGEST_GRID
    )
    losses, mass = _composed_losses(direction, q, s, k, mesh, reach, eta)
    error, slip = mesh * hoeffding, 2 * eta + 1e-14
    return Bracket(
        lower=max(0.0, _epsilon_of_losses(losses, mass, delta + slip) - error),
        estimate=_epsilon_of_losses(losses, mass, delta),
        upper=_epsilon_of_losses(losses, mass, delta - slip) + error if delta > slip else math.inf,
    )


def _composed_losses(
    direction: Direction,
    q: FloatArray,
    s: FloatArray,
    k: IntArray,
    mesh: float,
    reach: float,
    eta: float,
) -> tuple[FloatArray, FloatArray]:
    """Grid and mass of the summed privacy loss, on a range with all but eta/10 of it (Chernoff)."""
    parts = [
        _round_losses(direction, float(rate), float(noise), mesh, reach)
        for rate, noise in zip(q, s, strict=True)
    ]
    means = [float(mass @ index) for index, mass, _ in parts]
    variance = 1 + sum(
        count * float(mass @ (index - mean) ** 2)
        for count, mean, (index, mass, _) in zip(k, means, parts, strict=True)
    )
    tilts: FloatArray = np.exp2(np.arange(-6.0, 6.0)) / math.sqrt(variance)
    log_tail = math.log(20 / eta)

    def farthest(sign: int) -> int:
        moments = np.stack(
            [_log_moments(sign * index[::sign], mass[::sign], tilts) for index, mass, _ in parts]
        )
        return math.ceil(float(((k @ moments + log_tail) / tilts).min()))

    low, high = -farthest(-1), farthest(1)
    size = fft.next_fast_len(high - low + 1, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    shift = 0.0
    for (index, mass, offset), count in zip(parts, k, strict=True):
        spectrum *= fft.rfft(np.bincount(index % size, weights=mass, minlength=size)) ** int(count)
        shift += int(count) * offset
    index = np.arange(low, low + size)
    losses: FloatArray = index * np.float64(mesh) + shift
    return losses, fft.irfft(spectrum, size)[index % size]


def _log_moments(index: IntArray, mass: FloatArray, tilts: FloatArray) -> FloatArray:
    """Upper bounds on log(sum mass exp(tilt index)) for positive tilts.

    Neighbouring cells are merged into the highest of them.
    """
    start = np.arange(0, index.size, max(1, index.size // 4096))
    highest = np.append(index[start[1:] - 1], index[-1])
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.add.reduceat(mass, start))
    bounds: FloatArray = special.logsumexp(tilts[:, None] * highest + log_mass, axis=1)
    return bounds


def _round_losses(
    direction: Direction, q: float, s: float, mesh: float, reach: float
) -> tuple[IntArray, FloatArray, float]:
    """Grid indices and mass of one round's privacy loss, and the offset that restores its mean.

    With P = (1-q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2): log(P/Q) under P for removal, log(Q/P)
    under Q for addition.
    """
    sign = 1.0 if direction == "remove" else -1.0

    def loss_at(x: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return sign * np.logaddexp(np.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s))

    ends = np.array([-reach * s, 1 + reach * s])
    low, high = np.sort(loss_at(ends))
    index = np.arange(math.floor(low / mesh), math.ceil(high / mesh) + 1)
    edges = sign * np.append(index - 0.5, index[-1] + 0.5) * mesh
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        grown = np.log1p(np.maximum(np.expm1(edges) / q, -1.0))
        x = s * s * np.where(edges > 500, edges - math.log(q), grown) + 0.5
    mass = _normal_mass(x / s)
    if direction == "remove":
        mass = (1 - q) * mass + q * _normal_mass((x - 1) / s)
    panel = np.linspace(ends[0], ends[1], 513)
    node = (panel[:-1, None] + np.diff(panel)[:, None] / 2 * (1 + NODES)).ravel()
    density = np.exp(-((node / s) ** 2) / 2)
    if direction == "remove":
        density = (1 - q) * density + q * np.exp(-(((node - 1) / s) ** 2) / 2)
    weight = density * np.tile(WEIGHTS, 512)
    mean = float((weight @ loss_at(node)) / weight.sum())
    offset = mean - float((mass @ index) * mesh / mass.sum())
    return index, mass, offset


def _normal_mass(edges: FloatArray) -> FloatArray:
    """Mass of N(0, 1) between neighbouring edges, in either order.

    It is taken from the nearer tail, so that far bins keep their digits.
    """
    left, right = np.minimum(edges[:-1], edges[1:]), np.maximum(edges[:-1], edges[1:])
    flip = left > 0
    mass: FloatArray = special.ndtr(np.where(flip, -left, right)) - special.ndtr(
        np.where(flip, -right, left)
    )
    return mass


def _epsilon_of_losses(losses: FloatArray, mass: FloatArray, delta: float) -> float:
    """The smallest epsilon >= 0 with `E[(1 - exp(epsilon - loss))_+] <= delta`.

    Bisection finds its cell, a closed form the rest.
    """

    def at_most_delta(index: int) -> bool:
        return bool(-np.expm1(losses[index] - losses[index:]) @ mass[index:] <= delta)

    low, high = int(np.searchsorted(losses, 0.0)) - 1, losses.size - 1
    if high <= low:
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most_delta(middle) else (middle, high)
    beyond, tilted = (
        float(mass[high:].sum()) - delta,
        float(np.exp(losses[high] - losses[high:]) @ mass[high:]),
    )
    return (
        max(0.0, float(losses[high]) + math.log(beyond / tilted))
        if beyond > 0 and tilted > 0
        else 0.0
    )
