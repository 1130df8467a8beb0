"""Every loss, in every engine: fast paths equal the reference, a client depends on nobody else, and
the gradients of single records are those of one record at a time.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from contracts.workshop import ENGINES, RANDOMNESS, outcome, tasks_for
from torch import nn

from fedspend.client.bounding import clip_factors
from fedspend.client.gradients import GeneralSum, clipped_sum
from fedspend.client.task import LocalTraining
from fedspend.engines.base import Workload
from fedspend.engines.local import local
from fedspend.models.building import build
from fedspend.models.flat import flat_vector, load_vector, trainable
from fedspend.tasks.kinds import IGNORED
from fedspend.tasks.task import Task, task_of

SIZES = (0, 1, 3, 8, 19, 11)
STEPS = LocalTraining(batch_size=8, steps=3, momentum=0.5)


def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.huber_loss(output[:, 0], target, reduction="none")


def tokens(generator: torch.Generator, rows: int) -> torch.Tensor:
    """Sequences of 1 to 6 tokens, padded with 0."""
    drawn = torch.randint(1, 7, (rows, 6), generator=generator)
    lengths = torch.randint(1, 7, (rows, 1), generator=generator)
    return torch.where(torch.arange(6) < lengths, drawn, 0).float()


def linear(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs))


def sequence(name: str, outputs: int, *, every_place: bool) -> nn.Module:
    return build(
        name,
        input_shape=(6,),
        outputs=outputs,
        seed=1,
        every_place=every_place,
        vocabulary=7,
        width=4,
    )


def tuned() -> nn.Module:
    return build(
        "fine-tune", input_shape=(4,), outputs=1, seed=1, backbone="mlp", hidden=[6, 5], rank=2
    )


def drawn(name: str) -> tuple[Task, nn.Module, torch.Tensor, torch.Tensor]:
    """A task, a model, and rows with targets."""
    generator, rows = torch.Generator().manual_seed(5), sum(SIZES)
    features = torch.randn(rows, 4, generator=generator)
    numbers = torch.randn(rows, generator=generator)
    bits = torch.randint(0, 2, (rows,), generator=generator)
    torch.manual_seed(2)
    if name == "squared":
        return task_of("squared"), linear(1), features, numbers
    if name == "absolute":
        wide = torch.randn(rows, 2, generator=generator)
        return task_of("absolute"), linear(2), features, wide
    if name == "binary":
        return task_of("binary"), linear(1), features, bits
    if name == "multi-label":
        several = torch.randint(0, 2, (rows, 3), generator=generator).float()
        return task_of("multi-label"), linear(3), features, several
    if name == "own":
        return task_of(huber), linear(1), features, numbers
    if name == "fine-tune":
        return task_of("squared"), tuned(), features, numbers
    words = tokens(generator, rows)
    if name.endswith("next"):
        following = torch.where(words > 0, words, IGNORED).long().roll(-1, 1)
        following[:, -1] = IGNORED
        module = sequence(name.removesuffix("-next"), 7, every_place=True)
        return task_of("next-token"), module, words, following
    return task_of(), sequence(name, 2, every_place=False), words, bits


DENSE = ("squared", "absolute", "binary", "multi-label")
TOKENS = ("lstm", "transformer", "lstm-next", "transformer-next")
CASES = (*DENSE, "own", "fine-tune", *TOKENS)


def work_of(name: str, features: torch.Tensor | None = None) -> Workload:
    task, module, rows, targets = drawn(name)
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return Workload(
        module,
        rows if features is None else features,
        targets,
        {str(n): shard for n, shard in enumerate(shards)},
        RANDOMNESS,
        task=task,
        integers=name in TOKENS,
    )


def played(engine: str, work: Workload) -> dict[str, np.ndarray]:
    return played_with(engine, work, STEPS, 0.5)


def played_with(
    engine: str, work: Workload, training: LocalTraining, clip: float
) -> dict[str, np.ndarray]:
    made = ENGINES[engine](work)
    start = flat_vector(work.module)
    asked = tasks_for(start, np.arange(len(SIZES)), training, lr=0.1, clips=np.full(9, clip))
    try:
        return {who: one.vector for who, one in outcome(made, asked).contributions.items()}
    finally:
        made.close()


def fast_engines(name: str) -> list[str]:
    return ["dense", "clientwise"] if name in DENSE else ["clientwise"]


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.full(but=["multi-label"])
@pytest.mark.parametrize("name", CASES)
def test_fast_engines_equal_the_reference(name):
    wanted = played("reference", work_of(name))
    assert not wanted["0"].any()  # nobody's rows, nothing learnt
    assert max(map(np.linalg.norm, wanted.values())) > 0.01
    for engine in (*fast_engines(name), "lossy"):
        found = played(engine, work_of(name))
        for client, vector in wanted.items():
            assert found[client] == pytest.approx(vector, abs=2e-5), (engine, client)


@pytest.mark.full(but=["multi-label", "lstm", "transformer-next"])
@pytest.mark.parametrize("name", CASES)
def test_not_a_bit_depends_on_anybody_else(name):
    """The rows of client 4 are replaced; all others send the same bits."""
    _, _, rows, _ = drawn(name)
    other = rows.clone()
    first = sum(SIZES[:4])
    other[first : first + SIZES[4]] = 1.0 if name in TOKENS else 1e6
    for engine in fast_engines(name):
        before, after = played(engine, work_of(name)), played(engine, work_of(name, other))
        assert not np.array_equal(before["4"], after["4"])
        for client in before:
            assert client == "4" or before[client].tobytes() == after[client].tobytes()


def by_hand(work: Workload, rows: torch.Tensor, clip: float) -> np.ndarray:
    """One record at a time, by autograd."""
    load_vector(work.module, flat_vector(work.module))
    total = np.zeros(flat_vector(work.module).numel())
    parameters = [parameter for _, parameter in trainable(work.module)]
    for n in rows.tolist():
        row = work.features[n : n + 1]
        output = work.module(row.long() if work.integers else row)
        loss = work.task.rows(output, work.labels[n : n + 1]).sum()
        parts = torch.autograd.grad(loss, parameters)
        one = torch.cat([part.reshape(-1) for part in parts]).double().numpy()
        total += one * min(1.0, clip / max(np.linalg.norm(one), 1e-300))
    return total


@pytest.mark.full(
    but=["absolute", "binary", "multi-label", "own", "fine-tune", "lstm", "lstm-next"]
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_sum_of_clipped_gradients_is_that_of_single_records(name):
    work = work_of(name)
    rows, start = torch.arange(sum(SIZES)), flat_vector(work.module)
    given = work.features.long() if work.integers else work.features
    wanted = by_hand(work, rows, clip=0.3)
    assert np.linalg.norm(wanted) > 0.1
    for sums in (
        clipped_sum(work.module, 0.3, task=work.task),
        GeneralSum(work.module, partial(clip_factors, bound=0.3), work.task),
    ):
        assert sums(start, given, work.labels) == pytest.approx(wanted, abs=1e-4)
    nobody = clipped_sum(work.module, 0.3, task=work.task)(start, given[:0], work.labels[:0])
    assert not nobody.any()


def test_the_engine_of_choice_is_batched_where_it_can_be():
    assert {name: local(work_of(name), 1).name for name in ("squared", "own", "lstm")} == {
        "squared": "dense",
        "own": "clientwise",
        "lstm": "clientwise",
    }


@pytest.mark.parametrize("name", TOKENS)
def test_padding_changes_nothing_before_it(name):
    """The same sequence, padded further, gets the same scores."""
    _, module, rows, _ = drawn(name)
    short = rows[:, :4].clone()
    short[:, 3] = 0
    long = torch.cat([short, torch.zeros(len(rows), 2)], dim=1)
    one, other = module(short.long()), module(long.long())
    assert torch.allclose(one, other[:, :4] if one.dim() == 3 else other, atol=1e-5)
    assert bool(torch.isfinite(one).all())


def test_only_what_is_trained_is_sent():
    work = work_of("fine-tune")
    every = sum(parameter.numel() for parameter in work.module.parameters())
    assert 0 < flat_vector(work.module).numel() < every
    names = {name for name, _ in trainable(work.module)}
    assert {name.rpartition(".")[2] for name in names} == {"weight", "bias", "up", "down"}
