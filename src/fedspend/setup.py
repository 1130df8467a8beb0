"""From a config to the parts of a run: data, model, plan, method, engine terms.

Everything that decides privacy comes from the plan. Which randomness is used is decided here: `seeded`, a simulation that
protects nobody, by default for public data; `os` by default for your own.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedspend import models
from fedspend.budgets import Population
from fedspend.choices import choose
from fedspend.client.shaping import Shape
from fedspend.client.state import MemoryStates, States
from fedspend.client.task import LocalTraining
from fedspend.config import Config
from fedspend.config_keys import SECTIONS
from fedspend.data import Federation
from fedspend.data_inputs import federation_of, needed
from fedspend.engines.base import Workload
from fedspend.errors import FedspendWarning, InvalidInput, whole_number
from fedspend.grid import FEWEST_BITS, check_on_grid
from fedspend.ledger import Ledger
from fedspend.ledger.participants import plan_within, registered
from fedspend.models.feature_cache import cached_features
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.plan_inputs import resolve
from fedspend.planning import Plan, plan
from fedspend.randomness import Randomness
from fedspend.records.planning import AnyPlan, RecordPlan
from fedspend.records.policies import METHODS as RECORD_METHODS
from fedspend.server.methods.adaptive_clip import AdaptiveClip
from fedspend.server.methods.base import Method
from fedspend.server.methods.fedavg import FedAvg
from fedspend.server.methods.planned import Planned
from fedspend.server.methods.record_level import RecordLevel
from fedspend.server.rounds import Server, Training
from fedspend.server.student import NAME as VOTES
from fedspend.server.student import Ballot
from fedspend.votes_from_config import student_of

CLIENT_METHODS = ("fedavg", "dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip", "dp-fedsgd", VOTES)
METHODS = (*CLIENT_METHODS, *RECORD_METHODS, "privacy-free")


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a run. `settings` is what must be the same for a run to be resumed."""

    federation: Federation
    module: torch.nn.Module
    plan: AnyPlan | None  # None for fedavg, which has no privacy to plan
    labels: tuple[str, ...] | None  # group of each client, where the budgets name one
    method: Method
    training: Training
    randomness: Randomness
    engine: str
    workers: int | None
    settings: dict[str, Any]
    tensorboard: bool = False

    def workload(self, states: States | None = None) -> Workload:
        """What the engine works on: rows by id, and a module of its own, which nothing else runs."""
        dataset, student = self.federation.dataset, self.training.server.student
        return Workload(
            module=copy.deepcopy(self.module),
            features=torch.from_numpy(dataset.features),
            labels=torch.from_numpy(dataset.labels),
            shards=dict(zip(self.federation.clients, self.federation.shards, strict=True)),
            randomness=self.randomness,
            public_rows=None if student is None else student.ballot.rows,
            states=states or MemoryStates(),
        )


