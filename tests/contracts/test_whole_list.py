"""Every optimiser, every loss and every model that has a name: in every engine, depending on nobody
else, and the same to the bit after a kill. A new entry is missed here, so nobody forgets it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.test_optimisers import WAYS, training
from contracts.test_tasks import CASES, SIZES, TOKENS, drawn, fast_engines, played_with, work_of
from contracts.workshop import ENGINES, RANDOMNESS, outcome, tasks_for
from lib.runs import killed

import fedspend
from fedspend.client.task import LocalTraining
from fedspend.engines.base import Workload
from fedspend.models.building import MODELS, build
from fedspend.models.flat import flat_vector
from fedspend.server.steps import SERVER_STEPS
from fedspend.tasks.table import LOSSES

OTHER = 4  # the client whose rows change
TEN_TIMES = "ten times as many"
CHANGES = ("replaced", "not a number", "emptied", TEN_TIMES)
# what a model of this name needs, and the shape of its rows
SHAPES = {
    "logistic": ((4,), {}),
    "linear": ((4,), {}),
    "mlp": ((4,), {"hidden": [5]}),
    "cnn": ((1, 28, 28), {}),
    "lenet": ((1, 28, 28), {}),
    "small-cnn": ((1, 28, 28), {}),
    "resnet18": ((3, 8, 8), {}),
    "lstm": ((6,), {"vocabulary": 7, "width": 4}),
    "transformer": ((6,), {"vocabulary": 7, "width": 4}),
    "fine-tune": ((4,), {"backbone": "mlp", "hidden": [5, 4], "rank": 1}),
}
BATCHED = ("logistic", "linear", "mlp")
FEW = LocalTraining(batch_size=4, steps=2)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_list_is_whole():
    built_in = set(MODELS.names) - set(MODELS.own)
    assert set(SHAPES) == built_in
    named = {drawn(name)[0].name for name in CASES}
    assert named >= set(LOSSES.names) - set(LOSSES.own)


def changed(work: Workload, change: str, *, tokens: bool) -> Workload:
    """The same work with other rows of one client."""
    shard = work.shards[str(OTHER)]
    shards = {client: work.shards[client] for client in map(str, range(len(SIZES)))}
    if change == "emptied":
        return replace(work, shards=shards | {str(OTHER): shard[:0]})
    if change == TEN_TIMES:
        return replace(work, shards=shards | {str(OTHER): np.tile(shard, 10)})
    features = work.features.clone()
    wild = 1e6 if change == "replaced" else float("nan")
    features[torch.from_numpy(shard)] = 1.0 if tokens else wild  # there is no such token
    return replace(work, features=features)


def check_independent(work: Workload, engines: list[str], how: LocalTraining, *, tokens: bool):
    for engine in engines:
        before = played_with(engine, work, how, 0.5)
        for change in CHANGES:
            after = played_with(engine, changed(work, change, tokens=tokens), how, 0.5)
            assert np.isfinite(after[str(OTHER)]).all()
            for client in map(str, range(len(SIZES))):
                if client != str(OTHER):
                    same = np.array_equal(before[client], after[client])
                    assert same, (engine, change, client)


@pytest.mark.full(but=["proximal"])
@pytest.mark.parametrize("way", WAYS)
def test_no_optimiser_lets_a_client_depend_on_others(way):
    check_independent(
        work_of("squared"), ["dense", "clientwise", "reference"], training(way), tokens=False
    )


@pytest.mark.full(but=["lstm"])
@pytest.mark.parametrize("name", CASES)
def test_no_loss_lets_a_client_depend_on_others(name):
    check_independent(work_of(name), fast_engines(name), FEW, tokens=name in TOKENS)


def work_with(model: str, rows_of_last: float | None = None) -> Workload:
    """Rows of three classes for a model of this name: three clients of two rows each."""
    shape, options = SHAPES[model]
    generator, tokens = torch.Generator().manual_seed(3), "vocabulary" in options
    features = (
        torch.randint(1, 7, (6, *shape), generator=generator).float()
        if tokens
        else torch.randn(6, *shape, generator=generator)
    )
    if rows_of_last is not None:
        features[4:] = 1.0 if tokens else rows_of_last
    return Workload(
        build(model, input_shape=shape, outputs=3, seed=1, every_place=False, **options),
        features,
        torch.tensor([0, 1, 2, 0, 1, 2]),
        {str(n): np.arange(2 * n, 2 * n + 2) for n in range(3)},
        RANDOMNESS,
        integers=tokens,
    )


def one_step(engine: str, work: Workload) -> dict[str, np.ndarray]:
    made, how = ENGINES[engine](work), LocalTraining(batch_size=2, steps=1)
    start = flat_vector(work.module)
    asked = tasks_for(start, np.arange(3), how, lr=0.1, clips=np.full(3, 0.5))
    try:
        return {who: one.vector for who, one in outcome(made, asked).contributions.items()}
    finally:
        made.close()


@pytest.mark.full(
    but=["logistic", "linear", "mlp", "small-cnn", "lstm", "transformer", "fine-tune"]
)
@pytest.mark.parametrize("model", SHAPES)
def test_every_model_is_the_same_in_every_engine_and_depends_on_nobody_else(model):
    wanted = one_step("reference", work_with(model))
    assert max(map(np.linalg.norm, wanted.values())) > 0.01
    for engine in ("clientwise", *(["dense"] if model in BATCHED else [])):
        before = one_step(engine, work_with(model))
        after = one_step(engine, work_with(model, float("nan")))
        for client, vector in wanted.items():
            np.testing.assert_allclose(before[client], vector, rtol=0, atol=2e-5)
            assert client == "2" or np.array_equal(before[client], after[client]), engine


# --- a kill ---------------------------------------------------------------------------------------

ROUNDS = 3


@pytest.fixture(scope="module")
def plan():
    return fedspend.plan(
        epsilons=[9.0] * len(SIZES), rounds=ROUNDS, rate=0.8, delta=1e-3, accountant="rdp"
    )


def runs_the_same_after_a_kill(tmp_path, plan, name, **options):
    """Killed after its first round and again after its second, a run ends with the same bytes."""
    task, _, features, targets = drawn(name)
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    rows = features.long() if name in TOKENS else features
    clients = [(rows[shard].numpy(), targets[shard].numpy()) for shard in shards]

    def go(folder, *, resume=False):
        fedspend.train(
            clients=clients,
            model=drawn(name)[1],
            plan=plan,
            test=clients[-1],
            loss=task.of_rows if task.own else task.name,
            metrics=[] if task.own else None,
            output=tmp_path / folder,
            resume=resume,
            **(
                {"lr": 0.1, "batch_size": 4, "local_steps": 2, "randomness": "seeded", "seed": 3}
                | options
            ),
        )

    go("whole")
    with killed(round=1):
        go("killed")
    with killed(round=2):
        go("killed", resume=True)
    go("killed", resume=True)
    for file in ("metrics.jsonl", "checkpoint.safetensors", "model.safetensors"):
        whole, again = ((tmp_path / one / file).read_bytes() for one in ("whole", "killed"))
        assert whole == again, file


@pytest.mark.full(but=["multi-label"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", CASES)
def test_every_loss_and_model_goes_on_after_a_kill_to_the_bit(name, tmp_path, plan):
    runs_the_same_after_a_kill(tmp_path, plan, name)


@pytest.mark.full(but=["proximal"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("way", WAYS)
def test_every_optimiser_goes_on_after_a_kill_to_the_bit(way, tmp_path, plan):
    runs_the_same_after_a_kill(tmp_path, plan, "squared", **WAYS[way])


@pytest.mark.full(but_every=3)
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", SERVER_STEPS.names)
def test_every_optimiser_of_the_server_goes_on_after_a_kill_to_the_bit(name, tmp_path, plan):
    momentum = {"server_momentum": 0.9} if name == "sgd" else {}
    options = {"server_optimizer": name, "server_lr": 0.1, "tail_average": 2, **momentum}
    runs_the_same_after_a_kill(tmp_path, plan, "binary", **options)
