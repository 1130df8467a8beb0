"""The loop: reserve, sample, run, release, commit, step; and nothing else.

Guarantee: a round is reserved for every client before its cohort is drawn; its noised release is stored durably before
anything uses it; the step from one model to the next is a pure function of releases. So a run can be killed at any instant
and resumed without releasing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedspend.arrays import Float32Array, FloatArray
from fedspend.engines.base import Engine, Reduced
from fedspend.grid import Grid
from fedspend.mechanism import ClipAndSum, release_bit, release_on_grid, release_update
from fedspend.methods.base import Method, Release, RoundTerms, State
from fedspend.randomness import Randomness
from fedspend.sampling import draw_cohort
from fedspend.votes import Student

Record = dict[str, Any]
NORM_QUANTILES = (0.1, 0.5, 0.9)
ABOUT_UPDATES = ("clipped_share", "mean_norm", "norm_quantiles")  # votes are all as long as their clip


@dataclass(frozen=True)
class Server:
    """What the server does with releases: free post-processing."""

    rounds: int
    lr: float = 1.0
    momentum: float = 0.0
    tail: int = 1  # the final model is the mean of this many last iterates
    student: Student | None = None  # what learns from released votes; None: releases are updates of the model


@dataclass(frozen=True)
class Training:
    """How rounds run."""

    server: Server
    client_lr: Callable[[int], float]  # learning rate of round 0, 1, ...
    noise: str = "central"  # or "distributed"
    layers: tuple[int, ...] | None = None  # sizes of the pieces for per-layer clipping
    bits: int | None = None  # discrete noise and sums modulo 2^bits; None: real numbers


@dataclass(frozen=True)
class Progress:
    """Where a run stands after `done` rounds: all that the next round needs."""

    done: int
    parameters: Float32Array  # the iterate
    velocity: Float32Array
    tail_sum: FloatArray  # float64 sum of the last iterates
    tail_count: int
    method: State
    votes: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))  # all that a student has heard

    @property
    def model(self) -> Float32Array:
        """The parameters that would be handed out now: the tail mean once the tail has begun, the iterate before."""
        return self.parameters if self.tail_count == 0 else (self.tail_sum / self.tail_count).astype(np.float32)


class Store(Protocol):
    """Durable memory of a run: reserve before sampling, keep the release before use, commit after; or note that it was lost."""

    def reserve(self, round: int) -> None: ...

    def keep(self, round: int, release: Release, statistics: Record) -> None: ...

    def kept(self, round: int) -> tuple[Release, Record] | None: ...

    def was_reserved(self, round: int) -> bool: ...

    def lose(self, round: int) -> None: ...

    def commit(self, round: int, progress: Progress, record: Record) -> None: ...


def begin(parameters: Float32Array, method: Method) -> Progress:
    zero = np.zeros(parameters.size)
    return Progress(0, parameters.astype(np.float32), zero.astype(np.float32), zero, 0, method.start())


def run_rounds(
    progress: Progress,
    method: Method,
    engine: Engine,
    training: Training,
    randomness: Randomness,
    store: Store,
    observe: Callable[[Progress, Record], Record],
) -> Iterator[tuple[Progress, Record]]:
    """From where `progress` stands to the last round, one committed round at a time.

    `observe` turns the state after a round and its statistics into the record that is stored with it.
    """
    while progress.done < training.server.rounds:
        t = progress.done
        found = store.kept(t)
        if found is None and store.was_reserved(t) and not randomness.simulation:
            # The noise of the lost release cannot be drawn again, and drawing fresh noise would be a second release:
            # the round stays charged and is skipped.
            store.lose(t)
            progress = skip(progress)
            statistics: Record = {"skipped": True}
        else:
            if found is None:
                store.reserve(t)
                found = play(progress, method, engine, training, randomness)
                store.keep(t, *found)
            release, statistics = found
            progress = step(progress, release, method, training.server)
        record = observe(progress, statistics)
        store.commit(t, progress, record)
        yield progress, record


def play(progress: Progress, method: Method, engine: Engine, training: Training, randomness: Randomness) -> tuple[Release, Record]:
    """One round up to its release, and what may be written down about it."""
    t = progress.done
    terms = method.terms(t, progress.method)
    cohort = draw_cohort(terms.sampling_rate, randomness, t)
    clients = terms.sampling_rate.size
    share = terms.deviation / np.sqrt(clients) if training.noise == "distributed" else 0.0
    student = training.server.student
    size = progress.parameters.size if student is None else student.ballot.size
    grid = None if training.bits is None else Grid.of(terms.clip_norm, terms.deviation, size, training.bits)
    reduce = ClipAndSum(terms.clip_norm, training.layers, share, randomness if share > 0 or grid is not None else None, t, grid)
    reduced = engine.run(torch.from_numpy(progress.parameters), cohort, t, training.client_lr(t), reduce)
    noise = (terms.deviation, cohort.size * share**2, terms.denominator, randomness, t)
    overflowed = None
    if grid is None:
        update = release_update(reduced.total, *noise)
    else:
        update, overflowed = release_on_grid(reduced.total, *noise, grid)
    bit = None
    if terms.bit_deviation is not None:
        bit = release_bit(reduced, terms.bit_deviation, terms.denominator, randomness, t, discrete=grid is not None)
    statistics = describe(reduced, terms, cohort.size, randomness.simulation)
    if student is not None:
        statistics = {name: value for name, value in statistics.items() if name not in ABOUT_UPDATES}
        if randomness.simulation and share == 0:  # else what arrives has noise in it already
            statistics |= student.describe(reduced.total, update)
    if randomness.simulation and overflowed is not None:
        statistics["overflowed"] = overflowed  # coordinates that left the modulus: counted before it is taken, so not private
    return Release(update.astype(np.float32), bit), statistics


def describe(reduced: Reduced, terms: RoundTerms, cohort: int, simulation: bool) -> Record:
    """Statistics of updates are not private: only a simulation writes them down. The terms of a round are planned or released.

    The count of discarded updates is for the operator's eyes; `training` shows it and does not store it with the metrics.
    """
    count = max(1, cohort)
    clip = terms.clip_norm[np.isfinite(terms.clip_norm)]
    public: Record = {
        "discarded": int(reduced.discarded.sum()),
        "noise_deviation": terms.deviation / terms.denominator,
        "clip": float(clip.mean()) if clip.size else None,
    }
    if not simulation:
        return public
    active = {} if reduced.active is None else {"active": reduced.active.tolist()}
    return active | {
        "cohort": cohort,
        "clipped_share": float(reduced.clipped.sum() / count),
        "mean_norm": float(reduced.norms.mean()) if cohort else 0.0,
        "norm_quantiles": np.quantile(reduced.norms, NORM_QUANTILES).tolist() if cohort else [0.0] * len(NORM_QUANTILES),
        **public,
    }


def step(progress: Progress, release: Release, method: Method, server: Server) -> Progress:
    """Apply a release: momentum and learning rate, or a student's lesson; tail mean."""
    velocity, votes = progress.velocity, progress.votes
    if server.student is None:
        velocity = (server.momentum * velocity + release.update).astype(np.float32)
        parameters = (progress.parameters + server.lr * velocity).astype(np.float32)
    else:
        votes = server.student.heard(votes, release.update, progress.done)
        parameters = server.student.taught(progress.parameters, votes, progress.done)
    done = progress.done + 1
    in_tail = server.tail > 1 and done > server.rounds - server.tail
    return Progress(
        done=done,
        parameters=parameters,
        velocity=velocity,
        tail_sum=progress.tail_sum + parameters if in_tail else progress.tail_sum,
        tail_count=progress.tail_count + int(in_tail),
        method=method.learn(progress.method, release),
        votes=votes,
    )


def skip(progress: Progress) -> Progress:
    return replace(progress, done=progress.done + 1)
