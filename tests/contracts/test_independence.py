"""What one client contributes depends on nobody else's rows, by not a single bit, in every engine
and under every option.

One listed client is emptied, or its rows are replaced: ten times as many, or NaN. Everybody else's
contribution must have the same bytes, the sum may move by at most that client's clip, and the sum
of bits by at most 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from contracts.workshop import (
    COHORT,
    ENGINES,
    MODELS,
    PAIRS,
    RANDOMNESS,
    Data,
    Outcome,
    outcome,
    tasks_for,
)
from torch import nn

from fedspend.client.bounding import own_noise
from fedspend.client.shaping import Shape
from fedspend.client.task import ClientTask, LocalTraining
from fedspend.engines import clientwise, dense
from fedspend.engines.base import Engine, Workload
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import InvalidInput
from fedspend.models.flat import flat_vector, layer_sizes, parameter_count
from fedspend.noise.grid import Grid
from fedspend.records import Terms
from fedspend.records.planning import RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.server.methods.record_level import RecordLevel
from fedspend.server.rounds import tasks_of

STEPS = LocalTraining(batch_size=8, steps=4)
EPOCHS = LocalTraining(batch_size=8, epochs=2)
TRAININGS = {
    "steps": STEPS,
    "epochs": EPOCHS,
    "one-row": LocalTraining(batch_size=1, steps=5),
    "large-batch": LocalTraining(batch_size=1000, steps=3),
    "momentum": LocalTraining(batch_size=8, steps=5, momentum=0.9),
    "shaped": LocalTraining(batch_size=8, steps=6, shape=Shape(blur=0.8, lus=0.7)),
    "shaped-momentum": LocalTraining(
        batch_size=8, epochs=2, momentum=0.5, shape=Shape(blur=0.8, lus=0.7)
    ),
}
CLIPS = 0.02 + 0.03 * np.arange(11)
EVERY_CLIENT = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
every_engine = pytest.mark.parametrize(("engine", "model"), PAIRS)

Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def ten_times_as_many(features: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    many = 10 * len(features)
    return 3 * torch.randn(many, *features.shape[1:], generator=generator), torch.randint(
        0, 3, (many,), generator=generator
    )


CHANGES: dict[str, Change] = {
    "emptied": lambda features, labels: (features[:0], labels[:0]),
    "ten-times": ten_times_as_many,
    "nan": lambda features, labels: (torch.full_like(features, math.nan), labels),
}


def changed(data: Data, client: int, change: Change) -> Data:
    """The same federation read anew with other rows of one client: nobody's row numbers stay what
    they were.
    """
    parts = [
        (data.features[torch.from_numpy(shard)], data.labels[torch.from_numpy(shard)])
        for shard in data.shards
    ]
    parts[client] = change(*parts[client])
    other = Data(tuple(data.features.shape[1:]))
    other.features, other.labels = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    other.shards = np.split(
        np.arange(len(other.labels)), np.cumsum([len(part[1]) for part in parts])[:-1]
    )
    other.public = data.public
    return other


def module_and_start(model: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module = MODELS[model][0]()
    return module, flat_vector(module)


@pytest.fixture
def running() -> Iterator[Callable[[str, Workload], Engine]]:
    opened: list[Engine] = []

    def open_one(name: str, work: Workload) -> Engine:
        opened.append(ENGINES[name](work))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()


def others_differ(first: Outcome, second: Outcome, client: int) -> list[str]:
    """Ids, but for this client's, whose contributions do not have the same bytes."""
    return [
        id
        for id, before in first.contributions.items()
        if id != str(client)
        and (before.vector.tobytes(), before.bit)
        != (second.contributions[id].vector.tobytes(), second.contributions[id].bit)
    ]


