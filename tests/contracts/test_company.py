"""What a record adds to a step's sum is the same to the last bit, whoever else is there: however
many they are, whatever they hold, and in whatever order.

Kernels are chosen by shapes and round each in its own way. The counts here are those at which
kernels were seen to change, and those around the ends of blocks.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedspend.basics.threads import single_threaded
from fedspend.client import blocks, company, gradient_chains, gradients, record_steps
from fedspend.client.blocks import InBlocks
from fedspend.client.gradient_chains import ChainSum
from fedspend.client.gradients import DenseSum, GeneralSum, clipped_sum
from fedspend.client.task import RecordTerms
from fedspend.errors import InvalidInput
from fedspend.models.building import build
from fedspend.models.flat import flat_vector
from fedspend.tasks.task import CLASSIFY, task_of

IMAGE, TOKENS = (1, 28, 28), (12,)
COUNTS = (2, 3, 6, 16, 33)  # the first kernels; and one more than a block
MANY = {"wide mlp": (192, 257), "small-cnn": (65,), "gated": (289,)}
SLOW = ("cnn", "lstm", "transformer")


def named(name, shape, **options):
    return lambda: build(name, input_shape=shape, classes=4, seed=0, **options)


def odd_sigmoid():
    """Odd numbers of units, and layers that treat the ends of tensors in another way."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(75, 5),
        nn.GELU(approximate="tanh"),
        nn.Linear(5, 3),
    )


def grouped():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )


