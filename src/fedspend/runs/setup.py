"""Builds the parts of a run from a config: data, model, plan, method, engine terms.

Guarantee: everything that decides privacy comes from the plan. Which randomness is used is decided
here: by default `seeded` (a simulation, which protects nobody) for public data, `os` for your own.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedspend.approval.slices import Offer
from fedspend.basics.arrays import Float32Array
from fedspend.basics.choices import choose
from fedspend.basics.shards import ById
from fedspend.client.shaping import Shape
from fedspend.client.state import MemoryStates, States
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import Config, needed
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.evaluation import (
    ON_PUBLIC_ROWS,
    Evaluation,
    HeldOutRows,
    check_mode,
    evaluation_of,
    hold_out,
)
from fedspend.configuration.learning_rates import lr_schedule
from fedspend.configuration.method_name import known_method
from fedspend.configuration.model_inputs import build_model, check_fits, integers_of
from fedspend.configuration.noise_kind import noise_of
from fedspend.configuration.sections import PRIVATE, SECTIONS
from fedspend.configuration.stopping import stop_rule
from fedspend.configuration.task_inputs import check_task, configured_task
from fedspend.configuration.votes import student_of
from fedspend.data import Federation
from fedspend.engines.base import Elsewhere, HeldOut, Workload
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.ledger import Ledger
from fedspend.models.evaluation import measure
from fedspend.models.feature_cache import cached_features
from fedspend.models.flat import fingerprint, flat_vector, layer_sizes, parameter_count
from fedspend.models.inputs import as_input
from fedspend.noise.grid import FEWEST_BITS, FINE_BITS, FINE_STEPS, check_on_grid
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.members import Members, behind, members_of
from fedspend.runs.offers import bound_to
from fedspend.server.methods.base import Given, Method
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.table import METHODS, protects_records
from fedspend.server.rounds import Server, Training
from fedspend.server.steps import SERVER_STEPS
from fedspend.server.student import NAME as VOTES
from fedspend.server.student import Ballot, Student
from fedspend.tasks.task import CLASSIFY, Task


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a run. `settings` must be the same for a run to be resumed."""

    federation: Federation
    module: torch.nn.Module
    plan: AnyPlan | None  # None for fedavg, which has no privacy to plan
    labels: tuple[str, ...] | None  # each client's group, if the budgets name groups
    method: Method
    training: Training
    randomness: Randomness
    engine: str
    workers: int | None
    settings: dict[str, Any]
    loggers: tuple[str, ...] = ()  # names; those of your own are listeners
    elsewhere: Elsewhere | None = None  # how clients on other machines are reached
    # digests of the rows behind each unit of the plan, in memory only; None where nobody's rows are
    # at stake: simulations, benchmarks
    behind: dict[str, bytes] | None = field(default=None, repr=False)
    evaluation: Evaluation = ON_PUBLIC_ROWS
    held_out: HeldOutRows | None = None  # for private metrics
    secret: bytes | None = None  # the key of a real run's hold-out
    task: Task = CLASSIFY
    integers: bool = False  # whether the model takes whole numbers, such as tokens
    offer: Offer | None = None  # what its clients, on other machines, have approved

    def measured(self, model: Float32Array) -> tuple[float, dict[str, float]]:
        """Loss and metrics of a model on the evaluation rows, exactly."""
        dataset = self.federation.dataset
        return measure(
            self.module,
            torch.from_numpy(model),
            as_input(torch.from_numpy(dataset.test_features), integers=self.integers),
            torch.from_numpy(dataset.test_labels),
            self.task,
        )

    def workload(self, states: States | None = None) -> Workload:
        """What the engine works on: rows by id, and its own copy of the module."""
        dataset, student = self.federation.dataset, self.training.server.student
        return Workload(
            module=copy.deepcopy(self.module),
            features=torch.from_numpy(dataset.features),
            labels=torch.from_numpy(dataset.labels),
            shards=ById(self.federation.clients, self.federation.shards),
            randomness=self.randomness,
            public_rows=None if student is None else student.ballot.rows,
            states=states or MemoryStates(),
            elsewhere=self.elsewhere,
            size=0 if student is None else student.ballot.size,
            held_out=self._held_out(),
            task=self.task,
            integers=self.integers,
        )

    def _held_out(self) -> HeldOut | None:
        """What clients hold out, with the same features as their other rows."""
        if self.held_out is None:
            return None
        dataset = self.federation.dataset
        features, labels = (
            (dataset.test_features, dataset.test_labels)
            if self.held_out.among_tests
            else (dataset.features, dataset.labels)
        )
        return HeldOut(
            torch.from_numpy(features),
            torch.from_numpy(labels),
            ById(self.federation.clients, self.held_out.shards),
        )


