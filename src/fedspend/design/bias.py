"""How far clipping and individual rates move a round, measured beside Theorems 2 and 3.

In a round of a simulated run, everyone is asked for its update without a clip. What the round
releases on average over cohorts and noise then differs from the mean of these updates by a vector
whose length is the bias; Theorem 2 of Kiani et al. (2025) bounds it, and Theorem 3 bounds it on the
average over all ways of dealing the budgets.

Guarantee: a diagnostic of seeded simulations on public rows, which nobody's budget pays for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.configuration.config import Config
from fedspend.design.choices import refuse_private
from fedspend.errors import FedspendWarning
from fedspend.planning.theory import theorem_2, theorem_3


@dataclass(frozen=True)
class RoundBias:
    """One round: the bias, its bounds, and the length of the mean update, all in one unit."""

    round: int  # counted from 1
    measured: float
    by_rates: float  # Theorem 2, first part
    by_clips: float  # Theorem 2, second part
    on_average: float  # Theorem 3
    update: float

    @property
    def bound(self) -> float:
        return self.by_rates + self.by_clips


def bias_of_round(round: int, updates: FloatArray, rate: FloatArray, clip: FloatArray) -> RoundBias:
    """`updates` has a row per client, before clipping."""
    norms = np.linalg.norm(updates, axis=1)
    kept = np.minimum(1.0, clip / np.maximum(norms, np.finfo(np.float64).tiny))
    released = ((rate / rate.mean()) * kept) @ updates / rate.size
    by_rates, by_clips = theorem_2(rate, clip, mean=updates, moment=norms**2)
    mean = updates.mean(axis=0)
    return RoundBias(
        round=round,
        measured=float(np.linalg.norm(mean - released)),
        by_rates=by_rates,
        by_clips=by_clips,
        on_average=theorem_3(rate, clip, moment=norms**2),
        update=float(np.linalg.norm(mean)),
    )


def measured_bias(config: Config, rounds: Sequence[int] = ()) -> tuple[RoundBias, ...]:
    """The bias of some rounds of the run that `config` describes: first, middle and last."""
    refuse_private(config, "measuring bias")
    from fedspend.basics.threads import single_threaded
    from fedspend.client.state import MemoryStates
    from fedspend.runs.running import open_engine
    from fedspend.runs.setup import flat_parameters, from_config
    from fedspend.runs.stores import MemoryStore
    from fedspend.server.answers import gather
    from fedspend.server.rounds import TrainingState, begin, prepared, run_rounds, tasks_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        setup = from_config(config)
    method, training, last = setup.method, setup.training.to_the_end, setup.training.server.rounds
    picked = set(rounds or (1, (last + 1) // 2, last))
    engine = open_engine(setup, MemoryStates())

    def bias(state: TrainingState) -> RoundBias:
        plain = replace(training, noise_place="central", bits=None, grid_steps=None)
        terms, shared = prepared(state, method, plain)
        everyone = np.arange(terms.sampling_rate.size)
        free = replace(terms, clip_norm=np.full(everyone.size, np.inf))
        updates = np.array(
            [
                gather([task], engine.run([task]), shared.size).total
                for task in tasks_of(everyone, free, training.clients, shared)
            ]
        )
        return bias_of_round(state.done + 1, updates, terms.sampling_rate, terms.clip_norm)

    found = []
    state = begin(flat_parameters(setup.module), method)
    try:
        with single_threaded():
            played = run_rounds(
                state, method, engine, training, setup.randomness, MemoryStore(), lambda _, s: s
            )
            for n in range(1, last + 1):
                if n in picked:
                    found.append(bias(state))
                if n < last:
                    state, _ = next(played)
    finally:
        engine.close()
    return tuple(found)
