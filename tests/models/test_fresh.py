"""A fresh module for every client: what can remember is copied, what cannot is handed out again."""

import copy
import random
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fedspend import models
from fedspend.errors import InvalidInput
from fedspend.models.fresh import fresh, refuse_memory_outside, remembers_nothing


class Counting(nn.Module):
    """Remembers in an attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(3, 2), []

    def forward(self, rows):
        self.seen.append(rows.sum().item())
        return self.layer(rows)


class Buffered(nn.Module):
    """Remembers in a buffer of whole numbers, which `check_module` lets pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, rows):
        self.calls += 1
        return self.layer(rows)


def with_forward():
    """One of torch's own layers with a `forward` of its own,
    which keeps what it saw on the layer.
    """
    layer = nn.Linear(3, 2)
    layer.seen = []

    def forward(self, rows):
        self.seen.append(rows)
        return nn.functional.linear(rows, self.weight, self.bias)

    layer.forward = types.MethodType(forward, layer)
    return layer


def with_hook(kind):
    """One of torch's own layers with a hook, which keeps what it saw on the layer."""
    layer = nn.Linear(3, 2)
    layer.seen = []
    getattr(layer, f"register_{kind}_hook")(lambda module, *_: module.seen.append(1))
    return nn.Sequential(nn.Flatten(), layer)


def with_closure():
    """A function that remembers in its own cell, inside a module that is not torch's."""
    seen = []

    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.note = nn.Linear(3, 2), seen.append

        def forward(self, rows):
            self.note(1)
            return self.layer(rows)

    return Remembering()


def with_hook_on_a_parameter():
    layer = nn.Linear(3, 2)
    layer.weight.register_hook(lambda gradient: gradient)
    return layer


def with_hook_after_gradients():
    layer = nn.Linear(3, 2)
    layer.weight.register_post_accumulate_grad_hook(lambda _: None)
    return layer


REMEMBERING = {
    "an attribute": Counting,
    "a part with an attribute": lambda: nn.Sequential(nn.Flatten(), Counting()),
    "a buffer": Buffered,
    "torch's own buffers": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)),
    "a forward of its own": with_forward,
    "a forward hook": lambda: with_hook("forward"),
    "a forward pre-hook": lambda: with_hook("forward_pre"),
    "a backward hook": lambda: with_hook("full_backward"),
    "a backward pre-hook": lambda: with_hook("full_backward_pre"),
    "a hook on a parameter": with_hook_on_a_parameter,
    "a hook after gradients": with_hook_after_gradients,
    "a closure": with_closure,
    "a parametrization": lambda: parametrizations.spectral_norm(nn.Linear(3, 2)),
}


@pytest.mark.parametrize("what", REMEMBERING)
def test_what_can_remember_is_copied(what):
    module = REMEMBERING[what]()
    assert not remembers_nothing(module)
    copied = fresh(module)
    assert copied is not module
    for ours, theirs in zip(module.parameters(), copied.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize(
    "what",
    ["an attribute", "a buffer", "a forward of its own", "a forward hook", "a forward pre-hook"],
)
def test_nothing_of_an_earlier_client_is_left(what):
    """Two clients in a row: what the first one's module has seen is not in the second one's."""
    module = REMEMBERING[what]()

    def memory(one):
        return [
            (list(part.seen) if hasattr(part, "seen") else None, [int(b) for b in part.buffers()])
            for part in one.modules()
        ]

    untouched = memory(module)
    first = fresh(module)
    first(torch.ones(4, 3))
    assert memory(first) != untouched, "it does remember"
    assert memory(module) == untouched
    assert memory(fresh(module)) == untouched


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)),
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2)
        ),
        models.build("logistic", input_shape=(6,), classes=3, seed=0),
        models.build("mlp", input_shape=(6,), classes=3, seed=0),
        models.build("small-cnn", input_shape=(1, 8, 8), classes=3, seed=0),
    ],
)
def test_torchs_own_layers_and_ours_are_handed_out_again(module):
    assert remembers_nothing(module)
    assert fresh(module) is module
    before = copy.deepcopy(module.state_dict())
    assert all(
        torch.equal(value, before[name]) for name, value in fresh(module).state_dict().items()
    )


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(3, 2), draw

    def forward(self, rows):
        return self.layer(rows) * self.draw()


@pytest.mark.parametrize(
    "draw",
    [random.random, lambda: float(np.random.rand())],  # noqa: NPY002
    ids=["random", "numpy.random"],
)
def test_draws_from_a_generator_that_clients_share_are_refused(draw):
    with pytest.raises(InvalidInput, match=r"draws from numpy\.random or random"):
        refuse_memory_outside(Drawing(draw), (3,))


def test_draws_from_torch_are_fine():
    refuse_memory_outside(Drawing(lambda: torch.rand(())), (3,))
