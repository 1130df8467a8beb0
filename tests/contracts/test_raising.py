"""A client whose work raises, whatever did it, contributes zero, like one whose update is not
finite: nobody else's bits change, the round goes on, and its operator is told. What single records
raise counts as zero in a plan for records.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from contracts.workshop import ENGINES, Data, tasks_for
from torch import nn

import fedspend
from fedspend.client import blocks
from fedspend.client.answering import Answered, ServersAccount, answer
from fedspend.client.bounding import clip_factors
from fedspend.client.contribution import Reply
from fedspend.client.declining import Declined
from fedspend.client.gradients import GeneralSum
from fedspend.client.norm_budgets import Payments
from fedspend.client.state import MemoryStates
from fedspend.client.task import LocalTraining
from fedspend.client.work import contribute
from fedspend.engines.base import HeldOut
from fedspend.engines.dense import DenseEngine
from fedspend.errors import InvalidInput, OperatorWarning
from fedspend.noise.grid import Grid
from fedspend.noise.numbers import NumberGrid
from fedspend.tasks.task import task_of

STEPS = LocalTraining(batch_size=4, steps=3)
SICK, WELL = "2", ("0", "1", "3")


class Picky(nn.Module):
    """As a model with an ordinary assertion about its rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        if bool((x > 100).any()):
            raise ValueError("age out of range")
        found: torch.Tensor = self.inner(x)
        return found


def work(module=None, *, sick=None, **changes):
    """Four clients; a row of one of them holds `sick`."""
    made = Data(sizes=(5, 9, 6, 4)).work(module or Picky())
    if sick is not None:
        made.features[made.shards[SICK][1], 0] = sick
    return replace(made, **changes)


def asked(made, **shared):
    start = torch.nn.utils.parameters_to_vector(made.module.parameters()).detach()
    clips = np.full(4, 0.5)
    return tasks_for(start, range(4), STEPS, clips=clips, **({"bit": True} | shared))


def replies(engine, made, tasks):
    running = ENGINES[engine](made)
    try:
        found = [replace(one) for one in map(kept, running.run(tasks))]
    finally:
        running.close()
    return {one.contribution.client: one for one in found}


def kept(reply):
    assert isinstance(reply, Reply)
    vector = reply.contribution.vector.copy()
    return replace(reply, contribution=replace(reply.contribution, vector=vector))


def same(one, other):
    return one.contribution.to_bytes() == other.contribution.to_bytes()


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    "engine",
    ["reference", "clientwise", "clientwise-2", pytest.param("flower", marks=pytest.mark.full)],
)
def test_a_client_whose_model_raises_contributes_what_one_that_diverged_does(engine):
    if engine not in ENGINES:
        pytest.skip("Flower is not installed: pip install flwr")
    raising, diverging, usual = work(sick=200.0), work(sick=float("nan")), work()
    found = replies(engine, raising, asked(raising))
    nan = replies(engine, diverging, asked(diverging))
    well = replies(engine, usual, asked(usual))
    assert not found[SICK].contribution.vector.any()
    assert found[SICK].contribution.bit == -0.5
    assert same(found[SICK], nan[SICK])
    assert all(same(found[one], well[one]) for one in WELL)
    assert found[SICK].remarks.raised
    assert "ValueError: age out of range (test_raising.py" in found[SICK].remarks.problem


def test_it_adds_its_own_noise():
    grid, usual = Grid(0.01, 0.5, 39), work()
    raising, diverging = work(sick=200.0), work(sick=float("nan"))
    noisy = {"own_deviation": 0.2, "grid": grid}
    found, nan, well = (
        replies("reference", one, asked(one, **noisy)) for one in (raising, diverging, usual)
    )
    assert found[SICK].contribution.vector.any()
    assert same(found[SICK], nan[SICK])
    assert all(same(found[one], well[one]) for one in WELL)


