"""A run on arrays, a module and a plan that are already in memory, without a config.

Guarantee: rows are joined with the plan by id. A list has no ids, so the rows of a real run are
taken from one only where the plan itself numbers its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from fedspend import data
from fedspend.basics.choices import choose
from fedspend.budgets.identity import as_mapping, hint_alike
from fedspend.budgets.population import numbered
from fedspend.client.row_digests import digests
from fedspend.client.shaping import Shape
from fedspend.client.task import LocalTraining
from fedspend.configuration.evaluation import ON_PUBLIC_ROWS
from fedspend.configuration.keys import AnyKey
from fedspend.configuration.learning_rates import lr_schedule
from fedspend.configuration.model_inputs import check_fits, integers_of
from fedspend.configuration.noise_kind import noise_for
from fedspend.configuration.sections import SECTIONS
from fedspend.configuration.stopping import stop_rule, stop_settings
from fedspend.data.sequences import PADDING, padded
from fedspend.errors import InvalidInput
from fedspend.models import check_module
from fedspend.models.checking import tried_output
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.models.inputs import takes_integers
from fedspend.noise.grid import check_bits
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.setup import (
    Setup,
    frozen_part,
    noise_terms,
)
from fedspend.server.methods.base import Given, Method
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.planned import Planned
from fedspend.server.methods.table import DEFAULT, METHODS
from fedspend.server.rounds import Server, Training
from fedspend.server.steps import SERVER_STEPS, OwnStep
from fedspend.server.student import NAME as VOTES
from fedspend.tasks.kinds import BINARY, CLASSES, IGNORED, TOKENS
from fedspend.tasks.task import Task, task_of

# (features, labels) by client id, or a list for clients "0", "1", ...; what else may be given is
# made one of these by `given_clients`
Clients = Mapping[Any, Any] | Iterable[Any]


_LATER = {
    "optimizer": "sgd",
    "weight_decay": 0.0,
    "proximal": 0.0,
    "gradient_clip": None,
    "server_optimizer": "sgd",
}


_ALWAYS = (
    "train.seed",
    "train.lr",
    "train.batch_size",
    "train.local_steps",
    "train.local_epochs",
    "train.momentum",
    "train.server_lr",
    "train.server_momentum",
    "train.tail_average",
    "shape.blur",
    "shape.lus",
    "privacy.clipping",
    "privacy.bits",
    "privacy.randomness",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train; in a config these are in `train`, `shape`, `privacy` and `engine`."""

    lr: float
    batch_size: int
    local_steps: int | None = None
    local_epochs: int | None = None
    momentum: float = 0.0
    blur: float = 0.0
    lus: float = 0.0
    server_lr: float = 1.0
    server_momentum: float = 0.0
    optimizer: str = "sgd"  # or adam
    weight_decay: float = 0.0
    proximal: float = 0.0  # FedProx: how strongly a local model is pulled back to its start
    gradient_clip: float | None = None  # of each batch, at a client
    server_optimizer: str | OwnStep = "sgd"  # a name, or a function (`server.steps.OwnStep`)
    tail_average: int = 1
    clipping: str = "flat"
    noise: str | None = None  # None: what the plan is for
    bits: int = 32
    randomness: str = "os"
    seed: int = 0
    engine: str = "local"
    workers: int | None = None
    # a name, or a function of (output, target) that gives one number a row
    loss: str | Callable[[Any, Any], Any] | None = None
    metrics: Sequence[Any] | None = None  # names, or functions of (outputs, targets)
    classes: int | None = None  # how many; None: as many as the model has scores
    max_length: int | None = None  # of sequences, which are padded or cut to it
    lr_schedule: str = "constant"
    lr_end: float = 0.1
    # early stopping, by the keys of a config's section [stop]: {"patience": 5, "keep": "best"}
    stop: Mapping[str, Any] | None = None

    def settings(self, plan: Plan, task: Task) -> dict[str, Any]:
        """The settings that must be the same for a run to be resumed."""
        told: dict[str, Any] = {} if task.classifies else {"task.loss": task.name}
        if self.metrics is not None:
            told["task.metrics"] = [metric.name for metric in task.metrics]
        if self.lr_schedule != "constant":
            told |= {"train.lr_schedule": self.lr_schedule, "train.lr_end": self.lr_end}
        # named only where they are used, as in runs begun with an older version
        for name, usual in _LATER.items():
            if getattr(self, name) != usual:
                told[f"train.{name}"] = _as_word(getattr(self, name))
        if self.max_length is not None:
            told["data.max_length"] = self.max_length
        told |= {f"stop.{name}": value for name, value in (self.stop or {}).items()}
        always = {name: getattr(self, name.partition(".")[2]) for name in _ALWAYS}
        return (
            told
            | {name: value for name, value in always.items() if value is not None}
            | {
                "plan": plan.hash,
                "privacy.noise": self.noise or noise_for(plan),
                "engine.name": self.engine,
            }
        )