def check(
    running: Callable[[str, Workload], Engine],
    engine: str,
    module: nn.Module,
    data: Data,
    tasks: list[ClientTask],
    victim: int,
) -> None:
    """Everything that independence means, for one client and every change. Against the sum without
    the client, each version of its rows moves the sum by at most its clip.
    """
    shared, task = tasks[0].shared, next(task for task in tasks if task.number == victim)
    step = 1.0 if shared.grid is None else shared.grid.step
    versions = {name: changed(data, victim, change) for name, change in CHANGES.items()} | {
        "as it was": data
    }
    found = {
        name: outcome(running(engine, version.work(module)), tasks)
        for name, version in versions.items()
    }
    without = found["emptied"]
    for name, one in found.items():
        assert others_differ(one, without, victim) == [], name
        if shared.own_deviation == 0:
            assert np.linalg.norm(one.total - without.total) * step <= CLIPS[victim] * (1 + 1e-9), (
                name
            )
        assert abs(one.answers.bits - without.answers.bits) <= 0.5, name
    nothing = (
        np.zeros(shared.size)
        if shared.own_deviation == 0
        else own_noise(task, RANDOMNESS, shared.size)
    )
    assert np.array_equal(without.contributions[str(victim)].vector, nothing)
    assert without.contributions[str(victim)].bit == (0.0 if shared.bit else None)


@pytest.mark.full(
    but=[
        "steps-reference-logistic",
        "steps-clientwise-logistic",
        "one-row-dense-mlp",
        "large-batch-clientwise-mlp",
        "shaped-clientwise-logistic",
    ]
)
@every_engine
@pytest.mark.parametrize("training", TRAININGS)
def test_nobody_else_changes_a_bit_of_what_a_client_contributes(
    running: Any, engine: str, model: str, training: str
) -> None:
    module, start = module_and_start(model)
    tasks = tasks_for(start, COHORT, TRAININGS[training], round=2, lr=0.4, clips=CLIPS, bit=True)
    for victim in (1, 5):
        check(running, engine, module, Data(MODELS[model][1]), tasks, victim)


@pytest.mark.full(
    but=[
        "central-flat-reference-logistic",
        "distributed-per-layer-dense-logistic",
        "discrete-per-layer-clientwise-logistic",
        "discrete-distributed-flat-clientwise-mlp",
    ]
)
@every_engine
@pytest.mark.parametrize("layered", [False, True], ids=["flat", "per-layer"])
@pytest.mark.parametrize("noise", ["central", "distributed", "discrete", "discrete-distributed"])
def test_independent_under_every_noise_and_clipping(
    running: Any, engine: str, model: str, noise: str, layered: bool
) -> None:
    module, start = module_and_start(model)
    shared: dict[str, Any] = {"layers": layer_sizes(module) if layered else None, "bit": True}
    if noise.startswith("discrete"):
        shared["grid"] = Grid.of(CLIPS, 0.5, start.numel(), 32)
    if noise.endswith("distributed"):
        shared["own_deviation"] = 0.1
    tasks = tasks_for(start, COHORT, EPOCHS, round=1, lr=0.4, clips=CLIPS, **shared)
    check(running, engine, module, Data(MODELS[model][1]), tasks, 5)


@pytest.mark.full(but=["clientwise-logistic"])
@every_engine
def test_votes_are_independent(running: Any, engine: str, model: str) -> None:
    module, start = module_and_start(model)
    tasks = tasks_for(
        start, COHORT, STEPS, round=1, lr=0.4, clips=CLIPS, asked=np.array([0, 3, 5]), size=9
    )
    check(running, engine, module, Data(MODELS[model][1]), tasks, 5)


@pytest.mark.full(but=["dense-logistic"])
@pytest.mark.parametrize(
    ("engine", "model"),
    [*((engine, "logistic") for engine in ENGINES), ("dense", "mlp"), ("clientwise", "mlp")],
)
def test_independent_where_the_last_bit_decides(running: Any, engine: str, model: str) -> None:
    """At such a learning rate a difference in the last bit grows until it is larger than
    the clip.
    """
    module, start = module_and_start(model)
    data = Data(MODELS[model][1], sizes=(3, 9, 21, 5, 13, 40, 2, 30, 17, 6, 11))
    tasks = tasks_for(
        start,
        EVERY_CLIENT[:8],
        LocalTraining(batch_size=8, epochs=60),
        round=1,
        lr=6.0,
        clips=CLIPS,
    )
    check(running, engine, module, data, tasks, 5)