def from_config(
    config: Config,
    ledger: Ledger | None = None,
    stored: AnyPlan | None = None,
    *,
    begun: bool = True,
    secret: bytes | None = None,
    grid: Any = None,
) -> Setup:
    """Load data, deal rows, build the model and plan, within what `ledger` allows.

    A `stored` plan is used as it is: that of a run that has `begun`, or one made for a new run.
    `secret` is the key of a real run's hold-out. `grid` is Flower's, for an engine that runs
    clients on other machines.
    """
    name = known_method(config)
    local, source = _local_training(config, name), Source(config, secret)
    check_task(config, name)
    check_mode(source, name)
    members, there = members_of(source, name, grid, ledger, stored, begun=begun)
    made, federation = members.plan, _with_features(config, members.federation, source)
    evaluation, held_out = evaluation_of(source), None
    if evaluation.mode == PRIVATE:
        check_metric_planned(members.of_clients)
        federation, held_out = hold_out(source, federation)
    module = build_model(config, federation.dataset)
    integers = integers_of(module, federation.dataset)
    task = configured_task(config)
    by_record = protects_records(name)
    check_fits(module, task, federation.dataset, integers=integers, by_record=by_record)
    randomness = Randomness(config.train.seed, "os" if is_real(config) else "seeded")
    student = None
    if name == VOTES and members.of_clients is not None:
        student = student_of(config, members.of_clients, federation.dataset, module, randomness)
    training = _training(config, members, module, student, local, task)
    server = training.server
    rule = stop_rule(
        config.stop, evaluation, task, server.rounds, tail=server.tail, real=is_real(config)
    )
    training = replace(training, server=replace(server, stop=rule))
    setup = Setup(
        federation=federation,
        module=module,
        plan=made,
        labels=members.labels,
        method=make_method(name, made, config, len(federation.clients)),
        training=training,
        randomness=randomness,
        engine=config.engine.name,
        workers=config.engine.workers,
        settings=_settings(source, made, randomness, None if student is None else student.ballot)
        | frozen_part(module),
        loggers=logger_names(config),
        elsewhere=there,
        behind=behind(source, members),
        evaluation=evaluation,
        held_out=held_out,
        secret=secret,
        task=task,
        integers=integers,
    )
    # silos hold to the public plan that their certificates are in
    whole = setup.elsewhere is not None and not setup.elsewhere.silo_plan
    known = {} if ledger is None else ledger.state.keys
    return bound_to(setup, config.engine.slices, known) if whole else setup


def logger_names(config: Config) -> tuple[str, ...]:
    """The loggers that the config names."""
    return tuple(dict.fromkeys(config.train.loggers or ()))


def frozen_part(module: torch.nn.Module) -> dict[str, Any]:
    """What tells a model with frozen weights from another: a run goes on with the same."""
    frozen = any(not parameter.requires_grad for parameter in module.parameters())
    return {"model.frozen": fingerprint(module)} if frozen else {}


def check_metric_planned(plan: Plan | None) -> None:
    """A metric is released only if the plan says what it costs."""
    if plan is None or plan.metric_noise is None:
        raise InvalidInput(
            'evaluation.mode is "private", but the plan states no noise for a metric; make a plan '
            "from this config, or choose another mode"
        )


def _local_training(config: Config, method: str) -> LocalTraining:
    records = protects_records(method)
    return LocalTraining(
        # records are sampled by their rates: there is no batch size
        batch_size=1 if records else needed(config.train.batch_size, "train.batch_size"),
        steps=config.train.local_steps,
        epochs=config.train.local_epochs,
        momentum=config.train.momentum,
        shape=_shape(config, method),
        optimizer=config.train.optimizer or "sgd",
        weight_decay=config.train.weight_decay or 0.0,
        proximal=config.train.proximal or 0.0,
        gradient_clip=config.train.gradient_clip,
    )