OPTIONS = tuple(field.name for field in fields(Options))

# where a config has the same setting; both are held to what `configuration.sections` says of it
_KEY_OF = {
    name: SECTIONS[section][key]
    for section, names in {
        "train": {
            name: name
            for name in (
                "lr",
                "batch_size",
                "local_steps",
                "local_epochs",
                "momentum",
                "optimizer",
                "weight_decay",
                "proximal",
                "gradient_clip",
                "server_optimizer",
                "server_lr",
                "server_momentum",
                "tail_average",
                "seed",
                "lr_schedule",
                "lr_end",
            )
        },
        "shape": {"blur": "blur", "lus": "lus"},
        "privacy": {name: name for name in ("clipping", "noise", "bits", "randomness")},
        "engine": {"engine": "name", "workers": "workers"},
        "data": {"max_length": "max_length"},
    }.items()
    for name, key in names.items()
}


_FUNCTIONS = ("server_optimizer",)  # which may be a function of your own


def _as_word(value: Any) -> Any:
    """A setting as it is stored: functions by their names."""
    return f"own: {getattr(value, '__qualname__', value)}" if callable(value) else value


def checked_options(options: Mapping[str, Any]) -> Options:
    """The options, each held to what a config may say; None is the default."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        key = _KEY_OF.get(name)
        if value is None:
            continue
        own = name in _FUNCTIONS and callable(value)
        found[name] = value if key is None or own else _read(name, key, value)
    missing = [f"{name}=" for name in ("lr", "batch_size") if name not in found]
    if missing:
        raise InvalidInput(f"train(clients=...) also needs {' and '.join(missing)}")
    check_bits(found.get("bits", Options.bits))
    return Options(**found)


def _read(name: str, key: AnyKey, value: Any) -> Any:
    """One value, which may be a numpy number."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return key.read(value)
    except ValueError:
        if isinstance(value, str) and key.names:
            choose(name, value, key.names)
        raise InvalidInput(f"{name} must be {key.asks}, got {value!r}") from None


