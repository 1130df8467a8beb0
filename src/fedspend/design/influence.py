"""Measures influence: what part of a small push in round t is left in the model at the end.

A run without noise is the baseline. For each round, its release is pushed by a small random vector
and by its opposite, and both runs go on to the end with the same cohorts and batches. Half of the
difference between the two models, relative to the push, is the influence `h_t`: the root mean
square over directions, since a random vector has a part in all of them. It is also read in excess
loss, `sqrt(excess loss / that of a push at the very end)`, which is what noise costs: directions in
which the loss is flat do not contract, and do not matter either.

All of it is read for several tails at once. Loss without noise and what noise adds then say which
tail to take, with noise planned for it.

Guarantee: nothing is fitted. What is measured are seeded simulations on public or made-up rows;
private rows are refused, as no budget covers what this would tell about them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.basics.arrays import Float32Array, FloatArray
from fedspend.basics.choices import choose
from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import Config
from fedspend.configuration.method_name import method_of
from fedspend.configuration.plan_inputs import resolve
from fedspend.data.loading import OWN
from fedspend.errors import InvalidInput, Refused, whole_number
from fedspend.planning.influence import FORMAT, Course
from fedspend.planning.plan import Plan
from fedspend.server.methods.table import METHODS

if TYPE_CHECKING:
    from fedspend.planning.request import PlanRequest
    from fedspend.server.mechanism import Memory, Noised, Sum
    from fedspend.server.methods.base import Release
    from fedspend.server.rounds import Kept, TrainingState

MOST_MEASURED = 25  # rounds; those in between are read off
PUSH = 0.3  # length of a push, relative to the noise of an average planned round
BY = ("loss", "model")
PLAIN = ("dp-fedavg", "idp-fedavg", "time-adaptive", "dp-fedsgd")


@dataclass(frozen=True, eq=False)
class Reading:
    """What is left of a push in each round in the mean of the last `tail` iterates."""

    tail: int
    of_model: FloatArray  # (rounds,)
    in_loss: FloatArray  # (rounds,) NaN where a push did not raise the loss
    cost: FloatArray  # (rounds,) excess loss for noise of deviation 1 in a coordinate
    loss: float  # of the run without noise

    @property
    def readable(self) -> bool:
        """Whether influence in excess loss could be read in every round."""
        return bool(np.isfinite(self.in_loss).all() and (self.in_loss > 0).any())

    def by(self, what: str) -> FloatArray:
        return self.in_loss if what == "loss" else self.of_model


@dataclass(frozen=True)
class Proposal:
    """What a tail is worth: loss without noise, and what noise adds, planned for it and evenly."""

    tail: int
    loss: float
    noise: float
    uniform: float

    @property
    def total(self) -> float:
        return self.loss + self.noise


@dataclass(frozen=True, eq=False)
class Measured:
    """Influence by round for several tails, and how it was measured."""

    readings: dict[int, Reading]
    tail: int  # that of the config
    by: str  # which influence to plan with: in excess "loss" or of the "model"
    measured: tuple[int, ...]  # rounds, counted from 1; the others are read off in between
    directions: int
    contraction: float  # whose influence is nearest; to read, not to plan with
    runs: int
    proposals: tuple[Proposal, ...] = ()

    @property
    def own(self) -> Reading:
        return self.readings[self.tail]

    @property
    def influence(self) -> FloatArray:
        return self.own.by(self.by)

    @property
    def best(self) -> Proposal | None:
        """The tail, with noise planned for it, that promises the lowest loss."""
        return min(self.proposals, key=lambda one: one.total, default=None)

    def document(self) -> dict[str, Any]:
        usable = [one for one in self.readings.values() if self.by == "model" or one.readable]
        return {
            "format": FORMAT,
            "version": 1,
            "rounds": self.influence.size,
            "by": self.by,
            "tail": self.tail,
            "influence": {str(one.tail): one.by(self.by).tolist() for one in usable},
            "of_model": self.own.of_model.tolist(),
            "in_loss": [None if math.isnan(one) else one for one in self.own.in_loss.tolist()],
            "measured_rounds": list(self.measured),
            "directions": self.directions,
            "nearest_contraction": self.contraction,
            "proposals": [asdict(one) for one in self.proposals],
            "proposed_tail": None if self.best is None else self.best.tail,
        }

    def save(self, path: str | Path) -> None:
        body = json.dumps(self.document(), indent=1, allow_nan=False) + "\n"
        write_whole(Path(path), body.encode(), private=False)


class WithoutNoise:
    """The sum over the planned denominator, as it is."""

    def start(self) -> Memory:
        return {}

    def release(self, sum: Sum, memory: Memory) -> tuple[Noised, Memory]:
        from fedspend.server.mechanism import Noised

        return Noised(sum.total / sum.denominator), memory


def refuse_private(config: Config) -> None:
    """Refuse rows that someone's budget should cover, and methods without a linear influence."""
    name, method = config.data.name, method_of(config)
    if name in OWN:
        raise Refused(
            "measuring influence trains on its data again and again, and no budget covers that: "
            f"data {name!r} counts as private; measure on a public data set that resembles it"
        )
    if config.privacy.randomness == "os":
        raise Refused(
            "measuring influence is a seeded simulation: remove randomness = 'os', which is for "
            "the final run"
        )
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS.names)}; got {method!r}")
    if method not in PLAIN:
        raise Refused(
            f"noise of method {method!r} does not reach the model as a push that goes on linearly; "
            f"influence is measured for {', '.join(PLAIN)}"
        )


