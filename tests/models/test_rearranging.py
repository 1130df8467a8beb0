"""A chain of layers in the faster order has the values and the gradients of the chain as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedspend.models.flat import as_batch, rearranged

POOLS = [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1), nn.MaxPool2d(3, stride=2, padding=1)]


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_the_same_bits(pool: nn.Module, inplace: bool) -> None:
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace), pool, nn.MaxPool2d(2)]
    chain = nn.Sequential(*first, nn.Flatten(), nn.LazyLinear(3))
    chain(torch.zeros(1, 1, 12, 12))
    other = rearranged(copy.deepcopy(chain))
    assert [type(layer) for layer in other][1:4] == [nn.MaxPool2d, nn.MaxPool2d, nn.ReLU]
    rows, labels = torch.randn(16, 1, 12, 12).round(), torch.randint(0, 3, (16,))  # with ties
    rows[0], rows[1] = 0, -1  # nothing that ReLU lets through, or all alike
    for module in (chain, other):
        cross_entropy(module(as_batch(rows)), labels).backward()
    for one, two in zip(chain.parameters(), other.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.equal(one.grad, two.grad)


def test_what_could_tell_the_difference_is_left_alone() -> None:
    hooked = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    hooked[0].register_forward_hook(lambda *_: None)
    for module in (hooked, nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))):
        assert [type(layer) for layer in rearranged(module)] == [nn.ReLU, nn.MaxPool2d]