def from_arrays(
    clients: Clients,
    model: torch.nn.Module | None,
    plan: AnyPlan | None,
    test: tuple[Any, Any] | None,
    **options: Any,
) -> Setup:
    """The setup of a run on arrays: (features, labels) by client id, or one pair per client."""
    how = checked_options(options)
    task = task_of(how.loss, how.metrics)
    needed = {"model=": model, "plan=": plan, "test=(features, labels)": test}
    missing = [name for name, given in needed.items() if given is None]
    if model is None or plan is None or test is None:
        raise InvalidInput(f"train(clients=...) also needs {' and '.join(missing)}")
    plan = plan_of_updates(plan)
    check_module(model)
    training = _training(how, model, plan)
    randomness = Randomness(how.seed, how.randomness)  # type: ignore[arg-type]
    rows = rows_of(clients, plan, simulation=randomness.simulation)
    if how.max_length is not None:
        rows = {client: padded_pair(pair, task, how.max_length) for client, pair in rows.items()}
        test = padded_pair(test, task, how.max_length)
    for client, (features, targets) in {**rows, "test": test}.items():
        check_even(client, features, targets)
    given = whole_inputs(rows)
    classes = classes_of(how, task, model, test, integers=given)
    federation = data.of_named(rows, test=test, classes=classes, kind=task.targets)
    integers = integers_of(model, federation.dataset, given=given)
    check_fits(model, task, federation.dataset, integers=integers)
    training = replace(training, server=_stopping(how, training.server, task))
    return Setup(
        federation=federation,
        module=model,
        plan=plan,
        labels=None,
        method=held_to(plan, method_of_plan(plan)),
        training=replace(training, clients=federation.clients),
        randomness=randomness,
        engine=how.engine,
        workers=how.workers,
        settings=how.settings(plan, task) | frozen_part(model),
        behind=None
        if randomness.simulation
        else digests(
            federation.dataset.features,
            federation.dataset.labels,
            federation.shards,
            federation.clients,
        ),
        task=task,
        integers=integers,
    )


def method_of_plan(plan: Plan) -> Method:
    """The method that the plan was made for; any plan can be followed as it is."""
    name = str(plan.parameters.get("method", DEFAULT))
    if name not in METHODS:
        return Planned(plan, name)
    return METHODS[name].make(Given(plan, len(plan.clients), 1.0))


def plan_of_updates(plan: AnyPlan) -> Plan:
    """A plan of clients who send updates; refuses others."""
    found = Plan.expect(
        plan,
        "train(clients=...) is for plans of clients; train a plan of records from the config it "
        "was made for",
    )
    if found.parameters.get("method") == VOTES:
        raise InvalidInput(
            f"the plan is for method {VOTES!r}, which needs public rows; train it from a config"
        )
    if found.metric_noise is not None:
        raise InvalidInput(
            "the plan states a private metric, which needs rows that clients hold out; train it "
            "from a config"
        )
    return found


def _training(how: Options, model: torch.nn.Module, plan: Plan) -> Training:
    """How rounds run, before the clients' rows are known."""
    shape = Shape(how.blur, how.lus)
    shape.check_lr(how.lr)
    place, bits, steps = noise_terms(
        how.noise or noise_for(plan),
        how.bits,
        plan,
        parameter_count(model),
        real=how.randomness == "os",
    )
    course = plan.rounds + plan.dropped_rounds
    if how.tail_average > course:
        raise InvalidInput(
            f"tail_average is {how.tail_average}, but the plan has {course} rounds; set it to at "
            f"most {course}"
        )
    tail = min(plan.rounds, how.tail_average)
    local = LocalTraining(
        how.batch_size,
        how.local_steps,
        how.local_epochs,
        how.momentum,
        shape,
        how.optimizer,
        how.weight_decay,
        how.proximal,
        how.gradient_clip,
    )
    local.descent.check()
    choose("lr_schedule", how.lr_schedule, ("constant", "linear", "cosine"))
    return Training(
        server=Server(
            plan.rounds,
            how.server_lr,
            how.server_momentum,
            tail,
            optimizer="own" if callable(how.server_optimizer) else how.server_optimizer,
            own=how.server_optimizer
            if callable(how.server_optimizer)
            else SERVER_STEPS[how.server_optimizer].own,
        ),
        clients=(),
        local=local,
        client_lr=lr_schedule(how.lr, how.lr_schedule, how.lr_end, course),
        noise_place=place,
        layers=layer_sizes(model) if how.clipping == "per-layer" else None,
        bits=bits,
        grid_steps=steps,
        plan=plan.hash,
    )


def _stopping(how: Options, server: Server, task: Task) -> Server:
    """The server with its stopping rule. The test rows that are given here are public ones."""
    if how.stop is None:
        return server
    asked = stop_settings(how.stop)
    real = how.randomness == "os"
    rule = stop_rule(asked, ON_PUBLIC_ROWS, task, server.rounds, tail=server.tail, real=real)
    return replace(server, stop=rule)