def from_config(config: Config, ledger: Ledger | None = None, stored: AnyPlan | None = None) -> Setup:
    """Load, deal, build and plan what `config` describes, within what `ledger` allows. A `stored` plan is taken as it is."""
    seed = int(config.get("train.seed"))
    name = config.get("method.name") or "dp-fedavg"
    if name not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}; got {name!r}")
    local = LocalTraining(
        batch_size=1 if name in RECORD_METHODS else needed(config, "train.batch_size"),  # records: the sum of their rates
        steps=config.get("train.local_steps"),
        epochs=config.get("train.local_epochs"),
        momentum=config.get("train.momentum"),
        shape=_shape(config, name),
    )
    made: AnyPlan | None = None
    planned: Plan | None = None
    population: Population | None = None
    if name in RECORD_METHODS:
        from fedspend.records.from_config import record_plan

        federation = _federation(config, None, None)
        made = record_plan(config, federation, ledger, stored)
    else:
        if isinstance(stored, RecordPlan):
            raise InvalidInput(f"the run was begun with a record-level method, and the config says {name!r}; choose another folder")
        if name not in ("fedavg", "privacy-free"):  # which have no privacy to plan
            planned, population = _plan(config, name, ledger, stored)
        federation, made = _federation(config, planned, population), planned
    module = models.build(
        needed(config, "model.name"),
        input_shape=federation.dataset.features.shape[1:],
        classes=federation.dataset.classes,
        seed=seed,
        **({"hidden": config.get("model.hidden")} if config.given("model.hidden") else {}),
    )
    randomness = Randomness(seed, config.get("privacy.randomness") or ("seeded" if federation.dataset.public else "os"))
    rounds = int(needed(config, "train.rounds")) if made is None else made.rounds  # more than asked for, if planned anew
    method = make_method(name, made, config, len(federation.clients))
    student = None
    if name == VOTES and planned is not None:
        student = student_of(config, planned, federation.dataset, module, randomness)
    size = parameter_count(module) if student is None else student.ballot.size
    place, bits = noise_terms(config.get("privacy.noise"), config.get("privacy.bits"), planned, size)
    return Setup(
        federation=federation,
        module=module,
        plan=made,
        labels=None if made is None or population is None else population.groups_of(made.clients),
        method=method,
        training=Training(
            server=Server(
                rounds,
                config.get("train.server_lr"),
                config.get("train.server_momentum"),
                min(rounds, config.get("train.tail_average")),
                student,
            ),
            clients=federation.clients,
            local=local,
            client_lr=lr_schedule(needed(config, "train.lr"), config.get("train.lr_schedule"), config.get("train.lr_end"), rounds),
            noise=place,
            layers=layer_sizes(module) if config.get("privacy.clipping") == "per-layer" else None,
            bits=bits,
            plan="" if made is None else made.hash,
        ),
        randomness=randomness,
        engine=config.get("engine.name"),
        workers=config.get("engine.workers"),
        settings=_settings(config, made, randomness, None if student is None else student.ballot),
        tensorboard=bool(config.get("train.tensorboard")),
    )


def _shape(config: Config, method: str) -> Shape:
    shape = Shape(config.get("shape.blur"), config.get("shape.lus"))
    shape.check_lr(needed(config, "train.lr"))
    if shape.blur > 0 and method == "fedavg":
        # a warning and no refusal, so that one config serves a comparison of several methods
        message = "blur does nothing under fedavg: its ball has the clip as radius, and fedavg does not clip"
        warnings.warn(message, FedspendWarning, stacklevel=2)
    return shape


def noise_terms(noise: str, bits: int, made: Plan | None, dimension: int) -> tuple[str, int | None]:
    """Who adds noise, and the bits of discrete noise; without a plan there is none to make discrete."""
    choose("noise", noise, ("central", "distributed", "discrete", "discrete-distributed"))
    place = "distributed" if noise.endswith("distributed") else "central"
    if made is None or not noise.startswith("discrete"):
        return place, None
    check_on_grid(made, dimension, whole_number("bits", bits, FEWEST_BITS), place == "distributed")
    return place, bits


def _plan(config: Config, method: str, ledger: Ledger | None, stored: Plan | None) -> tuple[Plan, Population]:
    remaining = config.get("ledger.spend") == "remaining"
    if remaining and (ledger is None or not len(ledger.accounts())):
        raise InvalidInput(
            "spending what remains needs a ledger with client accounts: give one that exists and has some with --ledger"
        )
    inputs = resolve(config, registered=registered(ledger) if ledger is not None and remaining else None)
    arguments = inputs.arguments() | {"method": method}
    if stored is not None:
        if "ledger" not in stored.parameters:  # there, budgets are for a lifetime
            check_budgets(stored, inputs.population)
        return stored, inputs.population
    if ledger is None:
        return plan(**arguments), inputs.population
    made = plan_within(ledger, arguments, spend=config.get("ledger.spend"), exhausted=config.get("ledger.exhausted"))
    return made, inputs.population


