"""What users bring is copied for each client and call, so that nothing of one client is left in it
for the next; what cannot be copied is refused.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.workshop import ENGINES, Data, tasks_for
from torch import nn
from torch.nn import functional

from fedspend.client.gradients import clipped_sum
from fedspend.client.task import LocalTraining
from fedspend.engines.base import HeldOut
from fedspend.errors import InvalidInput
from fedspend.models.fresh import remembers_nothing
from fedspend.noise.numbers import NumberGrid
from fedspend.tasks.copies import copied
from fedspend.tasks.task import task_of, tried

STEPS = LocalTraining(batch_size=4, steps=3)


class Running:
    """A metric as many are: it is updated, then computed, and never reset."""

    def __init__(self):
        self.right = self.rows = 0

    def __call__(self, output, target):
        self.right += int((output.argmax(1) == target).sum())
        self.rows += len(target)
        return self.right / self.rows

    @property
    def __name__(self):
        return "running"


class Scaled:
    """A loss that is divided by what it saw last, but only after rows unlike those of a trial."""

    def __init__(self):
        self.mean = torch.ones(())

    def __call__(self, output, target):
        each = functional.cross_entropy(output, target, reduction="none")
        if float(output.detach().abs().max()) > 20:
            self.mean = each.detach().mean()
        return each / self.mean


class Swish:
    """An activation with a running scale."""

    def __init__(self):
        self.seen = 0.0

    def __call__(self, x):
        out = torch.relu(x) * (1 + self.seen)
        self.seen = float(x.detach().abs().mean())
        return out


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def transforming():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=Swish())
    return nn.Sequential(nn.Unflatten(1, (2, 6)), layer, nn.Flatten(), nn.Linear(12, 3))


def sent(engine, *, first, module=None, task=None, **shared):
    """What the second client sends, whatever the first one's rows are multiplied by."""
    made = Data(sizes=(6, 9)).work(module or linear())
    if task is not None:
        made = replace(made, task=task)
    made.features[made.shards["0"]] *= first
    made = replace(made, held_out=HeldOut(made.features, made.labels, made.shards))
    start = torch.nn.utils.parameters_to_vector(made.module.parameters()).detach()
    running = ENGINES[engine](made)
    try:
        tasks = tasks_for(start, range(2), STEPS, clips=np.full(2, 1.0), **shared)
        return [one.contribution.to_bytes() for one in running.run(tasks)][1]
    finally:
        running.close()


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("engine", ["reference", "clientwise", "clientwise-2"])
@pytest.mark.parametrize("what", ["loss", "module"])
def test_what_a_user_brings_carries_nothing_to_the_next_client(engine, what):
    given = {"task": task_of(Scaled())} if what == "loss" else {"module": transforming()}
    assert sent(engine, first=1.0, **given) == sent(engine, first=90.0, **given)


@pytest.mark.parametrize("engine", ["reference", "dense"])
def test_a_metric_that_accumulates_carries_nothing_to_the_next_client(engine):
    given = {"task": task_of(metrics=[Running()]), "metric": NumberGrid(1000, 0.0)}
    assert sent(engine, first=1.0, **given) == sent(engine, first=-90.0, **given)


def test_a_loss_carries_nothing_to_the_next_record():
    """By layers, and by gradients that torch maps over rows."""
    rows = torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    for module in (linear(), nn.Sequential(nn.Linear(12, 3), nn.Tanh())):
        start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        gradients = []
        for _ in range(2):
            sum_of = clipped_sum(module, 0.5, task=task_of(Tracing()), records=1)
            sum_of(start, rows * 30, labels)
            gradients.append(sum_of(start, rows, labels))
        sum_of = clipped_sum(module, 0.5, task=task_of(Tracing()), records=1)
        gradients.append(sum_of(start, rows, labels))
        assert all(np.array_equal(one, gradients[0]) for one in gradients)


class Tracing:
    """A loss that counts its calls."""

    def __init__(self):
        self.calls = torch.zeros(1)

    def __call__(self, output, target):
        self.calls += 1
        return functional.cross_entropy(output, target, reduction="none") / self.calls


def test_a_loss_that_remembers_only_while_it_is_trained_is_refused():
    def trained_only(output, target, seen=[]):  # noqa: B006 - that is how it remembers
        if output.requires_grad:
            seen.append(1)
        return functional.cross_entropy(output, target, reduction="none") / (1 + len(seen))

    with pytest.raises(InvalidInput, match="remembers rows"):
        tried(task_of(trained_only), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("what", ["loss", "metric"])
def test_what_cannot_be_copied_is_refused(what):
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, output, target):
            return functional.cross_entropy(output, target, reduction="none")

    given = {"loss": Locked()} if what == "loss" else {"metrics": [Locked()]}
    with pytest.raises(InvalidInput, match=r"(loss|metric) '.*' cannot be copied.*lock"):
        task_of(**given)


def test_copies_share_nothing_that_can_be_written_to():
    seen = []

    def enclosing(value):
        seen.append(value)
        return len(seen)

    def attributed(value):
        attributed.count = getattr(attributed, "count", 0) + 1
        return value

    class Owner:
        def __init__(self):
            self.seen = []

        def method(self, value):
            self.seen.append(value)
            return len(self.seen)

    owner = Owner()
    for one in (enclosing, owner.method, functools.partial(owner.method), enclosing):
        assert [copied(one)(1) for _ in range(3)] == [1, 1, 1]
    copied(attributed)(1)
    assert not seen
    assert not owner.seen
    assert not hasattr(attributed, "count")


def test_what_is_ours_is_not_copied():
    assert copied(functional.relu) is functional.relu
    ours = task_of("squared")
    assert ours.fresh() is ours
    assert copied(linear) is linear


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16), True),
        (nn.TransformerEncoderLayer(8, 2, 16, activation=functional.gelu), True),
        (nn.TransformerEncoderLayer(8, 2, 16, activation=nn.ReLU()), True),
        (nn.TransformerEncoderLayer(8, 2, 16, activation=lambda x: x), False),
        (nn.LSTM(2, 2), True),
        (nn.MultiheadAttention(4, 2), True),
        (transforming(), False),
    ],
)
def test_only_what_holds_nothing_else_is_known_to_forget(module, known):
    assert remembers_nothing(module) is known
