"""What every engine must do, whichever way it does it: the by-hand loop below is the definition."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
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
    SIZES,
    Branches,
    Data,
    Outcome,
    logistic,
    mlp,
    outcome,
    tasks_for,
)
from torch import nn
from torch.nn.functional import cross_entropy

from fedspend.client.batches import step_batches
from fedspend.client.shaping import Shape, kept
from fedspend.client.task import LocalTraining
from fedspend.engines import dense, workers
from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.dense import DenseEngine
from fedspend.engines.local import make_engine
from fedspend.errors import InvalidInput
from fedspend.models.evaluation import evaluate, majority_share, scores
from fedspend.models.flat import flat_vector, layer_sizes, load_vector
from fedspend.models.linear import supports

# float32 sums in another order: relative to the largest entry of the summed update
TOLERANCE = 2e-5

STEPS = LocalTraining(batch_size=8, steps=4)
EPOCHS = LocalTraining(batch_size=8, epochs=2)
MOMENTUM = LocalTraining(batch_size=8, steps=5, momentum=0.9)
SHAPED = LocalTraining(batch_size=8, steps=6, shape=Shape(blur=0.8, lus=0.7))
SHAPED_MOMENTUM = LocalTraining(
    batch_size=8, epochs=2, momentum=0.5, shape=Shape(blur=0.8, lus=0.7)
)

every_engine = pytest.mark.parametrize(("engine", "model"), PAIRS)
dense_models = pytest.mark.parametrize("engine", ENGINES)


@dataclass(frozen=True)
class Running:
    """An engine and how clients train in it."""

    engine: Engine
    training: LocalTraining

    def run(
        self,
        start: torch.Tensor,
        cohort: np.ndarray,
        round: int,
        lr: float,
        clips: np.ndarray,
        **shared: Any,
    ) -> Outcome:
        return outcome(
            self.engine,
            tasks_for(start, cohort, self.training, round=round, lr=lr, clips=clips, **shared),
        )


class Bench:
    """A model, its data, and engines that are closed afterwards."""

    def __init__(self) -> None:
        self.opened: list[Engine] = []

    def start(self, model: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(seed)
        module = MODELS[model][0]()
        return module, flat_vector(module)

    def engine(self, name: str, module: nn.Module, data: Data, training: LocalTraining) -> Running:
        engine = ENGINES[name](data.work(module))
        self.opened.append(engine)
        return Running(engine, training)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for engine in bench.opened:
        engine.close()
    assert not multiprocessing.active_children()


def by_hand(
    module: nn.Module,
    start: torch.Tensor,
    data: Data,
    training: LocalTraining,
    client: int,
    round: int,
    lr: float,
    radius: float = math.inf,
) -> np.ndarray:
    """One client's update, written out."""
    module = copy.deepcopy(module)
    load_vector(module, start)
    trained = [p for p in module.parameters() if p.requires_grad]
    velocity = [torch.zeros_like(p) for p in trained]
    shard = data.shards[client]
    for positions in step_batches(
        RANDOMNESS.generator("batches", round, client), len(shard), training
    ):
        rows = shard[positions]
        loss = cross_entropy(module(data.features[rows]), data.labels[rows])
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        with torch.no_grad():
            moved = flat_vector(module) - start
            pull = training.shape.blur if moved.norm() > radius else 0.0
            pulls = dict(zip(trained, moved.split([p.numel() for p in trained]), strict=True))
            last = {p: g for p, g in zip(trained, gradients, strict=True) if g is not None}
            for p, v in zip(trained, velocity, strict=True):
                if p in last:
                    v.mul_(training.momentum).add_(last[p] + pull * pulls[p].view_as(p))
                    p.sub_(lr * v)
    update = (flat_vector(module) - start).double().numpy()
    if training.shape.lus > 0 and len(shard):
        gradient = np.concatenate(
            [last[p].numpy().ravel() if p in last else np.zeros(p.numel()) for p in trained]
        )
        first = 0
        for size in layer_sizes(module):
            order = sorted(
                range(size), key=lambda n: (-abs(update[first + n] * gradient[first + n]), n)
            )
            update[[first + n for n in order[kept(size, training.shape.lus) :]]] = 0
            first += size
    return update


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(actual - expected).max() <= TOLERANCE * max(1e-3, np.abs(expected).max()))


