"""A run on arrays, a module and a plan that are already in memory, without a config.

Guarantee: rows are joined with the plan by id. A list has no ids, so the rows of a real run are
taken from one only where the plan itself numbers its clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedspend import data
from fedspend.budgets.identity import as_mapping, hint_alike
from fedspend.budgets.population import numbered
from fedspend.client.row_digests import digests
from fedspend.client.shaping import Shape
from fedspend.client.task import LocalTraining
from fedspend.errors import InvalidInput
from fedspend.models import check_module
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.setup import Setup, noise_terms
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import Server, Training
from fedspend.server.student import NAME as VOTES

# (features, labels) by client id, or a list for clients "0", "1", ...
Clients = Mapping[Any, tuple[Any, Any]] | Iterable[tuple[Any, Any]]


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
    tail_average: int = 1
    clipping: str = "flat"
    noise: str | None = None  # None: what the plan is for
    bits: int = 32
    randomness: str = "os"
    seed: int = 0
    engine: str = "local"
    workers: int | None = None

    def settings(self, plan: Plan) -> dict[str, Any]:
        """The settings that must be the same for a run to be resumed."""
        return {
            "plan": plan.hash,
            "train.seed": self.seed,
            "train.lr": self.lr,
            "train.batch_size": self.batch_size,
            "shape.blur": self.blur,
            "shape.lus": self.lus,
        }


def from_arrays(
    clients: Clients,
    model: torch.nn.Module | None,
    plan: AnyPlan | None,
    test: tuple[Any, Any] | None,
    **options: Any,
) -> Setup:
    """The setup of a run on arrays: (features, labels) by client id, or one pair per client."""
    how = Options(**options)
    if model is None or plan is None or test is None:
        raise InvalidInput(
            "train(clients=...) also needs model=, plan= and test=(features, labels)"
        )
    plan = plan_of_updates(plan)
    check_module(model)
    training = _training(how, model, plan)
    randomness = Randomness(how.seed, how.randomness)  # type: ignore[arg-type]
    rows = rows_of(clients, plan, simulation=randomness.simulation)
    federation = data.of_named(rows, test=test, classes=classes_of(model, test[0]))
    return Setup(
        federation=federation,
        module=model,
        plan=plan,
        labels=None,
        method=held_to(plan, Planned(plan, str(plan.parameters.get("method", "idp-fedavg")))),
        training=replace(training, clients=federation.clients),
        randomness=randomness,
        engine=how.engine,
        workers=how.workers,
        settings=how.settings(plan),
        behind=None
        if randomness.simulation
        else digests(
            federation.dataset.features,
            federation.dataset.labels,
            federation.shards,
            federation.clients,
        ),
    )


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
        how.noise or ("discrete" if plan.discrete else "central"),
        how.bits,
        plan,
        parameter_count(model),
        real=how.randomness == "os",
    )
    tail = min(plan.rounds, how.tail_average)
    return Training(
        server=Server(plan.rounds, how.server_lr, how.server_momentum, tail),
        clients=(),
        local=LocalTraining(how.batch_size, how.local_steps, how.local_epochs, how.momentum, shape),
        client_lr=lambda _: how.lr,
        noise_place=place,
        layers=layer_sizes(model) if how.clipping == "per-layer" else None,
        bits=bits,
        grid_steps=steps,
        plan=plan.hash,
    )


def classes_of(model: torch.nn.Module, features: Any) -> int:
    """The number of classes, from the model's output for the first row."""
    with torch.no_grad():
        first = torch.as_tensor(np.asarray(features)[:1], dtype=torch.float32)
        return int(model(first).shape[-1])


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
    if named is not None:
        listed = set(plan.clients)
        raw_ids = clients if isinstance(clients, Mapping) else getattr(clients, "index", ())
        # plans of older versions may spell names differently
        given = {
            raw if raw in listed else name: rows
            for raw, (name, rows) in zip(raw_ids, named.items(), strict=True)
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
