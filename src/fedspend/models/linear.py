"""Chains of linear layers: which modules count as one, and where their parameters are in the flat
vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedspend.models.fresh import remembers_nothing


@dataclass(frozen=True)
class Layer:
    """A linear layer: where its weight and bias are in the flat vector; whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None
    relu: bool


def supports(module: nn.Module) -> bool:
    """Whether the module is a chain of Linear and ReLU layers that ends with a Linear one; Flatten
    is allowed anywhere.

    >>> supports(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    True
    >>> supports(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    False
    """
    return bool(linear_layers(module))


def linear_layers(module: nn.Module) -> list[Layer]:
    """The linear layers in order; empty if the module is anything else, for example has hooks,
    which may change its output.
    """
    if not remembers_nothing(module):
        return []
    if type(module) is nn.Linear:
        module = nn.Sequential(module)
    if type(module) is not nn.Sequential or not all(
        p.requires_grad and p.dtype == torch.float32 for p in module.parameters()
    ):
        return []
    found: list[Layer] = []
    start, seen = 0, set()
    for part in module:
        if type(part) is nn.ReLU and found:
            last = found.pop()
            found.append(Layer(last.inputs, last.outputs, last.weight, last.bias, relu=True))
        elif type(part) is nn.Linear and part not in seen:
            weight = slice(start, start + part.weight.numel())
            bias = (
                None if part.bias is None else slice(weight.stop, weight.stop + part.out_features)
            )
            found.append(Layer(part.in_features, part.out_features, weight, bias, relu=False))
            start = weight.stop if bias is None else bias.stop
            seen.add(part)
        elif not (type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1):
            return []
    return found if found and not found[-1].relu else []
