"""Plays a run many times: the run's own loop, with canaries as clients and a new seed each time.

Guarantee: rounds go through `server.rounds.run_rounds` with the method, plan, terms, noise and
mechanism that the config's own run would have. Nothing is written, no account is charged, and no
rows are read unless the other clients train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import torch

from fedspend.auditing.client_canaries import (
    CanaryEngine,
    draw_directions,
    expected_of_clients,
    room_for_clients,
    signals_of_clients,
)
from fedspend.auditing.meters import Tally
from fedspend.auditing.observations import Expected, Observations
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.client.work import Tools
from fedspend.engines.base import Engine
from fedspend.engines.local import make_engine
from fedspend.noise.randomness import Randomness
from fedspend.runs.setup import Setup, flat_parameters
from fedspend.server.methods.base import Release
from fedspend.server.rounds import Kept, Store, TrainingState, begin, run_rounds
from fedspend.stored.run import MetricsLine


class Draw(IntEnum):
    """What one of the auditor's own draws is for; part of its key, so no two share a stream."""

    RUN_SEED = 0
    COINS = 1
    DIRECTIONS = 2
    CHOICE = 3
    PILOT = 4


PUBLIC = "other clients and the public, who see every release and not who took part"


@dataclass(frozen=True, eq=False)
class Stage:
    """What all runs of an audit share."""

    setup: Setup
    seed: int
    expected: Expected
    room: int  # canaries that fit into one run
    tally: Tally
    play: Callable[[Stage, int, IntArray, BoolArray], Observations]
    taking_part: FloatArray  # (rounds, units) how often a unit should take part
    observer: str
    train_others: bool = False

    def generator(self, run: int, what: Draw) -> np.random.Generator:
        return np.random.default_rng([self.seed, run, what])

    def of_run(self, run: int) -> Setup:
        """The setup with fresh randomness."""
        seed = int(self.generator(run, Draw.RUN_SEED).integers(2**62))
        return replace(self.setup, randomness=Randomness(seed, "seeded"))

    def coins(self, run: int, count: int) -> BoolArray:
        return self.generator(run, Draw.COINS).random(count) < 0.5


def choose_units(stage: Stage, run: int, pools: list[IntArray], most: int) -> list[IntArray]:
    """The canaries of a run, by pool: everyone, or equally many from each pool at random."""
    if sum(pool.size for pool in pools) <= most:
        return pools
    left, counts = most, [0] * len(pools)
    for rest, n in enumerate(sorted(range(len(pools)), key=lambda n: pools[n].size)):
        counts[n] = min(pools[n].size, left // (len(pools) - rest))
        left -= counts[n]
    generator = stage.generator(run, Draw.CHOICE)
    return [
        np.sort(generator.permutation(pool)[:count])
        for pool, count in zip(pools, counts, strict=True)
    ]


@dataclass(eq=False)
class Releases(Store):
    """Keeps a run's releases in memory."""

    found: list[Release] = field(default_factory=list)

    def reserve(self, round: int) -> None: ...

    def keep(self, round: int, kept: Kept) -> None:  # noqa: ARG002
        self.found.append(kept.release)

    def kept(self, round: int) -> None:  # noqa: ARG002
        return None

    def memory(self) -> None:
        return None

    def was_reserved(self, round: int) -> bool:  # noqa: ARG002
        return False

    def lose(self, round: int) -> None: ...

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None: ...


def play_rounds(setup: Setup, engine: Engine) -> list[Release]:
    """All releases of one run."""
    store = Releases()
    rounds = run_rounds(
        begin(flat_parameters(setup.module), setup.method),
        setup.method,
        engine,
        setup.training.to_the_end,  # whoever attacks sees what the plan allows
        setup.randomness,
        store,
        lambda _, statistics: statistics,
    )
    for _ in rounds:
        pass
    return store.found


def stage_of_clients(setup: Setup, seed: int, *, train_others: bool = False) -> Stage:
    student = setup.training.server.student
    if student is not None and not train_others:
        # a student learns from releases only, and canaries do not use the model
        server = replace(setup.training.server, student=replace(student, epochs=0))
        setup = replace(setup, training=replace(setup.training, server=server))
    expected = expected_of_clients(setup, None)
    return Stage(
        setup,
        seed,
        expected,
        room_for_clients(setup),
        Tally(*expected.rate.shape),
        play_clients,
        expected.rate,
        PUBLIC,
        train_others,
    )


def told_of_canaries(stage: Stage, canaries: IntArray) -> Stage:
    """The stage, once the canaries of a run are known: their bits are released as one sum."""
    if stage.setup.plan is None or stage.setup.plan.unit != "client" or stage.train_others:
        return stage
    return replace(stage, expected=expected_of_clients(stage.setup, canaries))


def play_clients(stage: Stage, run: int, units: IntArray, inside: BoolArray) -> Observations:
    setup = stage.of_run(run)
    directions = draw_directions(units.size, setup, stage.generator(run, Draw.DIRECTIONS))
    clients = setup.training.clients
    engine = CanaryEngine(
        {clients[unit]: n for n, unit in enumerate(units.tolist()) if inside[n]},
        directions,
        Tools(torch.nn.Identity(), setup.randomness),
        stage.tally,
        frozenset(clients[unit] for unit in units.tolist()),
        make_engine(setup.engine, setup.workload(), setup.workers) if stage.train_others else None,
    )
    try:
        releases = play_rounds(setup, engine)
    finally:
        engine.close()
    return signals_of_clients(
        setup, releases, directions, units, inside, run, bits=not stage.train_others
    )