def test_padding_by_the_widest_of_a_cohort_would_be_noticed(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken engine: how wide a client is padded follows from everybody's rows."""
    module, start = module_and_start("mlp")
    data = Data((12,), sizes=(3, 5, 2, 5, 4, 40, 2, 3, 1, 6, 5))
    tasks = tasks_for(
        start,
        EVERY_CLIENT[:8],
        LocalTraining(batch_size=40, epochs=60),
        round=1,
        lr=6.0,
        clips=CLIPS,
    )
    found = []
    for version in (data, changed(data, 5, CHANGES["emptied"])):
        widest = max(len(shard) for shard in version.shards)
        monkeypatch.setattr(
            dense, "padded_width", lambda examples, _, widest=widest: widest if examples else 0
        )
        found.append(outcome(running("dense", version.work(module)), tasks))
    assert others_differ(*found, 5)


# --- batched products ---


def test_company_that_matters_is_noticed_and_clients_are_then_trained_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, start = module_and_start("mlp")
    tasks = tasks_for(start, COHORT, STEPS, round=1, lr=0.4, clips=CLIPS)
    good = dense.DenseEngine(Data().work(module))
    expected = outcome(good, tasks)
    assert min(good._together.values()) > 1
    real = dense._Block.step

    def leaky(self: Any, batch: torch.Tensor, *more: Any) -> None:
        real(self, batch, *more)
        self._weights[0][: len(batch)] += 1e-7 * (len(batch) - 1)

    monkeypatch.setattr(dense._Block, "step", leaky)
    engine = dense.DenseEngine(Data().work(module))
    found = outcome(engine, tasks)
    assert set(engine._together.values()) == {1}
    assert np.allclose(found.total, expected.total, atol=1e-6)


@pytest.mark.full(but=["(1, 100)-16"])
@pytest.mark.parametrize("width", [8, 16, 20, 33])
@pytest.mark.parametrize("sizes", [(1, 37), (1, 64), (1, 100), (5, 1, 37), (7, 64, 5)], ids=str)
def test_a_client_beside_others_has_the_bits_it_has_alone_also_in_thin_layers(
    sizes: tuple[int, ...], width: int
) -> None:
    """A matrix of one column may go to another routine once it has company, which the engine must
    notice beforehand.
    """
    for bias, momentum in ((True, 0.0), (False, 0.0), (True, 0.9), (False, 0.9)):
        torch.manual_seed(3)
        module = nn.Sequential(
            *(nn.Linear(entering, leaving, bias=bias) for entering, leaving in pairwise(sizes))
        )
        start = flat_vector(module)
        data = Data((sizes[0],), sizes=[width] * 12, classes=sizes[-1])
        training = LocalTraining(batch_size=width, steps=3, momentum=momentum)
        tasks = tasks_for(start, range(12), training, round=1, lr=2.0, clips=np.full(12, 0.5))
        together = outcome(dense.DenseEngine(data.work(module)), tasks).contributions
        for task in tasks:
            alone = outcome(dense.DenseEngine(data.work(module)), [task]).contributions[task.client]
            assert alone.vector.tobytes() == together[task.client].vector.tobytes()


# --- modules that remember ---


class Remembers(nn.Module):
    """Keeps a mean of what it has seen, as an attribute, in a whole-number buffer and in a list,
    and uses all three.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.mean, self.history = torch.zeros(12), [0.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(dim=0)
        self.seen += len(x)
        self.history.append(float(x.detach().sum()))
        result: torch.Tensor = (
            self.inner(x - self.mean) + 0.01 * self.seen + 0.001 * self.history[0]
        )
        return result


FORGETFUL = [name for name in ENGINES if name != "dense"]


@pytest.mark.full(but=["votes-flower"])
@pytest.mark.parametrize("engine", FORGETFUL)
@pytest.mark.parametrize("votes", [False, True], ids=["updates", "votes"])
def test_a_module_that_remembers_is_new_for_every_client(
    running: Any, engine: str, votes: bool
) -> None:
    torch.manual_seed(0)
    module = Remembers()
    start = flat_vector(module)
    shared: dict[str, Any] = {"asked": np.array([0, 3, 5]), "size": 9} if votes else {}
    tasks = tasks_for(start, COHORT, STEPS, round=1, lr=0.4, clips=CLIPS, **shared)
    check(running, engine, module, Data(), tasks, 5)
    assert len(module.history) == 1


class RemembersInItsClass(nn.Module):
    """A copy of it is no new one: all copies have one class."""

    seen = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).seen = 0.5 * self.seen + float(x.detach().mean())
        result: torch.Tensor = self.inner(x) + self.seen * torch.tensor([1.0, 0.0, 0.0])
        return result


def remembers_in_a_hook() -> nn.Module:
    """Nor does a copy have a hook of its own: functions are not copied."""
    cell, module = [0.0], nn.Sequential(nn.Linear(12, 3))

    def hook(_: nn.Module, entering: tuple[torch.Tensor], leaving: torch.Tensor) -> torch.Tensor:
        cell[0] = 0.5 * cell[0] + float(entering[0].detach().mean())
        return leaving + cell[0] * torch.tensor([1.0, 0.0, 0.0])

    module[0].register_forward_hook(hook)
    return module


@pytest.mark.parametrize("engine", FORGETFUL)
@pytest.mark.parametrize("make", [RemembersInItsClass, remembers_in_a_hook])
def test_a_module_that_remembers_outside_itself_is_refused(
    running: Any, engine: str, make: Callable[[], nn.Module]
) -> None:
    with pytest.raises(InvalidInput, match="remembers rows outside itself"):
        running(engine, Data().work(make()))


def test_one_module_for_all_clients_would_be_noticed(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientwise, "remembers_nothing", lambda _: True)
    module = Remembers()
    start = flat_vector(module)
    tasks = tasks_for(start, COHORT, STEPS, round=1, lr=0.4, clips=CLIPS)
    with pytest.raises(AssertionError):
        check(running, "clientwise", module, Data(), tasks, 5)


# --- records ---


def record_plan(method: str, records: int = 24, clients: int = 4) -> RecordPlan:
    charge = {"filter-clip": "clip", "filter-norm": "norm"}.get(method)
    wanted = Wanted(
        method=method.partition("-")[0],
        charge=charge,
        **({"common_rate": 0.5} if charge == "clip" else {}),
    )
    terms = Terms(delta=1e-3, rounds=3, local_steps=4, client_rate=1.0, noise_multiplier=3.0)
    budget = np.resize([0.5, 1.0, 2.0], records)
    return plan_records(
        budget,
        np.arange(records) % clients,
        terms,
        clients=[f"client {n}" for n in range(clients)],
        wanted=wanted,
    )


class Odd(nn.Module):
    """No chain of layers, so that gradients go through `vmap`; and it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(12, 3), 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last += 1.0
        result: torch.Tensor = torch.tanh(self.inner(x)) + self.last
        return result


RECORD_MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": MODELS["logistic"][0],
    "mlp": MODELS["mlp"][0],
    "vmap": Odd,
}


