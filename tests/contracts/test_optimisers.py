"""Every optimiser of clients, in every engine: fast paths equal the reference, which equals torch
written out; and every optimiser of the server, against its formulas.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from contracts.test_tasks import SIZES, played_with, work_of
from torch import nn

from fedspend.client.batches import step_batches
from fedspend.client.record_steps import LocalModel
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.errors import InvalidInput
from fedspend.models.optimisers import Descent
from fedspend.noise.randomness import Randomness
from fedspend.runs.checkpoints import pack_state
from fedspend.server.methods.base import Release
from fedspend.server.rounds import Server, TrainingState, adaptive, begin, step

WAYS = {
    "adam": {"optimizer": "adam"},
    "adam with decay": {"optimizer": "adam", "weight_decay": 0.1},
    "decay": {"weight_decay": 0.3, "momentum": 0.5},
    "proximal": {"proximal": 2.0},
    "gradient clip": {"gradient_clip": 0.05},
    "all of it": {
        "optimizer": "adam",
        "weight_decay": 0.1,
        "proximal": 0.5,
        "gradient_clip": 0.2,
    },
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def training(way: str) -> LocalTraining:
    return LocalTraining(batch_size=8, steps=4, **WAYS[way])


def by_hand(way: str, client: int) -> np.ndarray:
    """One client of the regression, in plain torch."""
    work, how = work_of("squared"), Descent(**WAYS[way])
    module = copy.deepcopy(work.module)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    kind = torch.optim.Adam if how.optimizer == "adam" else torch.optim.SGD
    extra = {} if how.optimizer == "adam" else {"momentum": how.momentum}
    optimizer = kind(module.parameters(), lr=0.1, weight_decay=how.weight_decay, **extra)
    shard = work.shards[str(client)]
    generator = work.randomness.generator("batches", 0, client)
    for positions in step_batches(generator, len(shard), training(way)):
        rows = torch.from_numpy(shard[positions])
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(work.features[rows])[:, 0], work.labels[rows])
        apart = sum(
            (parameter - begun).square().sum()
            for parameter, begun in zip(module.parameters(), start, strict=True)
        )
        (loss + how.proximal / 2 * apart).backward()
        if how.gradient_clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), how.gradient_clip)
        optimizer.step()
    parts = [
        (parameter - begun).reshape(-1)
        for parameter, begun in zip(module.parameters(), start, strict=True)
    ]
    return torch.cat(parts).detach().numpy()


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("way", WAYS)
def test_every_engine_takes_the_steps_of_torch(way):
    clip = 1e6  # nobody is cut
    found = {
        engine: played_with(engine, work_of("squared"), training(way), clip)
        for engine in ("reference", "dense", "clientwise", "lossy")
    }
    for client in range(len(SIZES)):
        wanted = by_hand(way, client)
        for engine, vectors in found.items():
            assert vectors[str(client)] == pytest.approx(wanted, abs=2e-5), (engine, client)


@pytest.mark.full(only=["lstm-next"])
@pytest.mark.parametrize("name", ["lstm-next", "fine-tune"])
def test_adam_is_the_same_for_every_model(name):
    one, other = (
        played_with(engine, work_of(name), training("all of it"), 1.0)
        for engine in ("reference", "clientwise")
    )
    assert all(other[client] == pytest.approx(one[client], abs=2e-5) for client in one)


def test_a_task_carries_its_optimiser_and_refuses_a_made_up_one():
    shared = RoundTask(0, np.zeros(3, np.float32), training("all of it"), 0.1, 3)
    task = ClientTask("a", 0, 1.0, shared)
    assert ClientTask.from_bytes(task.to_bytes()).shared.training == shared.training
    arrays, about = task.parts()
    for key, value in (("optimizer", "lbfgs"), ("weight_decay", float("nan")), ("proximal", -1.0)):
        forged = about | {"training": about["training"] | {key: value}}
        with pytest.raises(InvalidInput):
            ClientTask.from_parts(arrays, forged)


def test_records_descend_by_adam_on_noised_gradients():
    start, gradients = torch.randn(5), [np.arange(5.0) - k for k in range(3)]
    local = LocalModel(start, 0.1, Descent(optimizer="adam", gradient_clip=1e-9))
    leaf = nn.Parameter(start.clone())
    adam = torch.optim.Adam([leaf], lr=0.1)
    for gradient in gradients:
        local.descend(gradient)
        leaf.grad = torch.from_numpy(gradient).float()
        adam.step()
    assert torch.allclose(local.parameters, leaf.detach())
    assert not torch.equal(local.parameters, start)


class Nothing:
    def start(self):
        return {}

    def learn(self, state, _release):
        return state


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_the_servers_step_is_that_of_its_paper(name):
    """Reddi et al. 2021, Algorithm 2, number by number."""
    updates = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    server = Server(rounds=6, lr=0.1, optimizer=name)
    state: TrainingState = begin(np.zeros(4, np.float32), Nothing())
    x, m, v = np.zeros(4), np.zeros(4), np.full(4, 1e-6)
    for update in updates.astype(np.float64):
        m = 0.9 * m + 0.1 * update
        if name == "adam":
            v = 0.99 * v + 0.01 * update**2
        else:
            v = v - 0.01 * update**2 * np.sign(v - update**2)
        x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
        state = step(state, Release(update.astype(np.float32)), Nothing(), server)
    assert state.parameters == pytest.approx(x, rel=1e-4)
    assert state.squares == pytest.approx(v, rel=1e-4)
    assert b"squares" in pack_state(state, "")[0]
    again = adaptive(state, updates[0], server)
    assert all(np.isfinite(part).all() for part in again)


def test_plain_runs_have_no_squares_in_their_checkpoints():
    state = begin(np.zeros(4, np.float32), Nothing())
    after = step(state, Release(np.ones(4, np.float32)), Nothing(), Server(rounds=1))
    assert b"squares" not in pack_state(after, "")[0]


def test_randomness_is_not_part_of_an_optimiser():
    assert Randomness(1).simulation
    with pytest.raises(InvalidInput, match="momentum is for optimizer sgd"):
        Descent(optimizer="adam", momentum=0.5).check()
    with pytest.raises(InvalidInput, match="optimizer must be one of sgd, adam, got 'lbfgs'"):
        Descent(optimizer="lbfgs").check()
    with pytest.raises(InvalidInput, match="weight_decay"):
        Descent(weight_decay=float("nan")).check()