def test_a_block_of_the_dense_engine_takes_nobody_along(monkeypatch):
    """No row makes its products raise; if one did, each client would be trained alone."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    made = work(linear)
    before = replies("dense", made, asked(made))
    real = DenseEngine._block

    def failing(self, tasks, *rest, **more):
        if any(task.client == SICK for task in tasks):
            raise RuntimeError("out of memory")
        real(self, tasks, *rest, **more)

    monkeypatch.setattr(DenseEngine, "_block", failing)
    found = replies("dense", made, asked(made))
    assert all(same(found[one], before[one]) for one in WELL)
    assert not found[SICK].contribution.vector.any()
    assert found[SICK].remarks.raised


def test_a_metric_that_raises_is_nothing_measured():
    def shy(_output, target):
        if len(target) == 6:
            raise ZeroDivisionError("no such group")
        return 0.75

    goal = task_of(metrics=[shy])
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    made = work(linear, task=goal)
    made = replace(made, held_out=HeldOut(made.features, made.labels, made.shards))
    found = replies("dense", made, asked(made, metric=NumberGrid(1000, 0.0)))
    assert found[SICK].contribution.metric == 0
    assert found["1"].contribution.metric > 0
    assert "ZeroDivisionError: no such group" in found[SICK].remarks.problem


def test_votes_that_raise_are_not_cast():
    made = work(sick=200.0)
    made.public_rows[0, 0] = 200.0
    tasks = asked(made, asked=np.array([0, 1]), size=6, bit=False)
    found = replies("reference", made, tasks)
    assert all(one.remarks.raised for one in found.values())
    assert not any(one.contribution.vector.any() for one in found.values())


@pytest.mark.full(only=["True-32"])
@pytest.mark.parametrize(("payments", "size"), [(False, 32), (True, 32), (True, 1)])
def test_a_record_that_raises_counts_as_zero_and_no_other_changes(monkeypatch, payments, size):
    """Also where the trial of a block's size raises, so that records are computed one by one."""
    real, high = GeneralSum._at, 100 if size == 1 else 1e31
    monkeypatch.setattr(blocks, "_found", {})

    def picky(self, parameters):
        gradients = real(self, parameters)

        def of_block(rows, labels):
            if bool((rows > high).any()):
                raise ValueError("age out of range")
            return gradients(rows, labels)

        return of_block

    monkeypatch.setattr(GeneralSum, "_at", picky)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 3), nn.Tanh())
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 12, generator=generator)
    labels = torch.randint(0, 3, (40,), generator=generator)
    parameters = torch.nn.utils.parameters_to_vector(module.parameters()).detach()

    def total(value, place):
        held = rows.clone()
        held[place] = value
        paying = Payments(0.3)
        paying.begin(np.full(len(rows), 5.0))
        sum_of = GeneralSum(module, paying if payments else partial(clip_factors, bound=0.3))
        found = sum_of(parameters, held, labels)
        assert sum_of.block(rows[0], labels[0]) in (1, size, 3 * size)
        return found, sum_of.raised, paying.left if payments else None

    for place in (3, 39):
        expected, quiet, left = total(float("nan"), place)
        found, raised, also_left = total(1e32, place)
        assert not quiet
        assert "age out of range" in raised
        assert np.array_equal(found, expected)
        assert np.array_equal(left, also_left)


def test_a_node_answers_once_whatever_fails():
    made = work()
    (task, *_) = asked(made, run="a run", plan="a plan")
    answered, asked_for = Answered(MemoryStates()), []

    def failing(task):
        asked_for.append(task)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        answer(task, "0", ServersAccount(), answered, failing)
    for again in (failing, lambda task: contribute(task, made.rows("0"), made.tools).contribution):
        with pytest.raises(Declined, match="has failed"):
            answer(task, "0", ServersAccount(), answered, again)
    assert len(asked_for) == 1
    later = replace(task, shared=replace(task.shared, round=1))
    assert answer(
        later,
        "0",
        ServersAccount(),
        answered,
        lambda task: contribute(task, made.rows("0"), made.tools).contribution,
    )


def trained(features, **more):
    names = [f"c{n}" for n in range(len(features))]
    plan = fedspend.plan(
        dict.fromkeys(names, 4.0), delta=1e-2, rounds=1, rate=1.0, accountant="rdp"
    )
    labels = np.array([0, 1, 2, 0])
    return fedspend.train(
        clients={name: (rows, labels) for name, rows in zip(names, features, strict=True)},
        model=Picky(),
        plan=plan,
        lr=0.1,
        batch_size=4,
        local_steps=2,
        test=(np.zeros((4, 12), np.float32), labels),
        progress=False,
        **more,
    )


@pytest.mark.usefixtures("quick_verify")
def test_a_real_run_goes_on_and_its_operator_is_told(tmp_path):
    features = np.zeros((3, 4, 12), np.float32)
    features[1, 2, 3] = 200.0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = trained(features, ledger=tmp_path / "a.db", output=tmp_path / "run")
    assert result.plan.rounds == len(result.metrics)
    said = [str(one.message) for one in told if one.category is OperatorWarning]
    assert any("client 'c1': its work raised ValueError" in one for one in said)
    assert b"age out of range" not in b"".join(
        one.read_bytes() for one in (tmp_path / "run").iterdir()
    )


@pytest.mark.usefixtures("quick_verify")
def test_a_simulation_in_which_nobody_can_work_stops_with_the_error():
    with pytest.raises(InvalidInput, match=r"no client could do its work.*age out of range"):
        trained(np.full((2, 4, 12), 200.0, np.float32), randomness="seeded")


def test_the_trial_on_made_up_rows_still_raises():
    with pytest.raises(InvalidInput, match="cannot read rows"):
        fedspend.train(
            clients={"a": (np.zeros((2, 5), np.float32), np.array([0, 1]))},
            model=nn.Linear(4, 2),
            plan=fedspend.plan({"a": 4.0}, delta=1e-2, rounds=1, rate=1.0, accountant="rdp"),
            lr=0.1,
            batch_size=2,
            local_steps=1,
            test=(np.zeros((2, 5), np.float32), np.array([0, 1])),
            randomness="seeded",
        )