def measure_influence(
    config: Config,
    *,
    directions: int = 1,
    by: str | None = None,
    progress: OnProgress | None = None,
) -> Measured:
    """The influence of every round of the run that `config` describes.

    `by` says which one to plan with: in excess "loss", the default where it could be read in every
    round, or of the "model".
    """
    refuse_private(config)
    choose("by", by or "loss", BY)
    directions = whole_number("directions", directions, 1)
    from fedspend.basics.threads import single_threaded

    with single_threaded():
        trial = Trial.of(config)
        found = measured_on(trial, directions, by, progress)
    return replace(found, proposals=proposals(found, resolve(config).request, trial.clip_factors))


def measured_on(
    trial: Trial, directions: int, by: str | None = None, progress: OnProgress | None = None
) -> Measured:
    """Play pushes in every round, or in `MOST_MEASURED` of them, and read what is left."""
    rounds, deviation = trial.rounds, PUSH * trial.deviation
    picked = np.unique(np.linspace(0, rounds - 1, MOST_MEASURED).round().astype(np.int64))
    squares, excess = ({tail: np.zeros(picked.size) for tail in trial.tails} for _ in range(2))
    at_the_end = dict.fromkeys(trial.tails, 0.0)
    done = 0
    for direction in range(directions):
        push = trial.push(direction)
        length = float(np.linalg.norm(push)) * trial.server_lr
        for tail, model in trial.base.items():
            pushed = (model + sign * trial.server_lr * push for sign in (1, -1))
            at_the_end[tail] += trial.excess(tail, *pushed) / directions
        for n, t in enumerate(picked.tolist()):
            ahead, behind = (trial.finished(t, sign * push) for sign in (1, -1))
            for tail in trial.tails:
                apart = np.linalg.norm(ahead[tail].astype(np.float64) - behind[tail]) / 2
                squares[tail][n] += (float(apart) / length) ** 2 / directions
                excess[tail][n] += trial.excess(tail, ahead[tail], behind[tail]) / directions
            done += 1
            if progress is not None:
                progress(done, directions * picked.size)

    def everywhere(values: FloatArray) -> FloatArray:
        return np.interp(np.arange(rounds), picked, values)

    readings = {
        tail: Reading(
            tail,
            everywhere(np.sqrt(squares[tail])),
            everywhere(_in_loss(excess[tail], at_the_end[tail])),
            everywhere(excess[tail] / deviation**2),
            trial.loss(trial.base[tail]),
        )
        for tail in trial.tails
    }
    own = readings[trial.course.tail]
    if by == "loss" and not own.readable:
        raise Refused(
            "pushes did not raise the loss in every round, so influence in excess loss cannot be "
            "read; use by = 'model', or train longer"
        )
    by = by or ("loss" if own.readable else "model")
    return Measured(
        readings=readings,
        tail=own.tail,
        by=by,
        measured=tuple((picked + 1).tolist()),
        directions=directions,
        contraction=nearest(trial.course, own.by(by)),
        runs=1 + 2 * directions * picked.size,
    )


def _in_loss(excess: FloatArray, at_the_end: float) -> FloatArray:
    """NaN where a push lowers the loss: the run has not come near a minimum."""
    if not at_the_end > 0:
        return np.full(excess.size, np.nan)
    with np.errstate(invalid="ignore"):
        ratio: FloatArray = np.sqrt(excess / at_the_end)
    return ratio


def proposals(
    found: Measured, request: PlanRequest, clip_factors: FloatArray
) -> tuple[Proposal, ...]:
    """For each tail, what it promises with noise that is planned for it, and with even noise.

    A long tail averages noise away, and lags behind: both are in the loss.
    """
    plain = replace(
        request,
        rounds=clip_factors.size,
        method=None,
        saving_rate=None,
        transition=None,
        weights=None,
        options={},
        contraction=None,
        influence=None,
        tail=None,
        learning_rates=None,
        clip_schedule=clip_factors.tolist(),
    )
    uniform = np.square(replace(plain, policy="uniform").plan().noise_of_average)
    made = []
    for tail, reading in found.readings.items():
        if reading.readable and math.isfinite(reading.loss):
            planned = replace(plain, policy="optimal", influence=reading.in_loss.tolist()).plan()
            noise = float(reading.cost @ np.square(planned.noise_of_average))
            made.append(Proposal(tail, reading.loss, noise, float(reading.cost @ uniform)))
    return tuple(made)