class Gated(nn.Module):
    """A module of one's own."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(7, 5), nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, rows):
        return self.head(torch.sigmoid(self.one(rows)) * nn.functional.softplus(self.other(rows)))


# (kind of sum, how it is made, shape of a row)
MODULES = {
    "mlp": (DenseSum, named("mlp", (104,)), (104,)),
    "wide mlp": (DenseSum, named("mlp", (784,), hidden=[200, 100]), (784,)),
    "small-cnn": (ChainSum, named("small-cnn", IMAGE), IMAGE),
    "lenet": (ChainSum, named("lenet", IMAGE), IMAGE),
    "cnn": (ChainSum, named("cnn", IMAGE), IMAGE),
    "odd sigmoid": (ChainSum, odd_sigmoid, (1, 7, 7)),
    "tanh": (GeneralSum, lambda: nn.Sequential(nn.Linear(104, 9), nn.Tanh()), (104,)),
    "grouped": (GeneralSum, grouped, (3, 8, 8)),
    "gated": (GeneralSum, Gated, (7,)),
    "lstm": (GeneralSum, named("lstm", TOKENS, vocabulary=30), TOKENS),
    "transformer": (GeneralSum, named("transformer", TOKENS, vocabulary=30), TOKENS),
}


@cache
def made(name):
    """The module, and rows and labels for it."""
    kind, make, shape = MODULES[name]
    torch.manual_seed(0)
    module, count = make(), 289
    rows = torch.randint(1, 30, (count, *shape)) if shape == TOKENS else torch.rand(count, *shape)
    assert isinstance(clipped_sum(module, 1.0), kind)
    return module, rows, torch.arange(count) % 3


class Only:
    """The factor is one for the record at a place, and zero for the others: the sum is its own
    gradient.
    """

    def __init__(self, place):
        self.place, self.at, self.norms = place, 0, []

    def __call__(self, norms):
        found = (np.arange(len(norms)) + self.at == self.place).astype(float)
        self.at += len(norms)
        self.norms += norms.tolist()
        return found


def own(module, rows, labels, place, **how):
    """The norm and the gradient of the record at a place, as bytes."""
    only = Only(place)
    with single_threaded():
        total = clipped_sum(module, 1.0, only, **how)(flat_vector(module), rows, labels)
    assert total.any()
    return np.float64(only.norms[place]).tobytes() + total.tobytes()


@pytest.mark.full(but=["mlp-32", "odd sigmoid-32", "transformer-32"])
@pytest.mark.parametrize("how", [{}, {"records": 2}, {"records": 288}], ids=["32", "1", "288"])
@pytest.mark.parametrize("name", MODULES)
def test_how_many_others_there_are_does_not_matter(name, how):
    module, rows, labels = made(name)
    alone = own(module, rows[:1], labels[:1], 0, **how)
    few = (2, 16) if name in SLOW else COUNTS
    for count in (*few, *MANY.get(name, ())):
        last = torch.arange(count).roll(-1)  # the others are before it
        assert own(module, rows[last], labels[last], count - 1, **how) == alone, count


@pytest.mark.full(but=["mlp-0.0", "mlp-nan", "odd sigmoid-0.0", "odd sigmoid-nan"])
@pytest.mark.parametrize("value", [0.0, 1e-42, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("name", [name for name in MODULES if name not in SLOW])
def test_what_others_hold_does_not_matter(name, value):
    module, rows, labels = made(name)
    alone = own(module, rows[:1], labels[:1], 0)
    for count in (2, 16, 33):
        others = rows[:count].clone()
        others[:-1] = value
        others[-1] = rows[0]
        same = torch.full((count,), int(labels[0]))
        assert own(module, others, same, count - 1) == alone, count


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("records", [32, 288])
@pytest.mark.parametrize("name", MODULES)
def test_the_place_among_others_does_not_matter(name, records):
    module, rows, labels = made(name)
    only = Only(0)
    sum_of = clipped_sum(module, 1.0, only, records=records)
    with single_threaded():
        copies = torch.zeros(sum_of.block(rows[0]), dtype=torch.long)
        sum_of(flat_vector(module), rows[copies], labels[copies])
    assert len(set(only.norms)) == 1


# --- parameters that cancel but for rounding ------------------------------------------------------


def cancelling(name, seed):
    """Units are equal in pairs, and weights of 1e30 take one from the other: what is left is how
    the sum was rounded.
    """
    shape = (784,) if name == "mlp" else IMAGE
    options = {"hidden": [200, 100]} if name == "mlp" else {}
    module = build(name, input_shape=shape, classes=10, seed=seed, **options)
    torch.manual_seed(seed)
    before, last = [layer for layer in module if isinstance(layer, nn.Linear)][-2:]
    with torch.no_grad():
        before.weight.mul_(100)
        before.weight[1::2] = before.weight[::2]
        before.bias.zero_()
        last.weight[:, ::2] = torch.randn(10, last.in_features // 2) * 1e30
        last.weight[:, 1::2] = -last.weight[:, ::2]
        last.bias.zero_()
    return module, torch.rand(200, *shape)


@pytest.mark.full(but=["lenet-6", "lenet-16"])
@pytest.mark.parametrize(
    ("name", "count"), [("lenet", 2), ("lenet", 6), ("lenet", 16), ("cnn", 16), ("mlp", 192)]
)
def test_no_record_decides_how_the_others_are_rounded(name, count):
    for seed in range(3):
        module, rows = cancelling(name, seed)
        sum_of, start = clipped_sum(module, 1.0), flat_vector(module)
        labels = torch.zeros(count, dtype=torch.long)
        with single_threaded():
            everyone = sum_of(start, rows[:count], labels)
            moved = everyone - sum_of(start, rows[: count - 1], labels[1:])
        assert np.linalg.norm(moved) <= 1, seed


# --- what the sizes of blocks follow from, and what is refused ------------------------------------


def test_blocks_follow_from_the_plan_and_not_from_what_is_drawn():
    terms = RecordTerms(np.full(900, 0.3), np.full(900, 2.0), np.array([256.0, 0.0]), 1.0, 1.0)
    assert record_steps._rarely_exceeded(terms) == 288
    few = RecordTerms(np.full(260, 0.3), np.full(260, 2.0), np.array([256.0, 0.0]), 1.0, 1.0)
    assert record_steps._rarely_exceeded(few) == 260


@pytest.mark.full(only=["gated"])
@pytest.mark.parametrize("name", ["odd sigmoid", "gated"])
def test_where_blocks_have_an_end_place_decides_nothing_all_the_same(name, monkeypatch):
    """Blocks of 33 leave something over for the layers that treat ends in another way. Whether they
    do, and what is taken in their place, follows from the processor.
    """
    module, rows, labels = made(name)
    for user in (gradients, gradient_chains):
        monkeypatch.setattr(user, "block_size", lambda *_: 33)
    alone = own(module, rows[:1], labels[:1], 0)
    assert own(module, rows[:33].roll(-1, 0), labels[:33].roll(-1), 32) == alone
    company.refuse_company(module, CLASSIFY, rows[:4], labels[0])


@pytest.mark.parametrize(("round_by_place", "taken"), [((), 32), ((32,), 96), ((32, 96), 1)])
def test_a_block_that_is_rounded_by_place_is_tiled_or_given_up(round_by_place, taken, monkeypatch):
    module, rows, labels = made("mlp")
    monkeypatch.setattr(blocks, "_found", {})  # what this processor does is not asked
    monkeypatch.setattr(InBlocks, "_by_place", lambda *given: given[-1] in round_by_place)
    assert clipped_sum(module, 1.0, records=32).block(rows[0], labels[0]) == taken


def drawing(output, _target):
    return (output * (torch.rand_like(output) - 0.5)).sum(1)


def drawing_and_looking(output, target):
    """One that cannot be given all rows at once."""
    return drawing(output, target) * (1 + float(output[0, 0].detach()) * 0)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("loss", [drawing, drawing_and_looking])
@pytest.mark.parametrize("name", ["mlp", "small-cnn"])
def test_what_an_own_loss_draws_gives_no_record_a_say_in_another_s_gradient(name, loss):
    """With draws of its own for each record, one would move all that come after it, for those who
    know the seed.
    """
    module, rows, _ = made(name)
    sum_of, labels = clipped_sum(module, 1.0, task=task_of(loss)), torch.zeros(40, 4)

    def total(first):
        torch.manual_seed(7)
        return sum_of(flat_vector(module), rows[first:40], labels[first:])

    with single_threaded():
        assert np.linalg.norm(total(0) - total(1)) <= 1


# --- what a trial must notice, whatever this processor does ---------------------------------------


def rounded_otherwise(when):
    """A product of one column at a time, but that one number of one record has another last bit."""
    plain = gradients._product

    def product(left, right):
        columns = (right[:, [n]].copy() for n in range(right.shape[1]))
        made = np.concatenate([plain(left, column) for column in columns], axis=1)
        where = when(left, right)
        if where is not None:
            made[where] = np.nextafter(made[where], np.inf)
        return made

    return product


def at_the_last_place(_left, right):
    return (0, -1) if right.shape[1] == 32 else None


def beside_a_stranger(_left, right):
    """Some kernels take another way if one of the numbers that they take at once is special."""
    strange = np.flatnonzero(~np.isfinite(right).all(axis=0))
    return (0, (strange[0] + 1) % right.shape[1]) if strange.size else None


@pytest.mark.parametrize(("when", "taken"), [(at_the_last_place, 96), (beside_a_stranger, 1)])
def test_one_last_bit_of_one_number_is_noticed(when, taken, monkeypatch):
    """Norms are rounded themselves, and need not show it."""
    monkeypatch.setattr(blocks, "_found", {})
    monkeypatch.setattr(gradients, "_product", rounded_otherwise(when))
    module = nn.Sequential(nn.Linear(784, 10, bias=False))
    with single_threaded():
        sum_of = clipped_sum(module, 1.0, records=32)
        assert sum_of.block(torch.rand(784)) == taken


class Wide(nn.Module):
    """A module whose text does not say all that it does."""

    def __init__(self, times):
        super().__init__()
        self.times, self.only = times, nn.Linear(4, 3)

    def forward(self, rows):
        return self.only(rows.repeat(1, self.times)[:, :4])


def test_the_trial_of_one_model_or_loss_is_not_taken_for_that_of_another(monkeypatch):
    monkeypatch.setattr(blocks, "_found", {})
    tried = []
    monkeypatch.setattr(InBlocks, "_by_place", lambda *_: tried.append(1))
    losses = [lambda output, _target, n=n: output.sum(1) * n for n in range(2)]
    of_losses = [
        clipped_sum(module, 1.0, task=task_of(loss))
        for loss in losses
        for module in (nn.Linear(4, 3), made("small-cnn")[0])
    ]
    of_modules = [clipped_sum(Wide(times), 1.0) for times in (2, 3, 2)]
    for sum_of in (*of_losses, *of_modules):
        sum_of.block(torch.rand(1, 28, 28) if isinstance(sum_of, ChainSum) else torch.rand(4))
    assert len(tried) == len(losses) * 2 + 2


@pytest.mark.full
def test_where_no_trial_gives_a_gradient_records_are_computed_one_by_one(monkeypatch):
    monkeypatch.setattr(blocks, "_found", {})

    class Lost(nn.Module):
        def __init__(self):
            super().__init__()
            self.only = nn.Linear(4, 3)

        def forward(self, rows):
            return self.only(rows) * float("inf")

    with single_threaded():
        assert clipped_sum(Lost(), 1.0).block(torch.rand(4)) == 1


def test_numbers_begin_at_the_same_places_in_memory_whatever_was_there_before(monkeypatch):
    """Some kernels round by where in memory their numbers begin."""
    plain, begins, kept = gradients._product, [], []

    def product(left, right):
        begins.append((left.ctypes.data % 64, right.ctypes.data % 64))
        return plain(left, right)

    monkeypatch.setattr(gradients, "_product", product)
    module, rows, labels = made("mlp")
    sum_of, start = clipped_sum(module, 1.0), flat_vector(module)
    seen = set()
    for size in range(40):
        kept.append(np.empty(16 * size + 2))
        begins.clear()
        sum_of._at(start)(rows[:32], labels[:32])
        seen.add(tuple(begins))
    assert len(seen) == 1


NARROW = {  # widths of layers, and how many records; a norm does not tell that place matters
    "narrow": ([10, 2, 62], 256),
    "narrow twice": ([784, 5, 2, 5], 256),
    "narrow thrice": ([32, 7, 5, 10], 32),
}


def chained(widths):
    layers = [
        layer
        for before, after in pairwise(widths)
        for layer in (nn.Linear(before, after), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


@pytest.mark.full(but=["narrow"])
@pytest.mark.parametrize("name", NARROW)
def test_no_record_decides_how_the_others_are_rounded_in_narrow_chains(name):
    """Weights in each unit add up to zero, and what enters is the same: rounding decides."""
    widths, count = NARROW[name]
    module, draw = chained(widths), torch.Generator().manual_seed(1)
    sum_of, labels = clipped_sum(module, 1.0, records=count), torch.zeros(count, dtype=torch.long)
    for case in range(60):
        with torch.no_grad():
            for number, layer in enumerate(module[::2]):
                weight = torch.randint(-4000, 4000, layer.weight.shape, generator=draw).float()
                if number == 0 and case % 2 == 0:
                    weight = torch.rand(1, layer.in_features, generator=draw).expand_as(weight)
                elif case % 3:
                    weight -= weight.roll(1, 1)
                layer.weight.copy_(weight * (1, 2.0**60, 2.0**10)[number])
                layer.bias.zero_()
        rows = torch.rand(count, widths[0], generator=draw)
        if case % 4 < 2:
            rows = rows[:, :1].expand_as(rows).contiguous()
        with single_threaded():
            start = flat_vector(module)
            moved = sum_of(start, rows, labels) - sum_of(start, rows[1:], labels[1:])
        assert np.linalg.norm(moved) <= 1, case


@pytest.mark.parametrize("name", ["odd sigmoid", "gated"])
def test_a_model_that_is_rounded_by_place_is_refused(name, monkeypatch):
    module, rows, labels = made(name)
    monkeypatch.setattr(InBlocks, "block", lambda *_: 33)
    with pytest.raises(InvalidInput, match="depends on its place among others"):
        company.refuse_company(module, CLASSIFY, rows[:4], labels[0])