@pytest.mark.full(but=["filter-norm-logistic"])
@pytest.mark.parametrize("model", RECORD_MODELS)
@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter-clip", "filter-norm"])
def test_a_client_takes_its_record_steps_by_itself(method: str, model: str) -> None:
    """Rounds in a row, so that what a client remembers from round to round is its own, too."""
    torch.manual_seed(0)
    module, plan = RECORD_MODELS[model](), record_plan(method)
    method_of = RecordLevel(plan)
    generator = torch.Generator().manual_seed(1)
    features, labels = (
        torch.randn(24, 12, generator=generator),
        torch.randint(0, 3, (24,), generator=generator),
    )
    shards = {client: np.flatnonzero(plan.owner == n) for n, client in enumerate(plan.clients)}
    other = {
        "replaced": 5 * torch.randn(24, 12, generator=generator),
        "nan": torch.full((24, 12), math.nan),
    }

    def contributions(rows: torch.Tensor) -> list[dict[str, bytes]]:
        engine, found = ReferenceEngine(Workload(module, rows, labels, shards, RANDOMNESS)), []
        start = np.zeros(parameter_count(module), dtype=np.float32)
        for t in range(plan.rounds):
            shared = tasks_for(torch.from_numpy(start), [0], STEPS, round=t, lr=0.3)[0].shared
            tasks = tasks_of(
                np.arange(4), method_of.terms(t, {}), plan.clients, replace(shared, plan=plan.hash)
            )
            found.append(
                {
                    reply.contribution.client: reply.contribution.vector.tobytes()
                    for reply in engine.run(tasks)
                }
            )
        return found

    before = contributions(features)
    for rows in other.values():
        mixed = features.clone()
        mixed[shards["client 2"]] = rows[shards["client 2"]]
        after = contributions(mixed)
        for earlier, later in zip(before, after, strict=True):
            assert {id for id in earlier if earlier[id] != later[id]} <= {"client 2"}
        assert before != after
