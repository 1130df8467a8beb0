"""Measures influence: what part of a small push in round t is left in the model at the end.

A run without noise is the baseline. For each round, its release is pushed by a small random vector
and by its opposite, and both runs go on to the end with the same cohorts and batches. Half of the
difference between the two models, relative to the push, is the influence `h_t`: the root mean
square over directions, since a random vector has a part in all of them. It is also read in excess
loss, `sqrt(excess loss / that of a push at the very end)`, which is what noise costs: directions in
which the loss is flat do not contract, and do not matter either.

Guarantee: nothing is fitted. What is measured are seeded simulations on public or made-up rows;
private rows are refused, as no budget covers what this would tell about them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.basics.arrays import Float32Array, FloatArray
from fedspend.basics.choices import choose
from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import Config
from fedspend.data.loading import OWN
from fedspend.errors import InvalidInput, Refused, whole_number
from fedspend.planning.influence import FORMAT, Course
from fedspend.planning.plan import Plan
from fedspend.server.methods.table import DEFAULT, METHODS

if TYPE_CHECKING:
    from fedspend.server.mechanism import Memory, Noised, Sum
    from fedspend.server.methods.base import Release
    from fedspend.server.rounds import TrainingState

MOST_MEASURED = 25  # rounds; those in between are read off
PUSH = 0.3  # length of a push, relative to the noise of an average planned round
BY = ("loss", "model")
PLAIN = ("dp-fedavg", "idp-fedavg", "time-adaptive", "dp-fedsgd")


@dataclass(frozen=True, eq=False)
class Measured:
    """Influence by round, of the model and in excess loss, and how it was measured."""

    of_model: FloatArray  # (rounds,)
    in_loss: FloatArray  # (rounds,) NaN where a push did not raise the loss
    by: str  # which of the two to plan with: "loss" or "model"
    measured: tuple[int, ...]  # rounds, counted from 1; the others are read off in between
    directions: int
    tail: int
    contraction: float  # whose influence is nearest; to read, not to plan with
    runs: int

    @property
    def influence(self) -> FloatArray:
        return self.in_loss if self.by == "loss" else self.of_model

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": 1,
            "rounds": self.influence.size,
            "tail": self.tail,
            "by": self.by,
            "influence": self.influence.tolist(),
            "of_model": self.of_model.tolist(),
            "in_loss": [None if math.isnan(one) else one for one in self.in_loss.tolist()],
            "measured_rounds": list(self.measured),
            "directions": self.directions,
            "nearest_contraction": self.contraction,
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
    name, method = config.data.name, config.method.name or DEFAULT
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
        return measured_on(Trial.of(config), directions, by, progress)


def measured_on(
    trial: Trial, directions: int, by: str | None = None, progress: OnProgress | None = None
) -> Measured:
    rounds = trial.rounds
    picked = np.unique(np.linspace(0, rounds - 1, MOST_MEASURED).round().astype(np.int64))
    squares, excess = np.zeros(picked.size), np.zeros(picked.size)
    at_the_end, done = 0.0, 0
    for direction in range(directions):
        push = trial.push(direction)
        length = float(np.linalg.norm(push))
        end = trial.base.model
        at_the_end += trial.excess(*(end + sign * trial.server_lr * push for sign in (1, -1)))
        for n, t in enumerate(picked.tolist()):
            ahead, behind = (trial.finished(t, sign * push) for sign in (1, -1))
            apart = np.linalg.norm(ahead.astype(np.float64) - behind) / (2 * length)
            squares[n] += (float(apart) / trial.server_lr) ** 2 / directions
            excess[n] += trial.excess(ahead, behind)
            done += 1
            if progress is not None:
                progress(done, directions * picked.size)
    with np.errstate(invalid="ignore", divide="ignore"):
        # NaN where a push lowers the loss: the run has not come near a minimum
        in_loss = np.sqrt(excess / at_the_end) if at_the_end > 0 else np.full(excess.size, np.nan)
    readable = bool(np.isfinite(in_loss).all() and (in_loss > 0).any())
    if by == "loss" and not readable:
        raise Refused(
            "pushes did not raise the loss in every round, so influence in excess loss cannot be "
            "read; use by = 'model', or train longer"
        )
    by = by or ("loss" if readable else "model")
    everywhere = np.arange(rounds)
    of_model = np.interp(everywhere, picked, np.sqrt(squares))
    by_loss = np.interp(everywhere, picked, in_loss)
    return Measured(
        of_model=of_model,
        in_loss=by_loss,
        by=by,
        measured=tuple((picked + 1).tolist()),
        directions=directions,
        tail=trial.course.tail,
        contraction=nearest(trial.course, by_loss if by == "loss" else of_model),
        runs=1 + 2 * directions * picked.size,
    )


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
    base: TrainingState  # after the last round
    play: Callable[[TrainingState], Release]
    step: Callable[[TrainingState, Release], TrainingState]
    loss: Callable[[Float32Array], float]
    deviation: float  # of the planned noise in a coordinate of the averaged update
    seed: int
    server_lr: float
    course: Course

    @classmethod
    def of(cls, config: Config) -> Trial:
        import torch

        from fedspend.configuration.learning_rates import relative_rates
        from fedspend.engines.local import make_engine
        from fedspend.models.evaluation import evaluate
        from fedspend.runs.setup import flat_parameters, from_config
        from fedspend.server.rounds import begin, play, step

        setup = from_config(config)
        plan = Plan.expect(setup.plan, "influence needs a plan of clients")
        mechanism, method, server = WithoutNoise(), setup.method, setup.training.server
        training = replace(
            setup.training, noise_place="central", bits=None, grid_steps=None, mechanism=mechanism
        )
        engine = make_engine(setup.engine, setup.workload(), setup.workers)
        rows, labels = (
            torch.from_numpy(setup.federation.dataset.test_features),
            torch.from_numpy(setup.federation.dataset.test_labels),
        )

        def played(state: TrainingState) -> Release:
            return play(state, method, engine, training, setup.randomness, mechanism, {}).release

        def stepped(state: TrainingState, release: Release) -> TrainingState:
            return step(state, release, method, server)

        def loss(model: Float32Array) -> float:
            return evaluate(setup.module, torch.from_numpy(model), rows, labels)[0]

        states, releases = [begin(flat_parameters(setup.module), method)], []
        for _ in range(server.rounds):
            releases.append(played(states[-1]))
            states.append(stepped(states[-1], releases[-1]))
        planned = relative_rates(config.train, plan.rounds + plan.dropped_rounds)
        rates = None if planned is None else np.array(planned[: plan.rounds])
        return cls(
            states=states[:-1],
            releases=releases,
            base=states[-1],
            play=played,
            step=stepped,
            loss=loss,
            deviation=float(np.sqrt(np.mean(np.square(plan.noise_of_average)))),
            seed=config.train.seed,
            server_lr=server.lr,
            course=Course(plan.rounds, server.tail, server.momentum, rates),
        )

    @property
    def rounds(self) -> int:
        return len(self.states)

    def push(self, direction: int) -> Float32Array:
        """A small random vector; directions are the same whatever is measured."""
        generator = np.random.default_rng([self.seed, direction])
        push: FloatArray = generator.normal(0, PUSH * self.deviation, self.base.model.size)
        return push.astype(np.float32)

    def finished(self, round: int, push: Float32Array) -> Float32Array:
        """The model that is handed out if the release of `round` is pushed."""
        release = self.releases[round]
        state = self.step(self.states[round], replace(release, update=release.update + push))
        while state.done < self.rounds:
            state = self.step(state, self.play(state))
        return state.model

    def excess(self, ahead: Float32Array, behind: Float32Array) -> float:
        """What a push costs in loss; a slope cancels between the push and its opposite."""
        return (self.loss(ahead) + self.loss(behind)) / 2 - self.loss(self.base.model)
