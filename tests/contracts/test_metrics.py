"""Private metrics in every engine: the same number wherever a client runs, and nobody else's
held-out rows change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.workshop import (
    COHORT,
    ENGINES,
    MODELS,
    PAIRS,
    SIZES,
    Data,
    Outcome,
    outcome,
    tasks_for,
)

from fedspend.client.task import LocalTraining
from fedspend.engines.base import Engine, HeldOut, Workload
from fedspend.models.flat import flat_vector
from fedspend.noise.numbers import FEWEST_STEPS, NumberGrid

TRAINING = LocalTraining(batch_size=8, steps=2)
GRIDS = {
    "central": NumberGrid(FEWEST_STEPS),
    "distributed": NumberGrid.of(3.0, len(SIZES), distributed=True),
}
VICTIM = 5


def held_out(shape: tuple[int, ...], seed: int = 3, many: int = 9) -> HeldOut:
    """A few rows for every client but two; `many` for the victim, drawn by `seed`."""
    parts = []
    for number in range(len(SIZES)):
        generator = np.random.default_rng([seed if number == VICTIM else 3, number])
        count = many if number == VICTIM else number % 5
        parts.append((generator.normal(size=(count, *shape)), generator.integers(0, 3, count)))
    ends = np.cumsum([len(labels) for _, labels in parts])
    return HeldOut(
        torch.from_numpy(np.concatenate([rows for rows, _ in parts]).astype(np.float32)),
        torch.from_numpy(np.concatenate([labels for _, labels in parts])),
        {str(n): rows for n, rows in enumerate(np.split(np.arange(ends[-1]), ends[:-1]))},
    )


@pytest.fixture
def play() -> Iterator[Callable[..., Outcome]]:
    opened: list[Engine] = []

    def one(engine: str, model: str, grid: str, held: HeldOut) -> Outcome:
        torch.manual_seed(0)
        module, shape = MODELS[model][0](), MODELS[model][1]
        start = flat_vector(module)
        work: Workload = replace(Data(shape).work(module), held_out=held)
        opened.append(ENGINES[engine](work))
        shared: dict[str, Any] = {"metric": GRIDS[grid], "bit": True}
        return outcome(opened[-1], tasks_for(start, COHORT, TRAINING, round=1, **shared))

    yield one
    for engine in opened:
        engine.close()


def metrics(found: Outcome) -> dict[str, float | None]:
    """Of those who were asked: a lossy engine brings answers of strangers."""
    return {str(n): found.contributions[str(n)].metric for n in COHORT}


@pytest.mark.full(but=["reference-logistic-central", "clientwise-logistic-central"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("engine", "model"), PAIRS)
def test_every_engine_reports_the_metrics_of_the_reference(
    play: Callable[..., Outcome], engine: str, model: str, grid: str
) -> None:
    held = held_out(MODELS[model][1])
    found = play(engine, model, grid, held)
    told = metrics(found)
    assert told == metrics(play("reference", model, grid, held))
    assert found.answers.metrics == sum(number or 0.0 for number in told.values())
    if grid == "central":
        assert {client for client, number in told.items() if number == 0.0} >= {"0", "10"}
        assert len(set(told.values())) > 3, "or nothing was tested"


@pytest.mark.full(but=["clientwise-logistic"])
@pytest.mark.parametrize(("engine", "model"), PAIRS)
def test_nobody_elses_held_out_rows_change_a_metric(
    play: Callable[..., Outcome], engine: str, model: str
) -> None:
    shape = MODELS[model][1]
    before = metrics(play(engine, model, "central", held_out(shape)))
    for seed, many in ((4, 9), (4, 90), (3, 8), (3, 0)):
        after = metrics(play(engine, model, "central", held_out(shape, seed, many)))
        assert {client for client in before if before[client] != after[client]} <= {str(VICTIM)}
        if many == 0:
            assert after[str(VICTIM)] == 0.0


def test_a_metric_is_of_the_model_that_the_round_begins_with(play: Callable[..., Outcome]) -> None:
    torch.manual_seed(0)
    module = MODELS["logistic"][0]()
    held = held_out((12,))
    found = metrics(play("dense", "logistic", "central", replace(held)))
    for client, numbers in held.shards.items():
        if client not in found or len(numbers) == 0:
            continue
        right = module(held.features[numbers]).argmax(dim=1) == held.labels[numbers]
        exact = float(right.double().mean()) - 0.5
        told = found[client]
        assert told is not None
        assert abs(told - exact) < 1 / FEWEST_STEPS
