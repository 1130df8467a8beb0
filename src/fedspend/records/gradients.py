"""The sum of clipped gradients over single records.

Guarantee: every record's gradient has an L2 norm of at most the clip in the sum, whatever the model does; one that is not finite
counts as zero. Norms are float64. Chains of Linear and ReLU never form the single gradients: the norm of a layer's gradient is
`|delta| * sqrt(|input|^2 + 1)`. Chains with convolutions are in `chains`. Any other module uses `torch.func.vmap`, in blocks of
bounded memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedspend.arrays import FloatArray
from fedspend.engines.dense import Layer, linear_layers
from fedspend.engines.flat import parameter_count
from fedspend.mechanism import clip_factors
from fedspend.models.checking import check_module
from fedspend.records.chains import ChainSum, supports

_BLOCK_NUMBERS = 2**24  # of single gradients that exist at once

GradientSum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], FloatArray]  # (parameters, rows, labels) -> (parameters,)


def clipped_sum(module: nn.Module, clip: float) -> GradientSum:
    """The function that sums the clipped gradients of the cross-entropy of each row."""
    check_module(module)
    layers = linear_layers(module)
    if layers:
        return DenseSum(layers, parameter_count(module), clip)
    return ChainSum(module, clip) if isinstance(module, nn.Sequential) and supports(module) else GeneralSum(module, clip)


class DenseSum:
    def __init__(self, layers: list[Layer], size: int, clip: float) -> None:
        self._layers, self._size, self._clip = layers, size, clip

    @torch.no_grad()
    def __call__(self, parameters: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> FloatArray:
        flat, inputs = parameters.double(), [rows.flatten(1).double()]
        weights = [flat[layer.weight].view(layer.outputs, layer.inputs) for layer in self._layers]
        scores = inputs[0]
        for layer, weight in zip(self._layers, weights, strict=True):
            # few outputs: the product is faster this way round
            scores = (weight @ inputs[-1].T).T + (0.0 if layer.bias is None else flat[layer.bias])
            inputs.append(scores.clamp(min=0) if layer.relu else scores)
        delta = torch.softmax(scores, dim=1)
        delta[torch.arange(len(labels)), labels] -= 1
        squares, deltas = torch.zeros(len(rows), dtype=torch.float64), []
        for number in range(len(self._layers) - 1, -1, -1):
            layer, entering = self._layers[number], inputs[number]
            length = torch.linalg.vector_norm(entering, dim=1)
            squares += delta.square().sum(dim=1) * (length.square() + (layer.bias is not None))
            deltas.append(delta)
            if number:
                delta = delta @ weights[number]
                if self._layers[number - 1].relu:
                    delta = delta * (entering > 0)
        scale = clip_factors(squares.sqrt(), self._clip)
        total = torch.zeros(self._size, dtype=torch.float64)
        finite = scale > 0
        if not bool(finite.all()):  # zero times NaN would be NaN
            scale, deltas, inputs = scale[finite], [delta[finite] for delta in deltas], [entering[finite] for entering in inputs]
        for layer, entering, delta in zip(self._layers, inputs, reversed(deltas), strict=False):
            kept = scale[:, None] * delta
            total[layer.weight] = (kept.T @ entering).reshape(-1)
            if layer.bias is not None:
                total[layer.bias] = kept.sum(dim=0)
        return total.numpy()


class GeneralSum:
    def __init__(self, module: nn.Module, clip: float) -> None:
        self._module, self._clip, self._size = copy.deepcopy(module).train(), clip, parameter_count(module)
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
            scale = clip_factors(torch.as_tensor(squares).sqrt(), self._clip)
            place = 0
            for name, _, size, _ in self._shapes:
                if name in found:
                    kept = torch.where(scale[:, None] > 0, found[name].flatten(1).double(), 0.0)
                    total[place : place + size] += scale @ kept
                place += size
        return np.asarray(total.numpy())
