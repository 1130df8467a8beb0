"""Logistic regression and multilayer perceptrons for many clients at once: batched matrix products,
backward pass by hand.

Guarantee: the same batches and, up to float rounding, the same updates as `reference`. A client
never touches another one's numbers: padding repeats rows of its own batch with weight zero, so a
NaN stays where it arose. Nor do others change a bit of it: how wide its batches are padded follows
from its own rows, and what is left, how many clients share a product and in which place, is tried
out on made-up numbers before it is relied on; where it makes a difference on this machine, clients
are trained one at a time. Replies come in the order of the tasks, so that a sum does not depend on
who has how many rows. Memory is bounded by `_BLOCK_BYTES` (or one client, if that is larger), with
shaping by three times that, and not by the size of the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from fedspend.basics.arrays import IntArray
from fedspend.basics.threads import one_thread
from fedspend.client.batches import padded_batches, step_count
from fedspend.client.contribution import Reply
from fedspend.client.shaping import sparsify
from fedspend.client.task import ClientTask, LocalTraining
from fedspend.client.work import finished
from fedspend.engines.base import Workload
from fedspend.errors import InvalidInput
from fedspend.models.checking import check_module
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.models.linear import Layer, linear_layers

# Weights and activations of the clients that are trained together: enough to hide the cost of a
# call, few enough for the cache.
_BLOCK_BYTES = 4 * 2**20
_MOST_CLIENTS = 256  # whose updates wait for each other


class DenseEngine:
    name = "dense"
    outside = False

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        self._layers = linear_layers(work.module)
        if not self._layers:
            raise InvalidInput(
                "the dense engine takes a Sequential of Flatten, Linear and ReLU only; use engine "
                "'local'"
            )
        self._size, self._sizes = parameter_count(work.module), layer_sizes(work.module)
        self._work = work
        self._features = work.features.reshape(len(work.features), -1)
        self._scratch = Scratch()
        # how many clients may share a product
        self._together: dict[tuple[int, LocalTraining], int] = {}

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        several = max(1, min(_MOST_CLIENTS, _BLOCK_BYTES // (4 * self._size)))
        for start in range(0, len(tasks), several):
            some = tasks[start : start + several]
            with one_thread():
                tools, updates = self._work.tools, self._updates(some)
                for task, update in zip(some, updates, strict=True):
                    yield finished(task, update, len(self._work.shards[task.client]), tools)

    def close(self) -> None:
        pass

    def _updates(self, tasks: Sequence[ClientTask]) -> torch.Tensor:
        """The shaped updates of these clients, one row each, in the order of the tasks."""
        training = tasks[0].shared.training
        held = self._scratch.take("held", len(tasks), self._size).zero_()
        examples = [len(self._work.shards[task.client]) for task in tasks]
        widths = [padded_width(count, training.batch_size) for count in examples]
        steps = [step_count(count, training) for count in examples]
        order = sorted(
            (n for n in range(len(tasks)) if examples[n]), key=lambda n: (-widths[n], -steps[n], n)
        )
        for width, alike in groupby(order, key=lambda n: widths[n]):
            members, most = list(alike), self._clients_together(width, training)
            for start in range(0, len(members), most):
                block = members[start : start + most]
                together = block == list(range(block[0], block[0] + len(block)))
                rows = (
                    held[block[0] : block[0] + len(block)]
                    if together
                    else self._scratch.take("rows", len(block), self._size)
                )
                self._block([tasks[n] for n in block], width, out=rows)
                if not together:
                    held[block] = rows
        return held

    def _block(self, tasks: Sequence[ClientTask], width: int, out: torch.Tensor) -> None:
        """Write the updates of clients (most steps first) that are trained together,
        one row each.
        """
        shared, training = tasks[0].shared, tasks[0].shared.training
        rows, counts = self._tables(tasks, width)
        chosen = torch.from_numpy(rows)
        labels = (
            self._work.labels.index_select(0, chosen.view(-1))
            .view(chosen.shape)[:, :, None]
            .unbind()
        )
        share, space = (
            shares(counts, width)[:, :, None].unbind(),
            self._scratch.take("batch", len(tasks) * width, self._features.shape[1]),
        )
        radius = torch.tensor([task.clip_norm for task in tasks], dtype=torch.float32)
        block = _Block(
            self._layers,
            torch.from_numpy(shared.parameters),
            shared.lr,
            training,
            radius,
            self._scratch,
        )
        active = np.count_nonzero(counts, axis=1).tolist()
        for step, (many, wanted) in enumerate(zip(active, chosen.flatten(1).unbind(), strict=True)):
            # clients whose last step this is
            ending = slice(active[step + 1] if step + 1 < len(active) else 0, many)
            batch = torch.index_select(
                self._features, 0, wanted[: many * width], out=space[: many * width]
            )
            block.step(batch.view(many, width, -1), labels[step][:many], share[step][:many], ending)
        block.updates(out)
        if training.shape.lus > 0:
            sparsify(out, block.gradients, self._sizes, training.shape.lus)

    def _tables(self, tasks: Sequence[ClientTask], width: int) -> tuple[IntArray, IntArray]:
        """Rows of `features` for (step, client, column), and how many columns count for (step,
        client): 0 after the last step.
        """
        drawn = []
        for task in tasks:
            generator = self._work.randomness.generator("batches", task.shared.round, task.number)
            drawn.append(
                padded_batches(generator, len(self._work.shards[task.client]), task.shared.training)
            )
        steps = max(len(table) for table, _ in drawn)
        rows = np.zeros((steps, len(tasks), width), dtype=np.int64)
        counts = np.zeros((steps, len(tasks)), dtype=np.int64)
        for k, (task, (table, count)) in enumerate(zip(tasks, drawn, strict=True)):
            own = self._work.shards[task.client][table]
            rows[: len(table), k, : own.shape[1]] = own
            rows[: len(table), k, own.shape[1] :] = own[:, :1]
            counts[: len(table), k] = count
        return rows, counts

    def _clients_together(self, width: int, training: LocalTraining) -> int:
        """How many clients may share a product: as many as fit, if that makes no difference to any
        of them, else one.
        """
        if (width, training) not in self._together:
            activations = self._layers[0].inputs + sum(2 * layer.outputs for layer in self._layers)
            fit = max(
                1, min(_MOST_CLIENTS, _BLOCK_BYTES // (4 * (2 * self._size + width * activations)))
            )
            alike = fit == 1 or company_changes_nothing(self._layers, width, training, fit)
            self._together[width, training] = fit if alike else 1
        return self._together[width, training]


def padded_width(examples: int, batch_size: int) -> int:
    """To how many rows a client's batches are padded: by its own rows alone, at most twice as many
    as it has.

    >>> [padded_width(n, 20) for n in (0, 1, 3, 8, 9, 17, 20, 500)]
    [0, 1, 4, 8, 16, 20, 20, 20]
    """
    own = min(examples, batch_size)
    return own if own == 0 else min(batch_size, 1 << (own - 1).bit_length())


def shares(counts: IntArray, width: int) -> torch.Tensor:
    """(step, client, column): what a row weighs in its client's mean loss;
    padding weighs nothing.
    """
    return torch.from_numpy(
        (np.arange(width) < counts[:, :, None]) / np.maximum(counts, 1)[:, :, None]
    ).float()


def company_changes_nothing(
    layers: list[Layer], width: int, training: LocalTraining, most: int
) -> bool:
    """Whether a client of made-up numbers gets the same bits alone, beside one other and beside
    many, in any place.
    """
    most_steps, generator = 2, torch.Generator().manual_seed(0)
    size = max(
        place.stop for layer in layers for place in (layer.weight, layer.bias) if place is not None
    )
    start = torch.randn(size, generator=generator) / math.sqrt(layers[0].inputs)
    features = torch.randn(most, most_steps, width, layers[0].inputs, generator=generator)
    labels = torch.randint(layers[-1].outputs, (most, most_steps, 1, width), generator=generator)
    share, radius = torch.full((most, 1, width), 1 / width), torch.full((most,), 0.01)

    def moved(clients: list[int], lr: float, steps: int) -> torch.Tensor:
        block = _Block(layers, start, lr, training, radius[clients], Scratch())
        for step in range(steps):
            ending = slice(0, len(clients) if step == steps - 1 else 0)
            block.step(features[clients, step], labels[clients, step], share[clients], ending)
        found = torch.empty(len(clients), size)
        block.updates(found)
        return torch.cat([found, block.gradients]) if training.shape.lus > 0 else found

    everybody = list(range(most))
    alone = [[n] for n in everybody[:: max(1, most // 8)]]
    others = [*alone, [0, most - 1], everybody[::-1], everybody[: most // 2 + 1]]
    # At a usual rate the last bits of a gradient vanish beside the weights, here and not always
    # elsewhere; at a huge one they stay.
    for lr, steps in ((0.1, most_steps), (100.0, 1)):
        together = moved(everybody, lr, steps)
        if not all(
            torch.equal(moved(some, lr, steps), together[_places(some, most, len(together))])
            for some in others
        ):
            return False
    return True


def _places(clients: list[int], most: int, rows: int) -> list[int]:
    """Where these clients' updates, and gradients if there are any, stand among everybody's."""
    return [first + n for first in range(0, rows, most) for n in clients]


class Scratch:
    """Memory that is kept from block to block: the system takes as long to hand out fresh pages as
    a step takes.
    """

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
    """Weights (clients, outputs, inputs) and biases (clients, outputs, 1) of clients that take
    their steps together.

    Values between layers are (clients, outputs, examples): with few outputs the products are twice
    as fast that way round.
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
        self._layers, self._start, self._lr, self._momentum = (
            layers,
            parameters,
            lr,
            training.momentum,
        )
        self._blur, self._radius, self._lus, self._moved = (
            training.shape.blur,
            radius,
            training.shape.lus,
            False,
        )
        self._minus_one = torch.full((1, 1, 1), -1.0)
        # the loss gradient of each client's last step: LUS asks for it
        self.gradients = scratch.take("gradients", clients if self._lus else 0, parameters.numel())
        self._weights = [
            scratch.repeat(
                f"weight {layer.weight}", parameters[layer.weight].view(layer.outputs, -1), clients
            )
            for layer in layers
        ]
        self._biases = [
            None
            if layer.bias is None
            else scratch.repeat(f"bias {layer.bias}", parameters[layer.bias].view(-1, 1), clients)
            for layer in layers
        ]
        weights = [
            (weight, layer.weight) for weight, layer in zip(self._weights, layers, strict=True)
        ]
        biases = [
            (bias, layer.bias)
            for bias, layer in zip(self._biases, layers, strict=True)
            if bias is not None and layer.bias
        ]
        self._pieces = sorted([*weights, *biases], key=lambda piece: -piece[0].numel())
        self._first: tuple[int, list[torch.Tensor], list[torch.Tensor | None]] = (0, [], [])
        if self._momentum:
            self._weight_velocities = [torch.zeros_like(weight) for weight in self._weights]
            self._bias_velocities = [
                None if bias is None else torch.zeros_like(bias) for bias in self._biases
            ]

    def updates(self, out: torch.Tensor) -> None:
        """Write how far each client has moved from the start, one row each."""
        for values, place in self._pieces:
            torch.sub(values.flatten(1), self._start[place], out=out[:, place])

    def step(
        self, batch: torch.Tensor, labels: torch.Tensor, share: torch.Tensor, ending: slice
    ) -> None:
        """One step of the first `len(batch)` clients on (clients, examples, features); for those in
        `ending` it is the last.

        `labels` and `share` are (clients, 1, examples); a share is what an example weighs in its
        client's mean loss.
        """
        pull = self._pull(len(batch))
        weights, biases = self._of_first(len(batch))
        inputs, value = [batch], batch.transpose(1, 2)
        for layer, weight, bias in zip(self._layers, weights, biases, strict=True):
            value = torch.bmm(weight, value) if bias is None else torch.baddbmm(bias, weight, value)
            if layer.relu:
                value.relu_()
            inputs.append(value)
        gradient = torch.softmax(value, dim=1)
        gradient.scatter_add_(1, labels, self._minus_one.expand_as(labels)).mul_(share)
        for number in reversed(range(len(self._layers))):
            entering = inputs[number] if number == 0 else inputs[number].transpose(1, 2)
            below = torch.bmm(weights[number].transpose(1, 2), gradient) if number else None
            self._descend(number, gradient, entering, pull, ending)
            if below is not None:
                relu = self._layers[number - 1].relu
                gradient = (
                    torch.ops.aten.threshold_backward(below, inputs[number], 0) if relu else below
                )

    def _of_first(self, clients: int) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Weights and biases of the first `clients`: hardly ever others than in the step before."""
        if self._first[0] != clients:
            biases = [None if bias is None else bias[:clients] for bias in self._biases]
            self._first = clients, [weight[:clients] for weight in self._weights], biases
        return self._first[1], self._first[2]

    def _pull(self, clients: int) -> torch.Tensor | None:
        """BLUR's weight of `w - w_t` in the gradient: `blur` for a client outside its ball, else 0;
        None if all are inside.
        """
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

    def _descend(
        self,
        number: int,
        gradient: torch.Tensor,
        inputs: torch.Tensor,
        pull: torch.Tensor | None,
        ending: slice,
    ) -> None:
        clients, layer = len(gradient), self._layers[number]
        weights, biases = self._of_first(clients)
        weight, bias = weights[number], biases[number]
        keeps_gradient = self._lus > 0 and ending.start < ending.stop
        if keeps_gradient:
            self.gradients[ending, layer.weight] = torch.bmm(
                gradient[ending], inputs[ending]
            ).flatten(1)
        if self._momentum:
            velocity = self._weight_velocities[number][:clients]
            velocity.baddbmm_(gradient, inputs, beta=self._momentum)
            if pull is not None:
                velocity.addcmul_(weight, pull).addcmul_(
                    self._start[layer.weight].view(layer.outputs, -1), -pull
                )
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
                change.addcmul_(bias, pull).addcmul_(self._start[layer.bias][:, None], -pull)
        elif pull is not None:
            bias.lerp_(self._start[layer.bias][:, None], self._lr * pull)
        bias.add_(change, alpha=-self._lr)