def check_budgets(stored: Plan, population: Population) -> None:
    """A run goes on under the budgets that it began with."""
    now = dict(zip(population.clients, population.epsilons.tolist(), strict=True))
    for client, then in zip(stored.clients, stored.budget.tolist(), strict=True):
        if now.get(client) != then:
            was = "no budget" if client not in now else f"{now[client]:g}"
            raise InvalidInput(
                f"the plan has a budget of {then:g} for client {client!r}, and the config has {was}; make them agree, or start "
                "another run"
            )


def _federation(config: Config, made: Plan | None, population: Population | None) -> Federation:
    federation = federation_of(config, None if population is None else len(population.clients))
    if config.get("model.features") != "none":
        federation = replace(federation, dataset=cached_features(config.get("model.features"), federation.dataset))
    if made is None or population is None:
        return federation
    named = config.given("privacy.budgets") and config.get("data.partition") == "natural"
    return aligned(federation, made.clients, population.clients, named)


def aligned(federation: Federation, clients: tuple[str, ...], roster: tuple[str, ...], named: bool) -> Federation:
    """The federation with the plan's `clients` in the plan's order.

    The data is dealt to the whole `roster`, of which the plan may leave some out: matched by id where both name them, else by
    position.
    """
    if len(roster) != len(federation.clients):
        raise InvalidInput(f"the plan is for {len(roster)} clients, but the data has {len(federation.clients)}; make them agree")
    shard_of = dict(zip(federation.clients if named else roster, federation.shards, strict=True))
    missing = [client for client in clients if client not in shard_of]
    if missing:
        raise InvalidInput(f"client {missing[0]!r} has a budget but no rows in the data; the ids must be the same in both files")
    return replace(federation, clients=clients, shards=tuple(shard_of[client] for client in clients))


def make_method(name: str, made: AnyPlan | None, config: Config, clients: int) -> Method:
    if made is None:
        return FedAvg(clients, float(config.get("privacy.rate") or 1.0), name)
    if isinstance(made, RecordPlan):
        return RecordLevel(made, name)
    if name == "adaptive-clip":
        expected = float(made.round_rate.min()) * clients
        usual = max(0.05 * expected, 1.01 * float(made.schedules.noise_multiplier.max()) / 2)
        return AdaptiveClip(
            made, config.get("method.bit_noise") or usual, config.get("method.target_quantile"), config.get("method.clip_lr")
        )
    return Planned(made, name)


def lr_schedule(lr: float, kind: str, end: float, rounds: int) -> Callable[[int], float]:
    """Learning rate of rounds 0..rounds-1, from `lr` to `end * lr`."""

    def at(round: int) -> float:
        share = round / max(1, rounds - 1)
        if kind == "linear":
            return lr * (1 - (1 - end) * share)
        if kind == "cosine":
            return lr * (end + (1 - end) * (1 + math.cos(math.pi * share)) / 2)
        return lr

    return at


def _settings(config: Config, made: AnyPlan | None, randomness: Randomness, ballot: Ballot | None) -> dict[str, Any]:
    """Every setting that has an effect on the result, given or default; workers have none, and votes only where clients vote."""
    values = {f"{section}.{key}": config.get(f"{section}.{key}") for section, keys in SECTIONS.items() for key in keys}
    if ballot is not None:
        values |= {"votes.queries": ballot.queries, "votes.rows": ballot.fingerprint}
    sections = ("design", "votes") if ballot is None else ("design",)
    without_effect = (f"{section}.{key}" for section in sections for key in SECTIONS[section])
    for unimportant in ("engine.workers", "train.tensorboard", "ledger.location", *without_effect):
        values.pop(unimportant, None)
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None}
    return values | {"plan": None if made is None else made.hash, "privacy.randomness": randomness.source}


def flat_parameters(module: torch.nn.Module) -> np.ndarray[Any, np.dtype[np.float32]]:
    flat: np.ndarray[Any, np.dtype[np.float32]] = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    return flat.astype(np.float32)
