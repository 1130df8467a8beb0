"""Logistic regression and multilayer perceptrons for many clients at once: batched matrix products, backward pass by hand.

Guarantee: the same batches and, up to float rounding, the same updates as `reference`. A client never touches another one's
numbers: padding repeats rows of its own batch with weight zero, so a NaN stays where it arose. Memory is bounded by `_BLOCK_BYTES`
(or one client, if that is larger), with shaping by three times that, and not by the size of the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedspend.arrays import FloatArray, IntArray
from fedspend.engines.base import LocalTraining, Reduce, Reduced, Workload
from fedspend.engines.batches import padded_batches, step_count
from fedspend.engines.flat import layer_sizes, parameter_count
from fedspend.engines.shaping import sparsify
from fedspend.errors import InvalidInput
from fedspend.models.checking import check_module

# Weights and activations of the clients that are trained together: enough to hide the cost of a call, few enough for the cache.
_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Layer:
    """One linear layer: where its weight and bias lie in the flat vector, and whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None
    relu: bool


def supports(module: nn.Module) -> bool:
    """Whether the module is a chain of Linear and ReLU layers that ends with a Linear one; Flatten is allowed anywhere.

    >>> supports(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    True
    >>> supports(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    False
    """
    return bool(linear_layers(module))


def linear_layers(module: nn.Module) -> list[Layer]:
    """The linear layers in order, or none if the module is anything else."""
    if type(module) is nn.Linear:
        module = nn.Sequential(module)
    if type(module) is not nn.Sequential or not all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters()):
        return []
    found: list[Layer] = []
    start, seen = 0, set()
    for part in module:
        if type(part) is nn.ReLU and found:
            last = found.pop()
            found.append(Layer(last.inputs, last.outputs, last.weight, last.bias, relu=True))
        elif type(part) is nn.Linear and part not in seen:
            weight = slice(start, start + part.weight.numel())
            bias = None if part.bias is None else slice(weight.stop, weight.stop + part.out_features)
            found.append(Layer(part.in_features, part.out_features, weight, bias, relu=False))
            start = weight.stop if bias is None else bias.stop
            seen.add(part)
        elif not (type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1):
            return []
    return found if found and not found[-1].relu else []