def classes_of(
    how: Options, task: Task, model: torch.nn.Module, test: tuple[Any, Any], *, integers: bool
) -> int:
    """The number of classes: as stated, or as many as the model has scores; for numbers and labels,
    how many a row has.
    """
    if how.classes is not None:
        return how.classes
    if task.targets == BINARY:
        return 2
    if task.targets not in (CLASSES, TOKENS):
        targets = np.asarray(test[1])
        return 1 if targets.ndim < 2 else int(targets.shape[1])
    shape = tuple(np.asarray(test[0]).shape[1:])
    whole = takes_integers(model, shape, given_integers=integers)
    return int(tried_output(model, shape, integers=whole).shape[-1])


def check_even(client: str, features: Any, targets: Any) -> None:
    """Refuse rows of different lengths, for which no length is stated."""
    for what, values in (("features", features), ("targets", targets)):
        try:
            np.asarray(values)
        except ValueError:
            raise InvalidInput(
                f"{what} of {client!r} are sequences of different lengths; state how long they may "
                "be with max_length=..., by which each is padded or cut"
            ) from None


def whole_inputs(clients: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether clients' rows are whole numbers; refuses some that are and some that are not."""
    kinds = {
        client: np.asarray(features).dtype.kind in "iu"
        for client, (features, targets) in clients.items()
        if len(targets)
    }
    if len(set(kinds.values())) > 1:
        whole, other = (
            next(client for client in kinds if kinds[client] is kind) for kind in (True, False)
        )
        raise InvalidInput(
            f"client {whole!r} has features of whole numbers and client {other!r} of others; give "
            "all of them the same type"
        )
    return any(kinds.values())


def padded_pair(pair: tuple[Any, Any], task: Task, length: int) -> tuple[Any, Any]:
    """A client's sequences, padded by the stated length alone; its targets too, where they are
    sequences.
    """
    features, targets = pair
    if len(features) != len(targets):
        return pair  # refused where all rows are checked
    if task.targets == TOKENS:
        targets = padded("targets", targets, length, IGNORED)
    return padded("sequences", features, length, PADDING), targets


def check_named(clients: Clients, setup: Setup) -> None:
    """A real run is charged to a ledger that outlives it, and accounts in it need names that do
    too.
    """
    if as_mapping(clients) is None and not setup.randomness.simulation:
        raise InvalidInput(
            "a real run is charged to a ledger that outlives it, which needs named clients, and a "
            "list has no names; give clients as a dict of id: (features, labels), or simulate with "
            'randomness="seeded", which protects nobody'
        )


def rows_of(clients: Clients, plan: Plan, *, simulation: bool) -> dict[str, tuple[Any, Any]]:
    """Each client's rows, by id. Real rows in a list are refused if the plan names its clients."""
    named = as_mapping(clients)
    if isinstance(clients, Mapping) and named is not None:
        listed = set(plan.clients)
        # plans of older versions may spell names differently
        given = {
            raw if raw in listed else name: rows
            for raw, (name, rows) in zip(clients, named.items(), strict=True)
        }
        stranger = next((client for client in given if client not in listed), None)
        if stranger is not None:
            raise InvalidInput(
                f"client {stranger!r} has rows but is not in the "
                f"plan{hint_alike(stranger, listed)}; make a plan that includes it, or leave its "
                "rows out"
            )
        return {client: given.get(client, ([], [])) for client in plan.clients}
    pairs = list(clients)
    if len(pairs) != len(plan.clients):
        raise InvalidInput(
            f"the plan is for {len(plan.clients)} clients, but {len(pairs)} were given; make them "
            "agree"
        )
    if not simulation and plan.clients != numbered(len(pairs)):
        raise InvalidInput(
            f"the plan names its clients ({plan.clients[0]!r}, ...) and a list has no names, so "
            "rows could be charged to the wrong budget; give clients as a dict of id: (features, "
            "labels)"
        )
    return dict(zip(plan.clients, pairs, strict=True))