def _training(
    config: Config,
    members: Members,
    module: torch.nn.Module,
    student: Student | None,
    local: LocalTraining,
    task: Task,
) -> Training:
    """How the rounds run."""
    made, planned, train = members.plan, members.of_clients, config.train
    # replanning may have added rounds
    rounds = needed(train.rounds, "train.rounds") if made is None else made.rounds
    size = parameter_count(module) if student is None else student.ballot.size
    noise, real = noise_of(config, made), is_real(config)
    place, bits, steps = noise_terms(noise, config.privacy.bits, planned, size, real=real)
    tail = min(rounds, train.tail_average)
    # rounds that were not planned, since the learning rate ends at 0, count for its course
    course = rounds + (0 if planned is None else planned.dropped_rounds)
    return Training(
        server=Server(
            rounds,
            train.server_lr,
            train.server_momentum,
            tail,
            student,
            train.server_optimizer or "sgd",
            SERVER_STEPS[train.server_optimizer or "sgd"].own,
        ),
        clients=members.federation.clients,
        local=local,
        client_lr=lr_schedule(
            needed(train.lr, "train.lr"), train.lr_schedule, train.lr_end, course
        ),
        noise_place=place,
        layers=layer_sizes(module) if config.privacy.clipping == "per-layer" else None,
        bits=bits,
        grid_steps=steps,
        plan="" if made is None else made.hash,
        metric=task.metric,
        from_unit=task.from_unit,
        ask_everyone=config.engine.ask == "everyone",
    )


def _shape(config: Config, method: str) -> Shape:
    shape = Shape(config.shape.blur, config.shape.lus)
    shape.check_lr(needed(config.train.lr, "train.lr"))
    if shape.blur > 0 and method == "fedavg":
        # only a warning, so that one config can be used to compare several methods
        message = "blur does nothing under fedavg: its radius is the clip, and fedavg does not clip"
        warnings.warn(message, FedspendWarning, stacklevel=2)
    return shape


def noise_terms(
    noise: str, bits: int, made: Plan | None, dimension: int, *, real: bool
) -> tuple[str, int | None, int | None]:
    """Who adds noise, the bits of its grid, and how many steps of the grid it has at least.

    There is no grid without a plan (there is no noise), nor for continuous noise in a simulation. A
    real run rounds continuous noise too.
    """
    choose("noise", noise, ("central", "distributed", "discrete", "discrete-distributed"))
    distributed, discrete = noise.endswith("distributed"), noise.startswith("discrete")
    place = "distributed" if distributed else "central"
    if made is None or not (discrete or real):
        return place, None, None
    bits = whole_number("bits", bits, FEWEST_BITS) if discrete else FINE_BITS
    check_on_grid(made, dimension, bits, distributed)
    return place, bits, made.grid_steps if discrete else FINE_STEPS


def _with_features(config: Config, federation: Federation, source: Source) -> Federation:
    if config.model.features == "none":
        return federation
    shards = federation.held if source.natural else None
    return replace(
        federation, dataset=cached_features(config.model.features, federation.dataset, shards)
    )


def make_method(name: str, made: AnyPlan | None, config: Config, clients: int) -> Method:
    entry, rate = METHODS[name], config.privacy.rate or 1.0
    method = entry.make(Given(made, clients, rate), **config.options("method", entry.keys))
    return method if made is None else held_to(made, method)


def _settings(
    source: Source, made: AnyPlan | None, randomness: Randomness, ballot: Ballot | None
) -> dict[str, Any]:
    """Every setting that affects the result, given or default; so not workers, nor unused votes."""
    config = source.config
    values = {
        f"{section}.{key}": config.value(f"{section}.{key}")
        for section, keys in SECTIONS.items()
        for key in keys
    }
    values["data.partition"] = source.partition
    values["privacy.noise"] = noise_of(config, made)
    if ballot is not None:
        values |= {"votes.queries": ballot.queries, "votes.rows": ballot.fingerprint}
    sections = ("design", "node", *(("votes",) if ballot is None else ()))
    without_effect = (f"{section}.{key}" for section in sections for key in SECTIONS[section])
    # how long to wait may change from one day to the next; keys are in the ledger, slices in
    # `bound_to`
    waiting = (f"engine.{key}" for key in SECTIONS["engine"] if key != "name")
    for unimportant in (
        *waiting,
        "train.loggers",
        "ledger.location",
        "ledger.project",  # of a run that goes on, the run directory says it
        *without_effect,
    ):
        values.pop(unimportant, None)
    values = {name: as_stored(value) for name, value in values.items() if value is not None}
    return values | {
        "plan": None if made is None else made.hash,
        "privacy.randomness": randomness.source,
    }


def as_stored(value: Any) -> Any:
    """A setting as it is read from a run directory again: JSON has no tuples."""
    if isinstance(value, dict):
        return {key: as_stored(inner) for key, inner in value.items()}
    return list(map(as_stored, value)) if isinstance(value, list | tuple) else value


def flat_parameters(module: torch.nn.Module) -> Float32Array:
    flat: Float32Array = flat_vector(module).numpy()
    return flat.astype(np.float32)
