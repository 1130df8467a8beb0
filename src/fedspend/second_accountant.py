"""A second accountant, for checking the first: it shares no code with `fedspend.accounting`, and no method either.

Guarantee: `renyi_divergence` is right to 1e-9 relative (Gauss-Legendre panels on the region that holds the mass); `pld_epsilon`
is never below the true epsilon (dp-accounting's pessimistic privacy loss distributions); `fft_epsilon` brackets the true
epsilon without dp-accounting. All three are about one mechanism: rounds of a Gaussian of sensitivity 1 on a Poisson sample,
adding or removing one client.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import fft, special

from fedspend.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
REACH = 10.0  # standard deviations beyond the outermost modes
KEPT = 36.0  # panels lower than the highest by more than exp(-36) are left out
PANELS_AT_ONCE = 1 << 14


def renyi_divergence(rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike) -> FloatArray:
    """Rényi divergence of one round, elementwise over rates, noise multipliers and orders.

    `log(E_x[(1+u)^a]) / (a-1)` with `u = q (exp(x/s - 1/(2 s^2)) - 1)` and x ~ N(0, 1); removal is the larger of the two
    directions (Mironov, Talwar, Zhang 2019, https://arxiv.org/abs/1908.10530, Theorem 5). As E[u] = 0, the integrand is
    `(1+u)^a - 1 - a u >= 0`, which loses no digits when u is small.

    >>> round(float(renyi_divergence(0.9, 2.4, 2)), 15)
    0.142861666907219
    """
    q, s, a = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (rate, noise, order)))
    if not bool(np.all((q > 0) & (q <= 1) & (s > 0) & (s < np.inf) & (a > 1) & (a < np.inf))):
        raise InvalidInput("the accountant needs 0 < rate <= 1, finite noise > 0 and finite order > 1")
    shape, (q, s, a) = q.shape, (q.ravel(), s.ravel(), a.ravel())
    # (1+u)^a has branch points at distance pi s from the axis: a panel of 3 s keeps 16 nodes exact.
    # The modes lie between 0 and max(a,2)/s.
    width = np.minimum(2.0, 3.0 * s)
    panels = np.ceil((np.maximum(a, 2.0) / s + 2 * REACH) / width).astype(np.int64)
    log_moment = np.empty(q.size)
    batch = (np.cumsum(panels) - panels) // PANELS_AT_ONCE
    for cells in np.split(np.arange(q.size), np.flatnonzero(np.diff(batch)) + 1):
        if cells.size:
            log_moment[cells] = _log_moment_excess(q[cells], s[cells], a[cells], width[cells], panels[cells])
    result: FloatArray = (np.logaddexp(0.0, log_moment) / (a - 1)).reshape(shape)
    return result


def _log_moment_excess(q: FloatArray, s: FloatArray, a: FloatArray, width: FloatArray, panels: npt.NDArray[np.int64]) -> FloatArray:
    """log(E[(1+u)^a] - 1) of each cell, over panels found by looking at their edges first."""
    edges = panels + 1
    cell = np.repeat(np.arange(q.size), edges)
    first = np.cumsum(edges) - edges
    edge = (np.arange(cell.size) - first[cell]) * width[cell] - REACH
    at_edge = _log_integrand(edge, q[cell], s[cell], a[cell])
    top = np.maximum.reduceat(at_edge, first)
    # The integrand's log curves down by at most 1 (Gaussian) away from u = 0, so a panel of width 2 is never much above its edges.
    keep = np.maximum(at_edge[:-1], at_edge[1:]) > top[cell[:-1]] - KEPT
    left = np.flatnonzero(keep & (cell[:-1] == cell[1:]))
    owner = cell[left]
    half = width[owner, None] / 2
    height = _log_integrand(edge[left, None] + half * (1 + NODES), q[owner, None], s[owner, None], a[owner, None])
    area = half[:, 0] * (np.exp(height - top[owner, None]) @ WEIGHTS)
    result: FloatArray = top + np.log(np.bincount(owner, weights=area, minlength=q.size)) - 0.5 * math.log(2 * math.pi)
    return result


def _log_integrand(x: FloatArray, q: FloatArray, s: FloatArray, a: FloatArray) -> FloatArray:
    """log((1+u)^a - 1 - a u) - x^2/2, each of three regimes by the form that keeps its digits."""
    loss = x / s - 0.5 / s**2
    q, a = np.broadcast_to(q, x.shape), np.broadcast_to(a, x.shape)
    with np.errstate(divide="ignore"):
        u = q * np.expm1(np.minimum(loss, 700.0))
        power = a * np.log1p(u)
        small, large = np.abs(a * u) < 0.02, power > 30.0
        value = np.log(np.maximum(np.expm1(np.minimum(power, 31.0)) - a * u, 0.0))
        if small.any():
            v, b = u[small], a[small]
            series = 1 + (b - 2) / 3 * v * (
                1 + (b - 3) / 4 * v * (1 + (b - 4) / 5 * v * (1 + (b - 5) / 6 * v * (1 + (b - 6) / 7 * v)))
            )
            value[small] = np.log(b * (b - 1) / 2 * v**2 * series)
        if large.any():
            b, log_u = (
                a[large],
                np.log(q[large]) + np.where(loss[large] > 40, loss[large], np.log(np.expm1(np.minimum(loss[large], 41)))),
            )
            p = np.where(loss[large] > 700, b * log_u, power[large])
            value[large] = p + np.log1p(-np.exp(-p) - np.exp(np.log(b) + log_u - p))
    result: FloatArray = value - x**2 / 2
    return result


def epsilon_at(divergence: npt.ArrayLike, order: npt.ArrayLike, delta: float) -> FloatArray:
    """Epsilon of a Rényi bound: `R + log(1-1/a) - (log delta + log a)/(a-1)`, at least 0.

    Canonne, Kamath, Steinke 2020, https://arxiv.org/abs/2004.00010, Proposition 12.
    """
    a = np.asarray(order, dtype=np.float64)
    epsilon: FloatArray = np.asarray(divergence) + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return np.maximum(epsilon, 0.0)


def divergence_of_schedule(rates: npt.ArrayLike, noises: npt.ArrayLike, counts: npt.ArrayLike, orders: npt.ArrayLike) -> FloatArray:
    """Rényi divergence of runs of identical rounds at each of `orders`: divergences add up."""
    per_round = renyi_divergence(np.asarray(rates)[:, None], np.asarray(noises)[:, None], np.asarray(orders)[None, :])
    total: FloatArray = np.asarray(counts, dtype=np.float64) @ per_round
    return total


ROUGH_ORDERS = 1 + np.geomspace(0.05, 400, 20)


def pld_epsilon(
    rates: Sequence[float],
    noises: Sequence[float],
    counts: Sequence[int],
    delta: float,
    interval: float | None = None,
    most_distinct: int = 100,
) -> float:
    """Epsilon of runs of identical rounds by dp-accounting's pessimistic privacy loss distributions; at no `interval` too low.

    Without an `interval` it is about 2e-4 of epsilon. More than `most_distinct` different rounds are merged, each into the lowest
    noise and the highest rate of its neighbourhood: less noise or a higher rate can only cost more, so it stays an upper bound.
    """
    q, s, k = _merged(np.asarray(rates, float), np.asarray(noises, float), np.asarray(counts, np.int64), most_distinct)
    # A grid point costs dp-accounting about 8 microseconds a round. Small noise has losses in the thousands, where a fine grid
    # shows nothing more, and a coarse one is still pessimistic.
    points = (3e5 if interval is None else 3e6) / math.sqrt(q.size)
    one_round = float((20 / s + 0.5 / s**2).max())
    divergence = divergence_of_schedule(q, s, k, ROUGH_ORDERS)
    mean = float(divergence[0])  # of the summed loss, about: near order 1 it is the Kullback-Leibler divergence
    all_rounds = mean + 20 * math.sqrt(2 * mean) + one_round
    if interval is None:
        rough = float(epsilon_at(divergence, ROUGH_ORDERS, delta).min())
        # Rounding to the grid adds variance: measured, epsilon rises by about 3 (interval / deviation of one loss)^2, relative.
        deviation = math.sqrt(2 * mean / float(k.sum()))
        interval = min(max(2e-4 * rough, 1e-5), 1e-3, 4e-3 * deviation)
    interval = max(interval, one_round / points, all_rounds / points, 1e-9)
    interval = 2.0 ** math.floor(math.log2(interval))  # so that schedules of different budgets can share cached rounds
    composed: Any = None
    for rate, noise, count in zip(q, s, k, strict=True):
        repeated = _round_pld(float(rate), float(noise), interval)
        repeated = repeated.self_compose(int(count)) if count > 1 else repeated
        composed = repeated if composed is None else composed.compose(repeated)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _round_pld(rate: float, noise: float, interval: float) -> Any:
    # Imported here: it takes a second, and a plan that is only looked at does not need it.
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, pessimistic_estimate=True
    )


def _merged(
    q: FloatArray, s: FloatArray, k: npt.NDArray[np.int64], most: int
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int64]]:
    """The same rounds with equal ones counted together, and near ones too (to the safe side) while there are more than `most`."""
    cells = np.stack([q, s])
    step = 1e-4
    while True:
        distinct, of_round = np.unique(cells, axis=1, return_inverse=True)
        if distinct.shape[1] <= most:
            break
        cells = np.floor(np.log(np.stack([q, s])) / step)
        step *= 1.5
    of_round = of_round.reshape(-1)
    highest, lowest, count = np.zeros(distinct.shape[1]), np.full(distinct.shape[1], np.inf), np.zeros(distinct.shape[1], np.int64)
    np.maximum.at(highest, of_round, q)
    np.minimum.at(lowest, of_round, s)
    np.add.at(count, of_round, k)
    return highest, lowest, count


@dataclass(frozen=True)
class Bracket:
    """An estimate of epsilon, and bounds between which the true one lies."""

    lower: float
    estimate: float
    upper: float


LARGEST_GRID = 1 << 21
Direction = Literal["add", "remove"]


def fft_epsilon(rates: Sequence[float], noises: Sequence[float], counts: Sequence[int], delta: float) -> Bracket:
    """Epsilon of runs of identical rounds by our own privacy loss accountant, the larger of add and remove.

    The privacy loss of a round is put on a grid of step h with its mean kept, rounds are composed by FFT, and the bracket is the
    accountant's error bound (Gopi, Lee, Wutschitz 2021, https://arxiv.org/abs/2106.02848): rounding moves a sum of k losses by
    at most `h sqrt(k/2 log(2/eta))` except with probability eta (Hoeffding). For delta below 1e-10 FFT round-off widens it.
    """
    runs = _merged(np.asarray(rates, float), np.asarray(noises, float), np.asarray(counts, np.int64), sys.maxsize)
    directions: tuple[Direction, ...] = ("add", "remove")
    both = [_fft_direction(direction, *runs, delta) for direction in directions]
    return Bracket(*(max(getattr(one, name) for one in both) for name in ("lower", "estimate", "upper")))


def _fft_direction(direction: Direction, q: FloatArray, s: FloatArray, k: npt.NDArray[np.int64], delta: float) -> Bracket:
    rounds, eta = int(k.sum()), 1e-3 * delta
    hoeffding = math.sqrt(rounds / 2 * math.log(2 / eta))
    reach = -float(special.ndtri(eta / 100 / rounds))  # beyond it, all rounds together hold eta/100
    widest = float((2 * reach / s + 1 / s**2).max())
    first = _composed_losses(direction, q, s, k, widest / 2048, reach, eta)
    rough = _epsilon_of_losses(*first, delta)
    spread = float(first[0][-1] - first[0][0])
    mesh = max(5e-4 * max(rough, 2e-2 * spread) / hoeffding, spread / LARGEST_GRID, widest / LARGEST_GRID)
    losses, mass = _composed_losses(direction, q, s, k, mesh, reach, eta)
    error, slip = mesh * hoeffding, 2 * eta + 1e-14
    return Bracket(
        lower=max(0.0, _epsilon_of_losses(losses, mass, delta + slip) - error),
        estimate=_epsilon_of_losses(losses, mass, delta),
        upper=_epsilon_of_losses(losses, mass, delta - slip) + error if delta > slip else math.inf,
    )


def _composed_losses(
    direction: Direction, q: FloatArray, s: FloatArray, k: npt.NDArray[np.int64], mesh: float, reach: float, eta: float
) -> tuple[FloatArray, FloatArray]:
    """Grid and mass of the summed privacy loss, on the range that holds all but eta/10 (Chernoff)."""
    parts = [_round_losses(direction, float(rate), float(noise), mesh, reach) for rate, noise in zip(q, s, strict=True)]
    means = [float(mass @ index) for index, mass, _ in parts]
    variance = 1 + sum(
        count * float(mass @ (index - mean) ** 2) for count, mean, (index, mass, _) in zip(k, means, parts, strict=True)
    )
    tilts: FloatArray = np.exp2(np.arange(-6.0, 6.0)) / math.sqrt(variance)
    log_tail = math.log(20 / eta)

    def farthest(sign: int) -> int:
        moments = np.stack([_log_moments(sign * index[::sign], mass[::sign], tilts) for index, mass, _ in parts])
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


def _log_moments(index: npt.NDArray[np.int64], mass: FloatArray, tilts: FloatArray) -> FloatArray:
    """Upper bounds of log(sum mass exp(tilt index)) for positive tilts; neighbours are lumped into the highest."""
    start = np.arange(0, index.size, max(1, index.size // 4096))
    highest = np.append(index[start[1:] - 1], index[-1])
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.add.reduceat(mass, start))
    bounds: FloatArray = special.logsumexp(tilts[:, None] * highest + log_mass, axis=1)
    return bounds


def _round_losses(
    direction: Direction, q: float, s: float, mesh: float, reach: float
) -> tuple[npt.NDArray[np.int64], FloatArray, float]:
    """Grid indices and mass of one round's privacy loss, and the offset that restores its mean.

    With P = (1-q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2): log(P/Q) under P for removal, log(Q/P) under Q for addition.
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
    """Mass of N(0, 1) between neighbouring edges (in either order), taken from the nearer tail so that far bins keep digits."""
    left, right = np.minimum(edges[:-1], edges[1:]), np.maximum(edges[:-1], edges[1:])
    flip = left > 0
    mass: FloatArray = special.ndtr(np.where(flip, -left, right)) - special.ndtr(np.where(flip, -right, left))
    return mass


def _epsilon_of_losses(losses: FloatArray, mass: FloatArray, delta: float) -> float:
    """The smallest epsilon >= 0 with `E[(1 - exp(epsilon - loss))_+] <= delta`: bisection for its cell, then closed form."""

    def at_most_delta(index: int) -> bool:
        return bool(-np.expm1(losses[index] - losses[index:]) @ mass[index:] <= delta)

    low, high = int(np.searchsorted(losses, 0.0)) - 1, losses.size - 1
    if high <= low:
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most_delta(middle) else (middle, high)
    beyond, tilted = float(mass[high:].sum()) - delta, float(np.exp(losses[high] - losses[high:]) @ mass[high:])
    return max(0.0, float(losses[high]) + math.log(beyond / tilted)) if beyond > 0 and tilted > 0 else 0.0


Runs = tuple[Sequence[float], Sequence[float], Sequence[int]]  # rates, noise multipliers and counts of a schedule's runs
WORKERS = 2


def pld_epsilons(schedules: Sequence[Runs], delta: float, progress: Callable[[int, int], None]) -> list[float]:
    """`pld_epsilon` of every schedule; on worker processes where there are enough to pay for starting them."""
    if len(schedules) < 16 or (os.cpu_count() or 1) < 2:
        found = []
        for runs in schedules:
            found.append(pld_epsilon(*runs, delta))
            progress(len(found), len(schedules))
        return found
    idle: queue.Queue[subprocess.Popen[str]] = queue.Queue()
    # Plain child processes, not multiprocessing: that would import the caller's main script a second time.
    command = [sys.executable, "-c", "from fedspend.second_accountant import serve; serve()"]
    for _ in range(WORKERS):
        idle.put(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))

    def ask(runs: Runs) -> float:
        worker = idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps([*runs, delta]) + "\n")
            worker.stdin.flush()
            return float(worker.stdout.readline())
        except (OSError, ValueError):  # the worker died: slower, but the answer is the same
            return pld_epsilon(*runs, delta)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            asked = [pool.submit(ask, runs) for runs in schedules]
            for done, _ in enumerate(as_completed(asked), start=1):
                progress(done, len(schedules))
            return [one.result() for one in asked]
    finally:
        while not idle.empty():
            idle.get().kill()


def serve() -> None:
    """Answer `pld_epsilon` for one JSON list of arguments per line on standard input: what a verifier's worker process runs."""
    for line in sys.stdin:
        print(json.dumps(pld_epsilon(*json.loads(line))), flush=True)
