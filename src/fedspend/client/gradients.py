"""The sum of clipped gradients over single records.

Guarantee: every record's gradient has an L2 norm below the clip in the sum, whatever the model
does, and depends on no other record, to the last bit: all are computed in `blocks` of one size. One
that is not finite counts as zero. Norms are float64, and never too small: a norm that comes out too
small is a gradient that is not clipped. So taking a record out moves the sum by what it added, and
by how the sum itself rounds, which is in doubles: of n records, at most `n^2 / 2^52` clips. Clipped
norms are 1e-6 below the clip, which is more for up to 60,000 records.

Chains of Linear and ReLU never form the single gradients: the norm of a layer's gradient is
`|delta| * sqrt(|input|^2 + 1)`. Chains with convolutions are in `gradient_chains`. Any other module
uses `torch.func.vmap`, in blocks of bounded memory; its gradients are float32, whose squares lie
between 1e-90 and 1e77, so that they neither vanish nor overflow in doubles.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.client.blocks import SMALLEST, Gradients, InBlocks, block_size
from fedspend.client.bounding import Factors, clip_factors
from fedspend.client.gradient_chains import ChainSum, supports
from fedspend.models.checking import check_module
from fedspend.models.flat import named_pieces, parameter_count, trainable
from fedspend.models.fresh import fresh
from fedspend.models.linear import Layer, linear_layers
from fedspend.tasks.task import CLASSIFY, Task

_BLOCK_NUMBERS = 2**24  # numbers in the single gradients that exist at once
# More than all that a sum of squares, or a product of two, loses where numbers are too small for
# doubles: each loses at most 2.3e-308, also where a processor takes such numbers for zero.
_LOST = 1e-290

_PLAIN = (int, float, str, tuple)  # attributes of a module that may decide what is computed

# (parameters, rows, labels) -> (parameters,)
GradientSum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], FloatArray]


def clipped_sum(
    module: nn.Module,
    clip: float,
    factors: Factors | None = None,
    task: Task = CLASSIFY,
    *,
    records: int = SMALLEST,
) -> DenseSum | ChainSum | GeneralSum:
    """A function that sums the clipped gradients of each row's loss. `factors` may scale them down
    further. `records` is how many are expected at once, a public number: it decides how fast the
    sum is, and how it is rounded.
    """
    check_module(module)
    layers, factors = linear_layers(module), factors or partial(clip_factors, bound=clip)
    if layers:
        return DenseSum(layers, parameter_count(module), factors, task, records)
    if isinstance(module, nn.Sequential) and supports(module):
        return ChainSum(module, factors, task, records)
    return GeneralSum(module, factors, task, records)


class DenseSum(InBlocks):
    """Uses numpy, because for a hundred records torch spends most of its time on call overhead;
    matrix products use torch with one thread.

    Inputs and slopes are doubles of any size here, chosen by whoever chose the parameters. Slopes
    of 1e-163 have squares of zero, and with inputs of 1e150 a gradient of 1e-13. So every sum of
    squares is raised by more than can be lost in it, which changes no bit of one above 1e-274.
    Squares that overflow are infinite, and the record counts as zero. Inputs of a record that is
    summed are therefore below 1.4e154, and what its scaled slopes lose, 5e-324 each, is below
    1e-169 in the sum: nothing beside a clip (`planning.clipping.LEAST_CLIP`).
    """

    def __init__(
        self,
        layers: list[Layer],
        size: int,
        factors: Factors,
        task: Task = CLASSIFY,
        records: int = SMALLEST,
    ) -> None:
        self._layers, self._size, self._factors, self._task = layers, size, factors, task
        widest = max(layer.inputs + layer.outputs for layer in layers)
        self._size_planned = block_size(records, _BLOCK_NUMBERS // widest)

    def _planned(self, _row: torch.Tensor) -> int:
        return self._size_planned

    def _structure(self) -> Hashable:
        return self._task.of_rows, str(self._layers)

    def _at(self, parameters: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], Gradients]:
        flat = parameters.double().numpy()
        weights = [
            flat[layer.weight].reshape(layer.outputs, layer.inputs) for layer in self._layers
        ]
        return partial(self._of_block, flat, weights)

    def _of_block(
        self,
        flat: FloatArray,
        weights: list[FloatArray],
        rows: torch.Tensor,
        labels: torch.Tensor,
    ) -> _Chained:
        inputs = [rows.flatten(1).double().numpy()]
        with np.errstate(over="ignore", invalid="ignore"):  # a record may not be finite
            for layer, weight in zip(self._layers, weights, strict=True):
                scores = _product(weight, inputs[-1].T).T  # few outputs: faster this way round
                if layer.bias is not None:
                    scores += flat[layer.bias]
                inputs.append(np.maximum(scores, 0.0, out=scores) if layer.relu else scores)
            deltas = self._backward(weights, inputs, self._loss_gradient(inputs[-1], labels))
            return _Chained(self._layers, inputs, deltas)

    def _loss_gradient(self, scores: FloatArray, labels: torch.Tensor) -> FloatArray:
        """The gradient of each row's loss at the scores."""
        if self._task.classifies:
            return _of_cross_entropy(scores, labels.numpy())
        if not len(scores):
            return scores
        leaf = torch.from_numpy(scores).requires_grad_()
        wanted = labels.double() if labels.is_floating_point() else labels
        (found,) = torch.autograd.grad(self._task.apart(leaf, wanted), leaf)
        return np.asarray(found.numpy())

    def _backward(
        self, weights: list[FloatArray], inputs: list[FloatArray], delta: FloatArray
    ) -> list[FloatArray]:
        """The loss gradient of each layer's output, before its ReLU."""
        deltas = [delta]
        for number in range(len(self._layers) - 1, 0, -1):
            delta = _product(delta, weights[number])
            if self._layers[number - 1].relu:
                delta *= inputs[number] > 0
            deltas.append(delta)
        return deltas[::-1]