class DenseEngine:
    name = "dense"

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        self._layers = linear_layers(work.module)
        if not self._layers:
            raise InvalidInput("the dense engine takes a Sequential of Flatten, Linear and ReLU only; use engine 'local'")
        self._size, self._sizes = parameter_count(work.module), layer_sizes(work.module)
        self._work = work
        self._features = work.features.reshape(len(work.features), -1)
        self._scratch = Scratch()

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        total: FloatArray = np.zeros(self._work.sum_size)
        norms = np.zeros(len(cohort))
        clipped, discarded = np.zeros(len(cohort), dtype=bool), np.zeros(len(cohort), dtype=bool)
        for members in self._blocks(cohort):
            clients = cohort[members]
            updates = self._updates(parameters, clients, round, lr, reduce.clip_norms[clients])
            reduced = self._work.reduced(parameters, updates, clients, round, reduce)
            total += reduced.total
            norms[members], clipped[members], discarded[members] = reduced.norms, reduced.clipped, reduced.discarded
        return Reduced(total, norms, clipped, discarded)

    def close(self) -> None:
        pass

    def _blocks(self, cohort: IntArray) -> Iterator[IntArray]:
        """Positions in the cohort of clients that are trained together: like sizes next to each other, so that little is padded."""
        examples = np.array([len(self._work.shards[client]) for client in cohort], dtype=np.int64)
        steps = np.array([step_count(int(n), self._work.training) for n in examples], dtype=np.int64)
        widths = np.minimum(examples, self._work.training.batch_size)
        order = np.lexsort((np.arange(len(cohort)), -widths, -steps))
        activations = self._layers[0].inputs + sum(2 * layer.outputs for layer in self._layers)
        start = 0
        while start < len(order):
            one_client = 4 * (2 * self._size + int(widths[order[start]]) * activations)
            stop = start + max(1, _BLOCK_BYTES // one_client)
            yield order[start:stop]
            start = stop

    def _updates(self, parameters: torch.Tensor, clients: IntArray, round: int, lr: float, radius: FloatArray) -> torch.Tensor:
        """The updates of these clients (most steps first), one row each, before clipping."""
        rows, counts = self._tables(clients, round)
        width = rows.shape[2]
        share = torch.from_numpy((np.arange(width) < counts[:, :, None]) / np.maximum(counts, 1)[:, :, None]).float()
        chosen = torch.from_numpy(rows)
        labels = self._work.labels.index_select(0, chosen.view(-1)).view(chosen.shape)
        shape = self._work.training.shape
        block = _Block(self._layers, parameters, lr, self._work.training, torch.from_numpy(radius).float(), self._scratch)
        space = self._scratch.take("batch", len(clients) * width, self._features.shape[1])
        active, widest = np.count_nonzero(counts, axis=1).tolist(), counts.max(axis=1, initial=0).tolist()
        for step, (many, wide) in enumerate(zip(active, widest, strict=True)):
            place = (step, slice(many), slice(wide))
            batch = torch.index_select(self._features, 0, chosen[place].reshape(-1), out=space[: many * wide])
            ending = slice(active[step + 1] if step + 1 < len(active) else 0, many)  # clients whose last step this is
            block.step(batch.view(many, wide, -1), labels[place][:, :, None], share[place][:, :, None], ending)
        updates, moved = block.updates(), active[0] if active else 0
        if shape.lus > 0:
            sparsify(updates[:moved], block.gradients[:moved], self._sizes, shape.lus)
        return updates

    def _tables(self, clients: IntArray, round: int) -> tuple[IntArray, IntArray]:
        """Rows of `features` for (step, client, column), and how many columns count for (step, client): 0 after the last step."""
        shards = [self._work.shards[client] for client in clients]
        generators = [self._work.randomness.generator("batches", round, int(client)) for client in clients]
        drawn = [padded_batches(g, len(shard), self._work.training) for g, shard in zip(generators, shards, strict=True)]
        steps = max(len(table) for table, _ in drawn)
        width = max(table.shape[1] for table, _ in drawn)
        rows = np.zeros((steps, len(clients), width), dtype=np.int64)
        counts = np.zeros((steps, len(clients)), dtype=np.int64)
        for k, (shard, (table, count)) in enumerate(zip(shards, drawn, strict=True)):
            if len(table):
                own = shard[table]
                rows[: len(table), k, : own.shape[1]] = own
                if own.shape[1] < width:
                    rows[: len(table), k, own.shape[1] :] = own[:, :1]
                counts[: len(table), k] = count
        return rows, counts


class Scratch:
    """Memory that is kept from block to block: the system takes as long to hand out fresh pages as a step takes."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor with anything in it, valid until the same name is taken again."""
        numbers = math.prod(shape)
        if name not in self._held or self._held[name].numel() < numbers:
            self._held[name] = torch.empty(numbers)
        return self._held[name][:numbers].view(shape)

    def repeat(self, name: str, piece: torch.Tensor, clients: int) -> torch.Tensor:
        return self.take(name, clients, *piece.shape).copy_(piece)


class _Block:
    """Weights (clients, outputs, inputs) and biases (clients, outputs, 1) of clients that take their steps together.

    Values between layers are (clients, outputs, examples): with few outputs the products are twice as fast that way round.
    """

    def __init__(
        self,
        layers: list[Layer],
        parameters: torch.Tensor,
        lr: float,
        training: LocalTraining,
        radius: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        clients, self._scratch = len(radius), scratch
        self._layers, self._start, self._lr, self._momentum = layers, parameters, lr, training.momentum
        self._blur, self._radius, self._lus, self._moved = training.shape.blur, radius, training.shape.lus, False
        # the loss gradient of each client's last step: LUS asks for it
        self.gradients = scratch.take("gradients", clients if self._lus else 0, parameters.numel())
        self._weights = [
            scratch.repeat(f"weight {layer.weight}", parameters[layer.weight].view(layer.outputs, -1), clients) for layer in layers
        ]
        self._biases = [
            None if layer.bias is None else scratch.repeat(f"bias {layer.bias}", parameters[layer.bias].view(-1, 1), clients)
            for layer in layers
        ]
        weights = [(weight, layer.weight) for weight, layer in zip(self._weights, layers, strict=True)]
        biases = [(bias, layer.bias) for bias, layer in zip(self._biases, layers, strict=True) if bias is not None and layer.bias]
        self._pieces = sorted([*weights, *biases], key=lambda piece: -piece[0].numel())
        if self._momentum:
            self._weight_velocities = [torch.zeros_like(weight) for weight in self._weights]
            self._bias_velocities = [None if bias is None else torch.zeros_like(bias) for bias in self._biases]

    def updates(self) -> torch.Tensor:
        """How far each client has moved from the start."""
        moved = self._scratch.take("updates", len(self._radius), self._start.numel())
        for values, place in self._pieces:
            torch.sub(values.flatten(1), self._start[place], out=moved[:, place])
        return moved

    def step(self, batch: torch.Tensor, labels: torch.Tensor, share: torch.Tensor, ending: slice) -> None:
        """One step of the first `len(batch)` clients on (clients, examples, features); for those in `ending` it is the last.

        `labels` and `share` are (clients, examples, 1); a share is what an example weighs in its client's mean loss.
        """
        clients = len(batch)
        pull = self._pull(clients)
        value = batch.transpose(1, 2)
        inputs = []
        for layer, weight, bias in zip(self._layers, self._weights, self._biases, strict=True):
            inputs.append(value)
            value = torch.bmm(weight[:clients], value) if bias is None else torch.baddbmm(bias[:clients], weight[:clients], value)
            if layer.relu:
                value.relu_()
        # softmax over any but the last dimension has last bits that depend on the number of threads
        errors = torch.softmax(value.transpose(1, 2).contiguous(), dim=2)
        errors.scatter_add_(2, labels, torch.full((1, 1, 1), -1.0).expand_as(labels)).mul_(share)
        gradient = errors.transpose(1, 2)
        for number in reversed(range(len(self._layers))):
            below = torch.bmm(self._weights[number][:clients].transpose(1, 2), gradient) if number else None
            self._descend(number, gradient, inputs[number].transpose(1, 2), pull, ending)
            if below is not None:
                relu = self._layers[number - 1].relu
                gradient = torch.ops.aten.threshold_backward(below, inputs[number], 0) if relu else below

    def _pull(self, clients: int) -> torch.Tensor | None:
        """BLUR's weight of `w - w_t` in the gradient: `blur` for a client outside its ball, else 0; None if all are inside."""
        if not self._blur or not self._moved:
            self._moved = True
            return None
        radius, norm = self._radius[:clients], torch.zeros(())
        for values, place in self._pieces:
            apart = self._scratch.take("apart", clients, place.stop - place.start)
            torch.sub(values[:clients].flatten(1), self._start[place], out=apart)
            norm = torch.hypot(norm, torch.linalg.vector_norm(apart, dim=1))
            outside = norm > radius
            if bool(outside.all()):  # the pieces that are left can only add
                break
        return (outside * self._blur)[:, None, None] if bool(outside.any()) else None

    def _descend(self, number: int, gradient: torch.Tensor, inputs: torch.Tensor, pull: torch.Tensor | None, ending: slice) -> None:
        clients, layer = len(gradient), self._layers[number]
        weight, bias = self._weights[number][:clients], self._biases[number]
        keeps_gradient = self._lus > 0 and ending.start < ending.stop
        if keeps_gradient:
            self.gradients[ending, layer.weight] = torch.bmm(gradient[ending], inputs[ending]).flatten(1)
        if self._momentum:
            velocity = self._weight_velocities[number][:clients]
            velocity.baddbmm_(gradient, inputs, beta=self._momentum)
            if pull is not None:
                velocity.addcmul_(weight, pull).addcmul_(self._start[layer.weight].view(layer.outputs, -1), -pull)
            weight.add_(velocity, alpha=-self._lr)
        else:
            if pull is not None:
                weight.lerp_(self._start[layer.weight].view(layer.outputs, -1), self._lr * pull)
            weight.baddbmm_(gradient, inputs, alpha=-self._lr)
        if bias is None or layer.bias is None:
            return
        change = gradient.sum(dim=2, keepdim=True)
        if keeps_gradient:
            self.gradients[ending, layer.bias] = change[ending, :, 0]
        if self._momentum:
            velocities = self._bias_velocities[number]
            assert velocities is not None
            change = velocities[:clients].mul_(self._momentum).add_(change)
            if pull is not None:
                change.addcmul_(bias[:clients], pull).addcmul_(self._start[layer.bias][:, None], -pull)
        elif pull is not None:
            bias[:clients].lerp_(self._start[layer.bias][:, None], self._lr * pull)
        bias[:clients].add_(change, alpha=-self._lr)
