"""The sum of clipped gradients over single records for chains of layers with convolutions.

Guarantee: as in `gradients`, every record's gradient has a norm of at most the clip in the sum, and
one that is not finite counts as zero; norms are float64 and computed from the very numbers that are
summed. One forward and one backward pass serve all records of a block, and all blocks have one
size, so that a record is rounded alike in any company. A layer's input and the loss gradient of its
output give each record's own gradient. For a linear layer it is never formed: its norm is
`|delta| * sqrt(|input|^2 + 1)`. For a convolution it is one product with the unfolded input. No
layer mixes records. Inputs and deltas are float32, so that their squares, and products of two of
them, lie between 1e-180 and 1e154 and neither vanish nor overflow in doubles.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedspend.basics.arrays import FloatArray
from fedspend.client.blocks import SMALLEST, Gradients, InBlocks, block_size
from fedspend.client.bounding import Factors
from fedspend.models.flat import parameter_count
from fedspend.models.fresh import remembers_nothing
from fedspend.tasks.task import CLASSIFY, Task

# no parameters, no randomness
_PLAIN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_BLOCK_NUMBERS = 2**25  # numbers in unfolded inputs and single gradients at once
_FAST_NUMBERS, _FAST_RECORDS = 2**23, 64  # more of them in a block do not fit into caches


def supports(module: nn.Module) -> bool:
    """Whether the module is a Sequential of plain convolutions, Flatten and linear layers, with
    only layers without parameters in between.

    >>> supports(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))
    True
    >>> supports(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2)))
    False
    """
    if type(module) is not nn.Sequential or not all(
        p.requires_grad and p.dtype == torch.float32 for p in module.parameters()
    ):
        return False
    if not remembers_nothing(module):
        return False
    layers = list(module)
    cut = next(
        (number for number, layer in enumerate(layers) if type(layer) is nn.Flatten),
        len(layers) - 1,
    )
    return (
        len(set(layers)) == len(layers) > 0
        and all(_plain(layer) or _convolves(layer) for layer in layers[:cut])
        and _flattens(layers[cut])
        and all(_plain(layer) or type(layer) is nn.Linear for layer in layers[cut + 1 :])
        and type(layers[-1]) is nn.Linear
    )


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1


def _plain(layer: nn.Module) -> bool:
    return type(layer) in _PLAIN and not getattr(layer, "inplace", False)


def _convolves(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


class ChainSum(InBlocks):
    def __init__(
        self,
        module: nn.Sequential,
        factors: Factors,
        task: Task = CLASSIFY,
        records: int = _FAST_RECORDS,
    ) -> None:
        self._task, self._records = task, records
        self._chain, self._factors, self._size = (
            copy.deepcopy(module).requires_grad_(False),
            factors,
            parameter_count(module),
        )

    def _at(self, parameters: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], Gradients]:
        def of_block(rows: torch.Tensor, labels: torch.Tensor) -> _Chained:
            nn.utils.vector_to_parameters(parameters, self._chain.parameters())
            return self._of_block(rows, labels)

        return of_block

    def _structure(self) -> Hashable:
        return self._task.of_rows, str(self._chain)

    def _planned(self, row: torch.Tensor) -> int:
        numbers = self._numbers(torch.zeros_like(row)[None])
        fast = max(min(_FAST_RECORDS, _FAST_NUMBERS // numbers), SMALLEST)
        return block_size(self._records, min(fast, _BLOCK_NUMBERS // numbers))

    @torch.no_grad()
    def _numbers(self, row: torch.Tensor) -> int:
        """How many numbers one record needs for its unfolded inputs and single gradients."""
        count = 1
        for layer in self._chain:
            if isinstance(layer, nn.Conv2d):
                count += layer.weight.numel() + _unfolded(layer, row).numel()
            row = layer(row)
        return count

    def _of_block(self, rows: torch.Tensor, labels: torch.Tensor) -> _Chained:
        # (layer, its input, its output)
        taps: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []
        value = rows
        for layer in self._chain:
            entering, value = value, layer(value)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                if not taps:
                    value.requires_grad_()  # only values are differentiated, not parameters
                taps.append((layer, entering.detach(), value))
        loss = self._task.apart(value, labels)
        deltas = torch.autograd.grad(loss, [leaving for _, _, leaving in taps])
        return _Chained(
            [
                _part(layer, entering, delta)
                for (layer, entering, _), delta in zip(taps, deltas, strict=True)
            ]
        )


class _Chained(Gradients):
    """Layer by layer."""

    def __init__(self, parts: list[_Linear | _Formed]) -> None:
        self._parts = parts
        self.norms = torch.stack([part.squares() for part in parts]).sum(dim=0).sqrt().numpy()

    def numbers(self) -> list[npt.NDArray[Any]]:
        return [numbers.numpy() for part in self._parts for numbers in part.numbers]

    def add(self, total: FloatArray, scale: FloatArray) -> None:
        factors, sizes = torch.from_numpy(scale), [part.size for part in self._parts]
        kept = torch.nonzero(factors > 0)[:, 0]  # zero times NaN would be NaN
        for part, its in zip(self._parts, torch.split(torch.from_numpy(total), sizes), strict=True):
            part.add(its, factors[kept], kept)


class _Linear:
    def __init__(self, entering: torch.Tensor, delta: torch.Tensor, bias: bool) -> None:
        self._entering, self._delta, self._bias = entering.double(), delta.double(), bias
        self._weights = delta.shape[1], entering.shape[1]
        self.size = delta.shape[1] * (entering.shape[1] + bias)
        self.numbers = self._entering, self._delta

    def squares(self) -> torch.Tensor:
        return self._delta.square().sum(dim=1) * (self._entering.square().sum(dim=1) + self._bias)

    def add(self, total: torch.Tensor, scale: torch.Tensor, rows: torch.Tensor) -> None:
        """In place: a large layer has more weights than a block has numbers."""
        delta, (outputs, inputs) = scale[:, None] * self._delta[rows], self._weights
        weight = total[: outputs * inputs].view(outputs, inputs)
        weight.addmm_(delta.T, self._entering[rows])
        if self._bias:
            total[outputs * inputs :] += delta.sum(dim=0)


class _Formed:
    """Single gradients, (records, parameters of the layer)."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients, self.size = gradients.double(), gradients.shape[1]
        self.numbers = (self._gradients,)

    def squares(self) -> torch.Tensor:
        return self._gradients.square().sum(dim=1)

    def add(self, total: torch.Tensor, scale: torch.Tensor, rows: torch.Tensor) -> None:
        total += scale @ self._gradients[rows]


def _part(layer: nn.Module, entering: torch.Tensor, delta: torch.Tensor) -> _Linear | _Formed:
    if isinstance(layer, nn.Linear):
        return _Linear(entering, delta, layer.bias is not None)
    assert isinstance(layer, nn.Conv2d)
    delta = delta.flatten(2)
    gradient = torch.bmm(delta, _unfolded(layer, entering).transpose(1, 2)).flatten(1)
    return _Formed(
        gradient if layer.bias is None else torch.cat([gradient, delta.sum(dim=2)], dim=1)
    )


def _unfolded(layer: nn.Conv2d, entering: torch.Tensor) -> torch.Tensor:
    """The inputs that each place of the output depends on, (records, inputs, places)."""
    assert not isinstance(layer.padding, str)
    return functional.unfold(
        entering, layer.kernel_size, layer.dilation, layer.padding, layer.stride
    )