class _Chained(Gradients):
    """Of a chain of linear layers: what enters each, and the loss gradient of what leaves it."""

    def __init__(
        self, layers: Sequence[Layer], inputs: list[FloatArray], deltas: list[FloatArray]
    ) -> None:
        self._layers, self._inputs, self._deltas = layers, inputs, deltas
        squares = np.full(len(inputs[0]), _LOST)
        for layer, entering, delta in zip(layers, inputs, deltas, strict=False):
            one = _LOST if layer.bias is None else 1.0
            squares += (_row_squares(delta) + _LOST) * (_row_squares(entering) + one)
        self.norms = np.sqrt(squares)

    def numbers(self) -> list[npt.NDArray[Any]]:
        return [*self._inputs, *self._deltas]

    def add(self, total: FloatArray, scale: FloatArray) -> None:
        kept: slice | IntArray = slice(_leading(scale))  # no copies, but where others are between
        if not (scale[kept] > 0).all():
            kept = np.flatnonzero(scale > 0)  # zero times NaN would be NaN
        for layer, entering, delta in zip(self._layers, self._inputs, self._deltas, strict=False):
            scaled = scale[kept, None] * delta[kept]
            total[layer.weight] += _product(scaled.T, entering[kept]).ravel()
            if layer.bias is not None:
                total[layer.bias] += scaled.sum(axis=0)


def _leading(scale: FloatArray) -> int:
    """How many there are up to the last one that counts."""
    counting = np.flatnonzero(scale > 0)
    return int(counting[-1]) + 1 if counting.size else 0


def _of_cross_entropy(scores: FloatArray, labels: IntArray) -> FloatArray:
    """The gradient of each row's cross-entropy: softmax minus one-hot."""
    # in torch's memory, which always begins alike: some kernels round by where numbers begin
    delta: FloatArray = torch.empty_like(torch.from_numpy(scores)).numpy()
    np.subtract(scores, scores.max(axis=1, keepdims=True, initial=-np.inf), out=delta)
    np.exp(delta, out=delta)
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    return delta


def _product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Within `single_threaded`, the same to the last bit on every machine; numpy's own product
    depends on the number of threads.
    """
    product: FloatArray = torch.mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    return product


def _row_squares(rows: FloatArray) -> FloatArray:
    squares: FloatArray = np.einsum("ij,ij->i", rows, rows)
    return squares


class GeneralSum(InBlocks):
    """Of any module, by `torch.func.vmap`."""

    def __init__(
        self,
        module: nn.Module,
        factors: Factors,
        task: Task = CLASSIFY,
        records: int = SMALLEST,
    ) -> None:
        self._module, self._factors, self._size = (
            copy.deepcopy(module).train(),
            factors,
            parameter_count(module),
        )
        self._pristine = copy.deepcopy(self._module)
        self._sizes = [(name, parameter.numel()) for name, parameter in trainable(module)]
        self._size_planned = block_size(records, _BLOCK_NUMBERS // self._size)
        self._task = self._once = task

        def loss(trained: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> Any:
            output = functional_call(self._module, trained, (row[None],))
            return self._once.mean(output, label[None])

        self._gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")

    def _planned(self, _row: torch.Tensor) -> int:
        return self._size_planned

    def _structure(self) -> Hashable:
        return self._task.of_rows, str(self._pristine), _described(self._pristine), *self._sizes

    def _at(self, parameters: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], Gradients]:
        trained = named_pieces(self._pristine, parameters)

        def of_block(rows: torch.Tensor, labels: torch.Tensor) -> _Single:
            # no block may leave anything behind for the next
            self._module, self._once = fresh(self._pristine), self._task.fresh()
            found = self._gradients(trained, rows, labels)
            return _Single([found[name].flatten(1) for name, _ in self._sizes])

        return of_block


def _described(module: nn.Module) -> Hashable:
    """Types of the parts of a module, and what they hold that need not be in its text."""
    return tuple(
        (
            type(part),
            tuple(
                (name, repr(value))
                for name, value in vars(part).items()
                if isinstance(value, _PLAIN)
            ),
        )
        for part in module.modules()
    )


class _Single(Gradients):
    """Gradients in pieces, one for each parameter of the module."""

    def __init__(self, pieces: list[torch.Tensor]) -> None:
        self._pieces = pieces
        squares = sum(piece.double().square().sum(dim=1) for piece in pieces)
        self.norms = torch.as_tensor(squares).sqrt().numpy()

    def numbers(self) -> list[npt.NDArray[Any]]:
        return [piece.numpy() for piece in self._pieces]

    def add(self, total: FloatArray, scale: FloatArray) -> None:
        place, factors = 0, torch.from_numpy(scale)
        for piece in self._pieces:
            kept = torch.where(factors[:, None] > 0, piece.double(), 0.0)
            stop = place + piece.shape[1]
            total[place:stop] += (factors @ kept).numpy()
            place = stop
