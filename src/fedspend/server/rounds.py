"""The training loop: reserve, sample, run, release, keep, step, commit; nothing else.

Guarantee: a round is reserved for every client before its cohort is drawn; its noised release is
stored durably before anything uses it; the step from one model to the next is a pure function of
releases. So a run can be killed at any instant and resumed without releasing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedspend.basics.arrays import Float32Array, FloatArray, IntArray
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Carrying, Engine, Reaching, is_trusted
from fedspend.errors import InvalidInput, Refused
from fedspend.noise.grid import Grid, check_steps
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import Answers, gather
from fedspend.server.early_stopping import NOTHING_SEEN, StopRule, Watched, in_line
from fedspend.server.mechanism import (
    Gaussian,
    Mechanism,
    Memory,
    Noised,
    Sum,
    release_bit,
    release_metric,
)
from fedspend.server.methods.base import Method, Release, RoundTerms, State
from fedspend.server.sampling import draw_cohort
from fedspend.server.steps import OwnStep, own_step
from fedspend.server.student import Student
from fedspend.stored.run import MetricsLine
from fedspend.tasks.words import deviation_key, private_key

Statistics = dict[str, Any]  # what is known of one round, of which a real run stores a part
NORM_QUANTILES = (0.1, 0.5, 0.9)
# statistics of a real run that are shown but not stored
FOR_THE_OPERATOR = ("discarded", "lost", "reports")
# not for votes, whose norm is always the clip
ABOUT_UPDATES = ("clipped_share", "mean_norm", "norm_quantiles")


@dataclass(frozen=True)
class Server:
    """What the server does with releases: post-processing, which costs no privacy."""

    rounds: int
    lr: float = 1.0
    momentum: float = 0.0
    tail: int = 1  # the final model is the mean of the last this many iterates
    # learns from released votes; None if releases are model updates
    student: Student | None = None
    optimizer: str = "sgd"  # or adam, yogi
    own: OwnStep | None = None  # a user's step in its place
    stop: StopRule | None = None  # when to end before the last round


@dataclass(frozen=True)
class Training:
    """How rounds run. `clients` is the roster: all clients that may be asked, in the order of the
    method's terms.
    """

    server: Server
    clients: tuple[str, ...]
    local: LocalTraining
    client_lr: Callable[[int], float]  # learning rate of round 0, 1, ...
    noise_place: str = "central"  # who adds the noise: the server, or clients: "distributed"
    layers: tuple[int, ...] | None = None  # sizes of the pieces for per-layer clipping
    bits: int | None = None  # discrete noise and sums modulo 2^bits; None: real numbers
    grid_steps: int | None = None  # how many steps of its grid discrete noise has at least
    mechanism: Mechanism | None = None  # None: independent Gaussian noise
    run: str = ""  # id of the run
    plan: str = ""  # hash of the plan
    metric: str = "accuracy"  # what clients report privately, if they do
    # from the mean that is released, between 0 and 1, to the metric between its bounds
    from_unit: Callable[[float], float] = float
    # whether everyone is asked in every round, and each decides by its own coin if it takes part
    ask_everyone: bool = False

    @property
    def to_the_end(self) -> Training:
        """The same without a stopping rule."""
        return replace(self, server=replace(self.server, stop=None))


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands after `done` rounds: all that the next round needs."""

    done: int
    parameters: Float32Array  # the iterate
    velocity: Float32Array
    tail_sum: FloatArray  # float64 sum of the last iterates
    tail_count: int
    method: State
    # all votes released so far, for a student
    votes: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    # mean squares of releases, for adam and yogi
    squares: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    watched: Watched = NOTHING_SEEN  # by a stopping rule

    @property
    def handed_out(self) -> Float32Array:
        """The model to hand out now: the best one, if a stopping rule keeps it, else `model`."""
        return self.watched.model if self.watched.model.size else self.model

    def over(self, rounds: int) -> bool:
        """Whether none of this many rounds is left."""
        return self.done >= rounds or self.watched.stopped

    @property
    def model(self) -> Float32Array:
        """The model of the last round: the mean of the tail once it has begun, before that the
        iterate.
        """
        return (
            self.parameters
            if self.tail_count == 0
            else (self.tail_sum / self.tail_count).astype(np.float32)
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """A round's release as it is stored, with the statistics that may be stored and the mechanism's
    memory after it.
    """

    release: Release
    statistics: Statistics
    memory: Memory


class Store(Protocol):
    """Durable memory of a run: reserve before sampling, keep the release before using it, commit
    afterwards, or note that the round was lost.
    """

    def reserve(self, round: int) -> None: ...

    def keep(self, round: int, kept: Kept) -> None: ...

    def kept(self, round: int) -> Kept | None: ...

    def memory(self) -> Memory | None:
        """The mechanism's memory after the last release: empty before the first, None if it was
        lost.
        """
        ...

    def was_reserved(self, round: int) -> bool: ...

    def lose(self, round: int) -> None: ...

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None: ...


def begin(parameters: Float32Array, method: Method) -> TrainingState:
    zero = np.zeros(parameters.size)
    return TrainingState(
        0, parameters.astype(np.float32), zero.astype(np.float32), zero, 0, method.start()
    )


def run_rounds(
    state: TrainingState,
    method: Method,
    engine: Engine,
    training: Training,
    randomness: Randomness,
    store: Store,
    observe: Callable[[TrainingState, Statistics], MetricsLine],
    when_stopped: Callable[[], MetricsLine] = dict,
) -> Iterator[tuple[TrainingState, MetricsLine]]:
    """From where `state` stands to the last round, one committed round at a time.

    `observe` turns the state after a round and its statistics into the line that is stored with
    it; `when_stopped` gives what that line says otherwise if the stopping rule ends the run there.
    """
    mechanism = training.mechanism or Gaussian(randomness)
    memory = remembered(mechanism, store, state.done)
    while not state.over(training.server.rounds):
        t, begun_with = state.done, state.parameters
        found = store.kept(t)
        if found is None and store.was_reserved(t) and not randomness.simulation:
            # The noise of the lost release cannot be drawn again, and drawing fresh noise would be
            # a second release: the round stays charged and is skipped. The mechanism's memory stays
            # that of the last known release.
            store.lose(t)
            state = skip(state)
            statistics: Statistics = {"skipped": True}
        else:
            if found is None:
                if isinstance(engine, Reaching):
                    engine.reach()
                ready = prepared(state, method, training)  # refuses before anything is spent
                store.reserve(t)
                found = play(state, method, engine, training, randomness, mechanism, memory, ready)
                store.keep(t, found if randomness.simulation else without_remarks(found))
            memory, statistics = found.memory, found.statistics
            state = step(state, found.release, method, training.server)
        line = observe(state, statistics)
        if training.server.stop is not None:
            seen = state.watched.noted(training.server.stop, line, begun_with, state.model)
            state, line = replace(state, watched=seen), line | in_line(seen)
            line |= when_stopped() if seen.stopped else {}
        store.commit(t, state, line)
        yield state, line


def without_remarks(kept: Kept) -> Kept:
    """What a real run may store: without the statistics that only the operator sees."""
    told = {name: value for name, value in kept.statistics.items() if name not in FOR_THE_OPERATOR}
    return replace(kept, statistics=told)


def remembered(mechanism: Mechanism, store: Store, done: int) -> Memory:
    """The mechanism's memory before the next round. If it was lost, it is not restarted: its noise
    would not match earlier releases.
    """
    found, start = store.memory(), mechanism.start()
    if found is None and start and done > 0:
        raise Refused(
            "the mechanism's private state is lost, and its noise depends on it; start a new run"
        )
    return found or start


def prepared(
    state: TrainingState, method: Method, training: Training
) -> tuple[RoundTerms, RoundTask]:
    """The terms of the next round, and what its clients are told."""
    terms = method.terms(state.done, state.method)
    return terms, round_task(state, terms, training)


def play(
    state: TrainingState,
    method: Method,
    engine: Engine,
    training: Training,
    randomness: Randomness,
    mechanism: Mechanism,
    memory: Memory,
    ready: tuple[RoundTerms, RoundTask] | None = None,
) -> Kept:
    """One round up to its release, and what may be written down about it.

    `ready` is the round as `prepared` already, if it is.
    """
    terms, shared = ready or prepared(state, method, training)
    tasks = tasks_of_round(terms, shared, training, randomness)
    answers = gather(tasks, engine.run(tasks), shared.size, checked=not is_trusted(engine))
    if randomness.simulation:
        refuse_useless(answers)
    t, total, variance = shared.round, answers.total, answers.received_variance
    sum = Sum(t, total, variance, terms.deviation, terms.denominator, shared.grid)
    noised, memory = mechanism.release(sum, memory)
    bit, metric = numbers_of(answers, terms, shared, randomness)
    release = Release(noised.update.astype(np.float32), bit, metric)
    simulation = randomness.simulation
    statistics = recordable(answers, noised, metric, terms, shared, training, engine, simulation)
    return Kept(release, statistics, memory)


def refuse_useless(answers: Answers) -> None:
    """Stop a simulation in which the work of all clients raises: that is a mistake in the model or
    its settings. A real run goes on and warns: what clients raise may depend on their rows.
    """
    found = answers.statistics
    if found.raised is None or not found.raised.any():
        return
    if not (found.raised | (found.norms == 0)).all():
        return
    client, why = next(iter(answers.reports.items()))
    raise InvalidInput(f"no client could do its work; client {client!r}: {why}")


def tasks_of_round(
    terms: RoundTerms, shared: RoundTask, training: Training, randomness: Randomness
) -> list[ClientTask]:
    """The tasks of a round: for the cohort that the server draws, or for everyone, who draw."""
    if training.ask_everyone:
        return tasks_of(np.arange(len(training.clients)), terms, training.clients, shared, True)
    cohort = draw_cohort(terms.sampling_rate, randomness, shared.round)
    return tasks_of(cohort, terms, training.clients, shared)


def recordable(
    answers: Answers,
    noised: Noised,
    metric: float | None,
    terms: RoundTerms,
    shared: RoundTask,
    training: Training,
    engine: Engine,
    simulation: bool,
) -> dict[str, Any]:
    """What may be written down about a round; `describe` says what is for the operator only."""
    statistics, student = describe(answers, terms, simulation), training.server.student
    if training.ask_everyone and engine.outside:
        statistics.pop("cohort", None)  # only the clients know it
    if simulation and isinstance(engine, Carrying):
        # how long a round of a real run took tells something about who was slow in it: for the log
        statistics |= engine.carried()
    if metric is not None and terms.metric_deviation is not None:
        spread = metric_deviation(terms)
        statistics |= {
            private_key(training.metric): training.from_unit(metric),
            deviation_key(training.metric): training.from_unit(spread) - training.from_unit(0.0),
        }
    if student is not None:
        statistics = {
            name: value for name, value in statistics.items() if name not in ABOUT_UPDATES
        }
        if simulation and shared.own_deviation == 0:  # else the answers contain noise already
            statistics |= student.describe(answers.total, noised.update)
    if simulation and noised.overflowed is not None:
        # counted before the modulus is taken, so not private
        statistics["overflowed"] = noised.overflowed
    return statistics


def numbers_of(
    answers: Answers, terms: RoundTerms, shared: RoundTask, randomness: Randomness
) -> tuple[float | None, float | None]:
    """The noised bit and the noised metric, where they are asked for."""
    bit = metric = None
    if terms.bit_deviation is not None:
        bit = release_bit(
            answers.bits,
            terms.bit_deviation,
            terms.denominator,
            randomness,
            shared.round,
            grid=shared.bit_grid,
            received=answers.received_bit_variance,
        )
    if terms.metric_deviation is not None and shared.metric is not None:
        metric = release_metric(
            answers.metrics,
            terms.metric_deviation,
            terms.denominator,
            randomness,
            shared.round,
            grid=shared.metric,
            received=answers.received_metric_variance,
        )
    return bit, metric


def round_task(state: TrainingState, terms: RoundTerms, training: Training) -> RoundTask:
    """What every client of this round is told. All of it is planned or released. Refuses a grid on
    which the planned noise would not be what was planned.
    """
    t, student, clients = state.done, training.server.student, terms.sampling_rate.size
    size = state.parameters.size if student is None else student.ballot.size
    distributed = training.noise_place == "distributed"
    grid = None
    if training.bits is not None:
        grid = Grid.of(terms.clip_norm, terms.deviation, size, training.bits)
        if training.grid_steps is not None:
            check_steps(grid, terms.deviation, clients if distributed else 1, training.grid_steps)
    bit_grid = metric = None
    if terms.bit_deviation is not None and distributed:
        bit_grid = NumberGrid.of(terms.bit_deviation, clients, distributed=True)
    if terms.metric_deviation is not None:
        metric = NumberGrid.of(terms.metric_deviation, clients, distributed=distributed)
    return RoundTask(
        round=t,
        parameters=state.parameters,
        training=training.local,
        lr=training.client_lr(t),
        size=size,
        run=training.run,
        plan=training.plan,
        layers=training.layers,
        grid=grid,
        own_deviation=float(terms.deviation / np.sqrt(clients)) if distributed else 0.0,
        bit=terms.bit_deviation is not None,
        bit_grid=bit_grid,
        metric=metric,
        asked=None if student is None else student.ballot.asked(t),
    )


def tasks_of(
    asked: IntArray,
    terms: RoundTerms,
    clients: Sequence[str],
    shared: RoundTask,
    own_coins: bool = False,
) -> list[ClientTask]:
    """One task for each client that is asked, in this order. With `own_coins` each decides for
    itself, at its planned rate, whether it takes part.
    """
    return [
        ClientTask(
            client=clients[number],
            number=number,
            clip_norm=float(terms.clip_norm[number]),
            shared=shared,
            records=None if terms.records is None else terms.records(number),
            coin=float(terms.sampling_rate[number]) if own_coins else None,
        )
        for number in asked.tolist()
    ]


def describe(answers: Answers, terms: RoundTerms, simulation: bool) -> Statistics:
    """Statistics of updates are not private: only a simulation writes them down. The terms of a
    round are planned or released.

    Which answers were discarded, and how many updates were not finite, is for the operator only:
    `training` shows it, but does not store it with the metrics of a real run.
    """
    found = answers.statistics
    # clients on this machine say whether they took part: they have remarks
    took_part = len(found.norms) or len(answers.answered)
    clip = terms.clip_norm[np.isfinite(terms.clip_norm)]
    odd = dict(answers.discarded) | dict(answers.reports)
    public: Statistics = {
        "discarded": int(found.zeroed.sum()) + len(answers.discarded),
        "noise_deviation": terms.deviation / terms.denominator,
        "clip": float(clip.mean()) if clip.size else None,
    } | ({"lost": len(answers.discarded), "reports": odd} if odd else {})
    if not simulation:
        return public
    active: Statistics = {} if found.active is None else {"active": found.active.tolist()}
    told: Statistics = {"cohort": took_part + len(answers.discarded)}
    if len(found.norms):  # clients on other machines keep theirs to themselves
        told |= {
            "clipped_share": float(found.clipped.sum() / took_part),
            "mean_norm": float(found.norms.mean()),
            "norm_quantiles": np.quantile(found.norms, NORM_QUANTILES).tolist(),
        }
    return active | told | public


def metric_deviation(terms: RoundTerms) -> float:
    """The largest deviation of a private metric, between 0 and 1, from what it would be over all
    clients: from its noise, and from who is sampled.

    A client that is sampled at rate q adds its metric less 1/2, which is at most 1/2 away from 0;
    so it adds q (1 - q) / 4 to the variance at most.
    """
    assert terms.metric_deviation is not None
    rate = terms.sampling_rate
    sampling = float(np.sum(rate * (1 - rate))) / 4
    return float(np.sqrt(terms.metric_deviation**2 + sampling)) / terms.denominator


def step(state: TrainingState, release: Release, method: Method, server: Server) -> TrainingState:
    """Apply a release: server optimiser step, or student update; then the tail mean."""
    velocity, votes, squares = state.velocity, state.votes, state.squares
    if server.student is None and server.own is not None:
        parameters, velocity, squares = own_step(
            server.own, state.parameters, release.update, velocity, squares, server.lr
        )
    elif server.student is None and server.optimizer != "sgd":
        parameters, velocity, squares = adaptive(state, release.update, server)
    elif server.student is None:
        velocity = (server.momentum * velocity + release.update).astype(np.float32)
        parameters = (state.parameters + server.lr * velocity).astype(np.float32)
    else:
        votes = server.student.heard(votes, release.update, state.done)
        parameters = server.student.taught(state.parameters, votes, state.done)
    done = state.done + 1
    in_tail = server.tail > 1 and done > server.rounds - server.tail
    return TrainingState(
        done=done,
        parameters=parameters,
        velocity=velocity,
        tail_sum=state.tail_sum + parameters if in_tail else state.tail_sum,
        tail_count=state.tail_count + int(in_tail),
        method=method.learn(state.method, release),
        votes=votes,
        squares=squares,
        watched=state.watched,
    )


_FIRST, _SECOND, _ADAPTIVITY = 0.9, 0.99, 1e-3


def adaptive(
    state: TrainingState, update: Float32Array, server: Server
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2): parameters, mean and mean squares after
    a release. It uses releases alone, so it is post-processing.
    """
    squares: FloatArray = state.squares.astype(np.float64)
    if not squares.size:
        squares = np.full(update.size, _ADAPTIVITY**2)
    mean = (_FIRST * state.velocity + (1 - _FIRST) * update).astype(np.float32)
    square = np.square(update.astype(np.float64))
    if server.optimizer == "adam":
        squares = _SECOND * squares + (1 - _SECOND) * square
    else:
        squares = squares - (1 - _SECOND) * square * np.sign(squares - square)
    step = server.lr * mean / (np.sqrt(squares) + _ADAPTIVITY)
    return (state.parameters + step).astype(np.float32), mean, squares.astype(np.float32)


def skip(state: TrainingState) -> TrainingState:
    return replace(state, done=state.done + 1)