def nearest(course: Course, h: FloatArray) -> float:
    """The contraction whose influence is nearest, by squares, weighing rounds as noise does."""
    tried = np.round(np.arange(0.5, 1.0005, 0.005), 3)
    off = [float(((course.influence(rho) - h) ** 2).sum()) for rho in tried]
    return float(tried[int(np.argmin(off))])


@dataclass(frozen=True, eq=False)
class Trial:
    """A run without noise, with the state before each round, from which pushed runs go on."""

    states: list[TrainingState]  # before each round
    releases: list[Release]
    iterates: list[Float32Array]  # after each round
    play: Callable[[TrainingState], Release]
    step: Callable[[TrainingState, Release], TrainingState]
    loss: Callable[[Float32Array], float]
    deviation: float  # of the planned noise in a coordinate of the averaged update
    seed: int
    server_lr: float
    course: Course
    clip_factors: FloatArray  # (rounds,)
    norms: FloatArray | None = None  # (rounds,) mean norm of a client's update before clipping

    @classmethod
    def of(cls, config: Config) -> Trial:
        from fedspend.configuration.learning_rates import relative_rates
        from fedspend.engines.local import make_engine
        from fedspend.runs.setup import flat_parameters, from_config
        from fedspend.server.rounds import begin, play, step

        setup = from_config(config)
        plan = Plan.expect(setup.plan, "influence needs a plan of clients")
        mechanism, method, server = WithoutNoise(), setup.method, setup.training.server
        training = replace(
            setup.training, noise_place="central", bits=None, grid_steps=None, mechanism=mechanism
        )
        engine = make_engine(setup.engine, setup.workload(), setup.workers)

        def kept(state: TrainingState) -> Kept:
            return play(state, method, engine, training, setup.randomness, mechanism, {})

        def stepped(state: TrainingState, release: Release) -> TrainingState:
            return step(state, release, method, server)

        def loss(model: Float32Array) -> float:
            return setup.measured(model)[0]

        states, rounds = [begin(flat_parameters(setup.module), method)], []
        for _ in range(server.rounds):
            rounds.append(kept(states[-1]))
            states.append(stepped(states[-1], rounds[-1].release))
        # nothing is told of a round in which nobody was sampled
        told = [one.statistics["mean_norm"] for one in rounds if "mean_norm" in one.statistics]
        planned = relative_rates(config.train, plan.rounds + plan.dropped_rounds)
        rates = None if planned is None else np.array(planned[: plan.rounds])
        return cls(
            states=states[:-1],
            releases=[one.release for one in rounds],
            iterates=[state.parameters for state in states[1:]],
            play=lambda state: kept(state).release,
            step=stepped,
            loss=loss,
            norms=np.array(told) if told else None,
            deviation=float(np.sqrt(np.mean(np.square(plan.noise_of_average)))),
            seed=config.train.seed,
            server_lr=server.lr,
            course=Course(plan.rounds, server.tail, server.momentum, rates),
            clip_factors=plan.clip_factors,
        )

    @property
    def rounds(self) -> int:
        return len(self.states)

    @property
    def tails(self) -> tuple[int, ...]:
        """The tails that are read: that of the config, and others that might be better."""
        half = self.rounds // 2
        powers = {2**k for k in range(12) if 2**k <= half}
        return tuple(sorted({1, self.course.tail, *powers}))

    @cached_property
    def base(self) -> dict[int, Float32Array]:
        """The model that is handed out without any push, by tail."""
        return self.means(self.iterates)

    def means(self, iterates: list[Float32Array]) -> dict[int, Float32Array]:
        return {
            tail: np.array(iterates[-tail:], dtype=np.float64).mean(axis=0).astype(np.float32)
            for tail in self.tails
        }

    def push(self, direction: int) -> Float32Array:
        """A small random vector; directions are the same whatever is measured."""
        generator = np.random.default_rng([self.seed, direction])
        push: FloatArray = generator.normal(0, PUSH * self.deviation, self.iterates[-1].size)
        return push.astype(np.float32)

    def finished(self, round: int, push: Float32Array) -> dict[int, Float32Array]:
        """The model that is handed out if the release of `round` is pushed, by tail."""
        release, iterates = self.releases[round], self.iterates[:round]
        state = self.step(self.states[round], replace(release, update=release.update + push))
        iterates.append(state.parameters)
        while state.done < self.rounds:
            state = self.step(state, self.play(state))
            iterates.append(state.parameters)
        return self.means(iterates)

    def excess(self, tail: int, ahead: Float32Array, behind: Float32Array) -> float:
        """What a push costs in loss; a slope cancels between the push and its opposite."""
        return (self.loss(ahead) + self.loss(behind)) / 2 - self.loss(self.base[tail])
