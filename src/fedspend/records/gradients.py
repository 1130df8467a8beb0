"""The sum of clipped gradients over single records.

Guarantee: every record's gradient has an L2 norm of at most the clip in the sum, whatever the model does; one that is not finite
counts as zero. Norms are float64. Chains of Linear and ReLU never form the single gradients: the norm of a layer's gradient is
`|delta| * sqrt(|input|^2 + 1)`. Any other module uses `torch.func.vmap`, in blocks of bounded memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedspend.arrays import FloatArray
from fedspend.engines.dense import Layer, _layers
from fedspend.engines.flat import parameter_count
from fedspend.mechanism import clip_factors
from fedspend.models.checking import check_module

_BLOCK_NUMBERS = 2**24  # of single gradients that exist at once

GradientSum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], FloatArray]  # (parameters, rows, labels) -> (parameters,)
Factors = Callable[[torch.Tensor], torch.Tensor]  # norms of the next rows, in order -> what to multiply each row by


def clipped_sum(module: nn.Module, clip: float, factors: Factors | None = None) -> GradientSum:
    """The function that sums the clipped gradients of the cross-entropy of each row. `factors` may scale them down further."""
    check_module(module)
    layers = _layers(module)
    return DenseSum(layers, parameter_count(module), clip, factors) if layers else GeneralSum(module, clip, factors)


class DenseSum:
    def __init__(self, layers: list[Layer], size: int, clip: float, factors: Factors | None = None) -> None:
        self._layers, self._size, self._factors = layers, size, factors or partial(clip_factors, bound=clip)

    @torch.no_grad()
    def __call__(self, parameters: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> FloatArray:
        flat, inputs = parameters.double(), [rows.flatten(1).double()]
        weights = [flat[layer.weight].view(layer.outputs, layer.inputs) for layer in self._layers]
        scores = inputs[0]
        for layer, weight in zip(self._layers, weights, strict=True):
            scores = inputs[-1] @ weight.T + (0.0 if layer.bias is None else flat[layer.bias])
            inputs.append(scores.clamp(min=0) if layer.relu else scores)
        delta = torch.softmax(scores, dim=1)
        delta[torch.arange(len(labels)), labels] -= 1
        squares, deltas = torch.zeros(len(rows), dtype=torch.float64), []
        for number in range(len(self._layers) - 1, -1, -1):
            layer, entering = self._layers[number], inputs[number]
            squares += delta.square().sum(dim=1) * (entering.square().sum(dim=1) + (layer.bias is not None))
            deltas.append(delta)
            if number:
                delta = delta @ weights[number]
                if self._layers[number - 1].relu:
                    delta = delta * (entering > 0)
        scale = self._factors(squares.sqrt())
        total = torch.zeros(self._size, dtype=torch.float64)
        for layer, entering, delta in zip(self._layers, inputs, reversed(deltas), strict=False):
            kept = torch.where(scale[:, None] > 0, scale[:, None] * delta, 0.0)  # zero times NaN would be NaN
            total[layer.weight] = (kept.T @ torch.where(scale[:, None] > 0, entering, 0.0)).reshape(-1)
            if layer.bias is not None:
                total[layer.bias] = kept.sum(dim=0)
        return total.numpy()


class GeneralSum:
    def __init__(self, module: nn.Module, clip: float, factors: Factors | None = None) -> None:
        self._module, self._size = copy.deepcopy(module).train(), parameter_count(module)
        self._factors = factors or partial(clip_factors, bound=clip)
        named = list(self._module.named_parameters())
        self._shapes = [(name, parameter.shape, parameter.numel(), parameter.requires_grad) for name, parameter in named]
        self._block = max(1, _BLOCK_NUMBERS // self._size)

        def loss(trained: dict[str, torch.Tensor], fixed: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> Any:
            return functional.cross_entropy(functional_call(self._module, trained | fixed, (row[None],)), label[None])

        self._gradients = vmap(grad(loss), in_dims=(None, None, 0, 0), randomness="different")

    def __call__(self, parameters: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> FloatArray:
        total = torch.zeros(self._size, dtype=torch.float64)
        pieces = torch.split(parameters, [size for _, _, size, _ in self._shapes])
        state = {name: piece.view(shape) for piece, (name, shape, _, _) in zip(pieces, self._shapes, strict=True)}
        learns = {name for name, _, _, learned in self._shapes if learned}
        trained, fixed = ({name: value for name, value in state.items() if (name in learns) == wanted} for wanted in (True, False))
        for start in range(0, len(rows), self._block):
            some = slice(start, start + self._block)
            found = self._gradients(trained, fixed, rows[some], labels[some])
            squares = sum(found[name].double().square().flatten(1).sum(dim=1) for name in found)
            scale = self._factors(torch.as_tensor(squares).sqrt())
            place = 0
            for name, _, size, _ in self._shapes:
                if name in found:
                    kept = torch.where(scale[:, None] > 0, found[name].flatten(1).double(), 0.0)
                    total[place : place + size] += scale @ kept
                place += size
        return np.asarray(total.numpy())