def free(clients: int = len(SIZES)) -> np.ndarray:
    return np.full(clients, np.inf)


def same(a: Outcome, b: Outcome) -> bool:
    pairs = (
        (a.total, b.total),
        (a.norms, b.norms),
        (a.clipped, b.clipped),
        (a.discarded, b.discarded),
    )
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.full(
    but=["steps-reference-logistic", "steps-clientwise-logistic", "momentum-lossy-logistic"]
)
@every_engine
@pytest.mark.parametrize("training", [STEPS, EPOCHS, MOMENTUM], ids=["steps", "epochs", "momentum"])
def test_equals_the_loop_by_hand(
    bench: Bench, engine: str, model: str, training: LocalTraining
) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    reduced = bench.engine(engine, module, data, training).run(start, COHORT, 3, 0.2, free())
    updates = [by_hand(module, start, data, training, int(client), 3, 0.2) for client in COHORT]
    assert close(reduced.total, np.sum(updates, axis=0))
    assert close(reduced.norms, np.linalg.norm(updates, axis=1))
    assert not reduced.clipped.any()
    assert not reduced.discarded.any()
    assert (reduced.norms[[0, 7]] == 0).all()  # nobody's data, nothing learnt


@pytest.mark.full(but_every=5)
@every_engine
def test_clips_every_client_to_its_own_bound(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    updates = np.array(
        [by_hand(module, start, data, STEPS, int(client), 0, 0.2) for client in COHORT]
    )
    norms = np.linalg.norm(updates, axis=1)
    bounds = np.linspace(0.02, 2, len(SIZES)) * norms.max()
    reduced = bench.engine(engine, module, data, STEPS).run(start, COHORT, 0, 0.2, bounds)
    scale = np.minimum(1, bounds[COHORT] / np.where(norms > 0, norms, 1))
    assert close(reduced.total, scale @ updates)
    assert reduced.clipped.tolist() == (norms > bounds[COHORT]).tolist()
    assert reduced.clipped.any()
    assert not reduced.clipped.all()


@pytest.mark.full(but=["clientwise-logistic"])
@every_engine
def test_same_bits_from_run_to_run(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    first = bench.engine(engine, module, data, MOMENTUM)
    once = first.run(start, COHORT, 1, 0.1, free())
    other = first.run(start, COHORT, 2, 0.1, free())
    assert same(once, first.run(start, COHORT, 1, 0.1, free()))
    assert same(
        once, bench.engine(engine, module, data, MOMENTUM).run(start, COHORT, 1, 0.1, free())
    )
    assert not same(once, other)


@pytest.mark.full(but_every=5)
@every_engine
def test_leaves_model_start_and_torch_alone(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    kept, state, threads = start.clone(), torch.random.get_rng_state(), torch.get_num_threads()
    bench.engine(engine, module, Data(MODELS[model][1]), STEPS).run(start, COHORT, 1, 0.1, free())
    assert torch.equal(start, kept)
    assert torch.equal(flat_vector(module), kept)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@every_engine
def test_empty_cohort_is_a_sum_of_nothing(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    reduced = bench.engine(engine, module, Data(MODELS[model][1]), STEPS).run(
        start, np.zeros(0, dtype=np.int64), 1, 0.1, free()
    )
    assert reduced.total.dtype == np.float64
    assert not reduced.total.any()
    assert not reduced.answers.answered
    assert not reduced.answers.discarded


@pytest.mark.full(but_every=5)
@every_engine
def test_cohort_of_empty_clients(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    reduced = bench.engine(engine, module, Data(MODELS[model][1]), STEPS).run(
        start, np.array([0, 7]), 1, 0.1, free()
    )
    assert not reduced.total.any()
    assert reduced.norms.tolist() == [0, 0]
    assert not reduced.discarded.any()


@pytest.mark.full(but_every=5)
@every_engine
def test_one_client_is_plain_sgd(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    # every step sees all examples, so their order is irrelevant
    whole = LocalTraining(batch_size=1000, steps=6)
    reduced = bench.engine(engine, module, data, whole).run(start, np.array([5]), 1, 0.3, free())
    plain = copy.deepcopy(module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3)
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(plain(data.features[data.shards[5]]), data.labels[data.shards[5]]).backward()
        optimizer.step()
    assert close(reduced.total, (flat_vector(plain) - start).numpy())


@pytest.mark.full(but=["reference-logistic", "clientwise-logistic"])
@every_engine
def test_statistics_follow_the_order_of_the_cohort(bench: Bench, engine: str, model: str) -> None:
    module, start = bench.start(model)
    running = bench.engine(engine, module, Data(MODELS[model][1]), EPOCHS)
    straight = running.run(start, COHORT, 1, 0.1, free())
    order = np.random.default_rng(0).permutation(len(COHORT))
    mixed = running.run(start, COHORT[order], 1, 0.1, free())
    assert np.allclose(mixed.norms, straight.norms[order], rtol=TOLERANCE, atol=0)
    assert close(mixed.total, straight.total)


@pytest.mark.full(but=["reference-logistic", "clientwise-logistic"])
@every_engine
def test_a_poisoned_client_is_flagged_and_counts_as_zero(
    bench: Bench, engine: str, model: str
) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    data.features[data.shards[4]] = math.nan
    data.features[data.shards[9][2]] = math.inf
    running = bench.engine(engine, module, data, STEPS)
    reduced = running.run(start, COHORT, 1, 0.1, free())
    assert COHORT[reduced.discarded].tolist() == [4, 9]
    assert (reduced.norms[reduced.discarded] == 0).all()
    healthy = [int(client) for client in COHORT if client not in (4, 9)]
    assert close(
        reduced.total,
        np.sum([by_hand(module, start, data, STEPS, client, 1, 0.1) for client in healthy], axis=0),
    )
    clean = running.run(start, np.array(healthy), 1, 0.1, free())
    assert np.isfinite(clean.total).all()  # nothing stays behind


@pytest.mark.full(but_every=2)
@dense_models
def test_a_client_that_diverges_is_flagged(bench: Bench, engine: str) -> None:
    module, start = bench.start("mlp")
    reduced = bench.engine(engine, module, Data(), STEPS).run(start, COHORT, 1, 1e30, free())
    assert COHORT[~reduced.discarded].tolist() == [0, 7]  # those who took no step
    assert not reduced.total.any()


@pytest.mark.full(but=["reference"])
@dense_models
def test_engines_agree_over_several_rounds(bench: Bench, engine: str) -> None:
    module, start = bench.start("mlp")
    data = Data()
    ends = []
    for name in ("reference", engine):
        running, parameters = bench.engine(name, module, data, STEPS), start.clone()
        for t in range(1, 6):
            total = running.run(parameters, COHORT, t, 0.1, np.full(len(SIZES), 0.3)).total
            parameters = parameters + torch.from_numpy(total / len(COHORT)).float()
        ends.append((parameters - start).numpy())
    assert close(ends[1], ends[0])


@pytest.mark.full
def test_dropout_is_the_same_in_every_engine(bench: Bench) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, 3))
    start = flat_vector(module)
    names = ("reference", "clientwise", "clientwise-2", "lossy")
    first, *others = (
        bench.engine(name, module, Data(), STEPS).run(start, COHORT, 1, 0.1, free())
        for name in names
    )
    assert all(close(other.total, first.total) for other in others)


@pytest.mark.full(but=["mlp-training0"])
@pytest.mark.parametrize("training", [MOMENTUM, SHAPED])
@pytest.mark.parametrize("model", ["mlp", "conv"])
def test_workers_change_no_bit(
    model: str, training: LocalTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedspend.engines.clientwise._BLOCK_CLIENTS", 2)  # more blocks than workers
    bench = Bench()
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    results = []
    for count in (0, 1, 2, 3):
        engine = ClientwiseEngine(data.work(module), count)
        running = Running(engine, training)
        results.append(
            [running.run(start, COHORT, t, 0.1, np.full(len(SIZES), 0.2)) for t in (1, 2)]
        )
        engine.close()
    for other in results[1:]:
        assert all(same(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.full
def test_spawned_workers_give_the_same_bits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # pretend that forking is unsafe
    module, start = bench.start("mlp")
    a, b = (bench.engine(name, module, Data(), STEPS) for name in ("clientwise", "clientwise-2"))
    assert same(a.run(start, COHORT, 1, 0.1, free()), b.run(start, COHORT, 1, 0.1, free()))


@pytest.mark.full
def test_threads_and_blocks_of_the_dense_engine_change_no_bit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, start = bench.start("mlp")
    results = []
    for threads, size in ((1, None), (2, None), (3, None), (1, 1), (2, 20_000)):
        torch.set_num_threads(threads)
        if size is not None:
            monkeypatch.setattr(dense, "_BLOCK_BYTES", size)
        running = Running(DenseEngine(Data().work(module)), EPOCHS)
        results.append(running.run(start, COHORT, 1, 0.1, free()))
        assert torch.get_num_threads() == threads
    assert all(same(results[0], other) for other in results[1:])


@pytest.mark.full(
    but=[
        "training0-reference-logistic",
        "training0-clientwise-logistic",
        "training1-clientwise-conv",
        "training1-flower-logistic",
    ]
)
@every_engine
@pytest.mark.parametrize(
    "training", [SHAPED, SHAPED_MOMENTUM, LocalTraining(8, steps=6, shape=Shape(blur=0.8))]
)
def test_shaped_updates_are_those_by_hand(
    bench: Bench, engine: str, model: str, training: LocalTraining
) -> None:
    """Every client with a ball of its own, some of them never left."""
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    radius = np.where(np.arange(len(SIZES)) % 3 == 0, 10.0, 0.05 + 0.02 * np.arange(len(SIZES)))
    running = bench.engine(engine, module, data, training)
    for client in COHORT:
        expected = by_hand(module, start, data, training, int(client), 1, 0.4, radius[client])
        norm = np.linalg.norm(expected)
        reduced = running.run(start, np.array([client]), 1, 0.4, radius)
        assert reduced.norms[0] == pytest.approx(norm, rel=1e-4)
        assert close(reduced.total, expected * min(1.0, radius[client] / max(norm, 1e-12)))


@pytest.mark.full(but_every=2)
@dense_models
def test_who_is_outside_is_decided_by_all_layers(bench: Bench, engine: str) -> None:
    """Half of the clients are far outside after a step; the others are so only by all of their
    layers together.
    """
    module, start = bench.start("mlp")
    data, training = Data(), LocalTraining(batch_size=8, steps=2, shape=Shape(blur=0.8))
    once = LocalTraining(batch_size=8, steps=1)
    clients = np.array([1, 2, 3, 4, 5, 6])
    first = {
        int(client): by_hand(module, start, data, once, int(client), 1, 0.4) for client in clients
    }
    largest = max(np.split(np.arange(start.numel()), np.cumsum(layer_sizes(module))[:-1]), key=len)
    radius = np.full(len(SIZES), np.inf)
    for client, moved in first.items():
        part, whole = np.linalg.norm(moved[largest]), np.linalg.norm(moved)
        assert part < 0.99 * whole
        radius[client] = part / 2 if client % 2 else (part + whole) / 2
    # the same batches in the first step, whatever the number of steps
    assert all(
        np.array_equal(
            *(
                step_batches(RANDOMNESS.generator("batches", 1, int(n)), SIZES[n], t)[0]
                for t in (once, training)
            )
        )
        for n in clients
    )
    expected = [
        by_hand(module, start, data, training, int(client), 1, 0.4, radius[client])
        for client in clients
    ]
    reduced = bench.engine(engine, module, data, training).run(start, clients, 1, 0.4, radius)
    assert reduced.norms == pytest.approx([np.linalg.norm(update) for update in expected], rel=1e-5)


@pytest.mark.full(but=["clientwise-logistic"])
@every_engine
def test_shaping_that_cannot_act_changes_no_bit(bench: Bench, engine: str, model: str) -> None:
    """A ball that nobody leaves, and a sparsity that keeps every value."""
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    plain = bench.engine(engine, module, data, STEPS).run(start, COHORT, 1, 0.4, free())
    for shape in (Shape(), Shape(blur=0.5), Shape(lus=1e-12)):
        training = LocalTraining(batch_size=8, steps=4, shape=shape)
        assert same(
            plain, bench.engine(engine, module, data, training).run(start, COHORT, 1, 0.4, free())
        )


@pytest.mark.full(but_every=5)
@every_engine
def test_lus_keeps_exactly_so_many_values_of_each_layer(
    bench: Bench, engine: str, model: str
) -> None:
    module, start = bench.start(model)
    for lus in (0.1, 0.5, 0.9):
        training = LocalTraining(batch_size=8, steps=6, shape=Shape(lus=lus))
        running = bench.engine(engine, module, Data(MODELS[model][1]), training)
        plain = by_hand(module, start, Data(MODELS[model][1]), LocalTraining(8, steps=6), 5, 1, 0.4)
        update = running.run(start, np.array([5]), 1, 0.4, free()).total
        first = 0
        for size in layer_sizes(module):
            here, before = update[first : first + size], plain[first : first + size]
            first += size
            # parameters that the loss does not see do not move; neither do dead units
            assert np.count_nonzero(here) == min(kept(size, lus), np.count_nonzero(before))


@pytest.mark.full(but=["reference-logistic", "clientwise-logistic"])
@every_engine
def test_votes_are_cast_and_bounded_in_place_of_updates(
    bench: Bench, engine: str, model: str
) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    data.features[data.shards[4]] = math.nan
    clips, asked = np.linspace(0.1, 2, len(SIZES)), np.array([4, 0, 5])
    running = bench.engine(engine, module, data, STEPS)
    reduced = running.run(start, COHORT, 3, 0.2, clips, asked=asked, size=9)
    assert COHORT[reduced.discarded].tolist() == [4]
    expected = np.zeros((3, 3))
    for client in COHORT:
        if client == 4 or not len(data.shards[client]):
            continue
        local = (
            start
            + torch.from_numpy(by_hand(module, start, data, STEPS, int(client), 3, 0.2)).float()
        )
        chosen = scores(module, local, data.public[asked]).argmax(dim=1).numpy()
        expected[np.arange(3), chosen] += clips[client] / math.sqrt(3)
    assert close(reduced.total.reshape(3, 3), expected)


@pytest.mark.full(but_every=5)
@every_engine
def test_the_bit_says_who_was_within_the_clip_and_nothing_of_those_without_rows(
    bench: Bench, engine: str, model: str
) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    data.features[data.shards[4]] = math.nan
    clips = np.where(np.arange(len(SIZES)) % 2 == 0, 1e-4, 1e4)
    found = bench.engine(engine, module, data, STEPS).run(start, COHORT, 1, 0.2, clips, bit=True)
    bits = {
        int(client): contribution.bit
        for client, contribution in found.contributions.items()
        if client != "a stranger"
    }
    assert bits == {
        0: 0.0,
        1: 0.5,
        2: -0.5,
        3: 0.5,
        4: -0.5,
        5: 0.5,
        6: -0.5,
        7: 0.0,
        9: 0.5,
        10: -0.5,
    }
    assert found.answers.bits == 0.0


@pytest.mark.full(but=["reference-logistic", "clientwise-logistic"])
@every_engine
def test_a_poisoned_client_is_flagged_although_shaped(
    bench: Bench, engine: str, model: str
) -> None:
    module, start = bench.start(model)
    data = Data(MODELS[model][1])
    data.features[data.shards[4]] = math.nan
    data.features[data.shards[9][2]] = math.inf
    running, reduce = bench.engine(engine, module, data, SHAPED), np.full(len(SIZES), 0.1)
    reduced = running.run(start, COHORT, 1, 0.1, reduce)
    assert COHORT[reduced.discarded].tolist() == [4, 9]
    assert np.isfinite(reduced.total).all()
    assert running.run(start, np.array([4]), 1, 0.1, reduce).discarded.all()
    # has no rows; nothing of client 4 stays behind
    assert not running.run(start, np.array([0]), 1, 0.1, reduce).discarded.any()


class Fragile(nn.Module):
    """Ends its process, or does something else to it, once a file is there."""

    def __init__(self, how: str, sign: Path) -> None:
        super().__init__()
        self.inner, self.how, self.sign, self.parent = mlp(), how, sign, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sign.exists():
            if self.how == "interrupt":
                os.kill(self.parent, signal.SIGINT)
                time.sleep(600)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        result: torch.Tensor = self.inner(x)
        return result


@pytest.mark.full
def test_a_failing_worker_is_a_clear_error_and_the_next_run_works(
    bench: Bench, tmp_path: Path
) -> None:
    start = bench.start("mlp")[1]
    engine = bench.engine("clientwise-2", Fragile("kill", tmp_path / "now"), Data(), STEPS)
    before = engine.run(start, COHORT, 1, 0.1, free())
    (tmp_path / "now").touch()
    with pytest.raises(workers.WorkerFailed, match="SIGKILL"):
        engine.run(start, COHORT, 1, 0.1, free())
    assert not multiprocessing.active_children()
    (tmp_path / "now").unlink()
    assert same(before, engine.run(start, COHORT, 1, 0.1, free()))


def test_a_worker_killed_between_rounds_is_noticed(bench: Bench) -> None:
    module, start = bench.start("mlp")
    engine = bench.engine("clientwise-2", module, Data(), STEPS)
    engine.run(start, COHORT, 1, 0.1, free())
    multiprocessing.active_children()[0].kill()
    with pytest.raises(workers.WorkerFailed, match="SIGKILL"):
        engine.run(start, COHORT, 2, 0.1, free())


@pytest.mark.full
def test_an_interrupt_leaves_no_worker(bench: Bench, tmp_path: Path) -> None:
    start = bench.start("mlp")[1]
    engine = bench.engine("clientwise-2", Fragile("interrupt", tmp_path / "now"), Data(), STEPS)
    (tmp_path / "now").touch()
    began = time.monotonic()
    # a test run in the background may have it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.run(start, COHORT, 1, 0.1, free())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not multiprocessing.active_children()
    assert time.monotonic() - began < 300, "it waited for what the workers do"


ORPHANS = """
import multiprocessing, time
import numpy as np, torch
from torch import nn
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.noise.randomness import Randomness
shards = {str(n): np.arange(9) for n in range(4)}
labels = torch.zeros(9, dtype=torch.int64)
work = Workload(nn.Linear(4, 2), torch.zeros(9, 4), labels, shards, Randomness(0))
shared = RoundTask(1, np.zeros(10, dtype=np.float32), LocalTraining(batch_size=4, steps=1), 0.1, 10)
engine = ClientwiseEngine(work, 2)
list(engine.run([ClientTask(str(n), n, 1.0, shared) for n in range(4)]))
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_workers_leave_when_the_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and any(_running(pid) for pid in pids):
        time.sleep(0.1)
    assert not any(_running(pid) for pid in pids)


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


MEMORY = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
from torch import nn
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Workload
from fedspend.engines.local import make_engine
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import gather
hidden = nn.Linear(784, 2088)
middle = nn.ReLU() if sys.argv[1] == "relu" else nn.Tanh()
module = nn.Sequential(nn.Flatten(), hidden, middle, nn.Linear(2088, 10))
clients = 50
start = nn.utils.parameters_to_vector(module.parameters()).detach()
shards = {str(n): rows for n, rows in enumerate(np.array_split(np.arange(100), clients))}
labels = torch.zeros(100, dtype=torch.int64)
work = Workload(module, torch.randn(100, 1, 28, 28), labels, shards, Randomness(0))
engine = make_engine("local", work, workers=1)
shared = RoundTask(1, start.numpy(), LocalTraining(batch_size=4, steps=1), 0.1, start.numel())
peaks = []
for cohort in (20, clients):
    tasks = [ClientTask(str(n), n, 1.0, shared) for n in range(cohort)]
    gather(tasks, engine.run(tasks), start.numel())
    status = open("/proc/self/status").read()  # not ru_maxrss, which starts at the parent's
    peaks.append(int(status.split("VmHWM:")[1].split()[0]) / 1024)
print(start.numel(), engine.name, peaks[1] - peaks[0])
"""


@pytest.mark.full
@pytest.mark.parametrize(("layer", "engine"), [("relu", "dense"), ("tanh", "clientwise")])
def test_memory_does_not_grow_with_the_cohort(layer: str, engine: str) -> None:
    """From 20 to 50 clients of 1.66M parameters: raw updates would grow by 190 MiB, in float64 by
    380.
    """
    out = subprocess.run(
        [sys.executable, "-c", MEMORY, layer], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(out[0]) > 1_650_000
    assert out[1] == engine
    assert float(out[2]) < 64


def test_make_engine_chooses() -> None:
    def work(module: nn.Module) -> Workload:
        return Data().work(module)

    assert make_engine("local", work(logistic())).name == "dense"
    assert (
        make_engine("local", work(nn.Sequential(nn.Linear(12, 3), nn.Sigmoid())), workers=0).name
        == "clientwise"
    )
    assert make_engine("reference", work(logistic())).name == "reference"
    with pytest.raises(InvalidInput, match="'remote'"):
        make_engine("remote", work(logistic()))
    with pytest.raises(InvalidInput, match="workers"):
        make_engine("local", work(logistic()), workers=-1)
    with pytest.raises(InvalidInput, match="BatchNorm1d"):
        make_engine("local", work(nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3))))


def test_what_the_dense_engine_supports() -> None:
    linear = nn.Linear(3, 3)
    frozen = nn.Linear(3, 3).requires_grad_(False)
    assert supports(linear)
    assert supports(mlp())
    chains: list[list[nn.Module]] = [
        [linear, linear],
        [nn.ReLU(), linear],
        [linear, nn.ReLU()],
        [frozen, linear],
        [nn.Flatten(0), linear],
        [nn.Flatten()],
        [linear, nn.Dropout(), nn.Linear(3, 2)],
    ]
    assert not any(supports(nn.Sequential(*chain)) for chain in chains)
    # what the hook does, a product of matrices would leave out
    hooked = nn.Sequential(nn.Linear(12, 3))
    hooked[0].register_forward_hook(lambda _, __, leaving: 2 * leaving)
    assert not supports(hooked)
    with pytest.raises(InvalidInput, match="local"):
        DenseEngine(Data((2, 4, 4)).work(Branches()))


@pytest.mark.parametrize("model", MODELS)
def test_evaluation(model: str) -> None:
    module, start = Bench().start(model)
    data = Data(MODELS[model][1], sizes=(1500,))
    other = start + 0.1
    loss, accuracy = evaluate(module, other, data.features, data.labels)
    moved = copy.deepcopy(module)
    load_vector(moved, other)
    with torch.no_grad():
        scores = moved(data.features)
    assert loss == pytest.approx(float(cross_entropy(scores, data.labels)), rel=1e-5)
    assert accuracy == pytest.approx(
        float((scores.argmax(1) == data.labels).float().mean()), abs=1e-3
    )
    assert module.training
    assert torch.equal(flat_vector(module), start)
    assert math.isnan(evaluate(module, start, data.features[:0], data.labels[:0])[0])
    assert majority_share(torch.tensor([1, 1, 0])) == pytest.approx(2 / 3)
