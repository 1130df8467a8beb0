"""Logistic regression and multilayer perceptrons for many clients at once: batched matrix products,
backward pass by hand.

Guarantee: the same batches and, up to float rounding, the same updates as `reference`. A client
never touches another one's numbers: padding repeats rows of its own batch with weight zero, so a
NaN stays where it arose. Nor do others change a bit of it: how wide its batches are padded follows
from its own rows, and what is left, how many clients share a product and in which place, is tried
out on made-up numbers before it is relied on; where it makes a difference on this machine, clients
are trained one at a time. Replies come in the order of the tasks, so that a sum does not depend on
who has how many rows. Memory is bounded by `_HELD_BYTES` and a `_BLOCK_BYTES` for each layer and
one more (or by one client, if that is larger), with shaping by three times that, and not by the
size of the cohort.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from fedspend.basics.arrays import Float32Array, IntArray
from fedspend.basics.threads import one_thread
from fedspend.client.batches import Cut, step_count
from fedspend.client.contribution import Reply
from fedspend.client.shaping import sparsify
from fedspend.client.task import ClientTask, LocalTraining
from fedspend.client.work import failing, finished
from fedspend.engines.base import Workload
from fedspend.engines.clientwise import ClientTrainer
from fedspend.engines.slopes import CROSS_ENTROPY, Slope, slope_of
from fedspend.errors import InvalidInput
from fedspend.models.checking import check_module
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.models.linear import Layer, linear_layers

# Weights and activations of the clients that are trained together, times one more than there are
# layers: enough to hide the cost of calls, of which each layer needs some, few enough for the cache
# next to the core.
_BLOCK_BYTES = 2**20
_HELD_BYTES = 4 * 2**20  # of updates that wait for each other
_MOST_CLIENTS = 256

Draws = Iterator[np.random.Generator]  # for the batches of one client after the other


class DenseEngine:
    name = "dense"
    outside = False

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        self._layers = linear_layers(work.module)
        if not self._layers:
            raise InvalidInput(
                "the dense engine takes a Sequential of Flatten, Linear and ReLU only; "
                "use engine 'local'"
            )
        slope = slope_of(work.task)
        if slope is None:
            raise InvalidInput(
                f"the dense engine has no products for loss {work.task.name!r}; use engine 'local'"
            )
        self._slope = slope
        self._size, self._sizes = parameter_count(work.module), layer_sizes(work.module)
        self._work = work
        self._features = work.features.detach().reshape(len(work.features), -1)
        lie_together = self._features.is_contiguous()
        self._array = self._features.numpy() if lie_together else None
        self._scratch = Scratch()
        self._raised: dict[str, Exception] = {}  # by clients whose update is not asked for yet
        self._one_by_one = ClientTrainer(work)
        # how many clients may share a product
        self._together: dict[tuple[int, LocalTraining], int] = {}

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        if tasks and not tasks[0].shared.training.descent.plain:
            yield from map(self._one_by_one, tasks)  # products are written for plain SGD
            return
        several = max(1, min(_MOST_CLIENTS, _HELD_BYTES // (4 * self._size)))
        tools, shards = self._work.tools, self._work.shards
        for start in range(0, len(tasks), several):
            some = tasks[start : start + several]
            with one_thread():
                for task, update in zip(some, self._updates(some), strict=True):
                    raised, rows = self._raised.pop(task.client, None), len(shards[task.client])
                    if raised is None:
                        yield finished(task, update, rows, tools)
                    else:
                        yield failing(task, raised, rows, tools)

    def close(self) -> None:
        pass

    def _updates(self, tasks: Sequence[ClientTask]) -> Iterator[torch.Tensor]:
        """The shaped updates of these clients in the order of the tasks, each as soon as it and all
        before it are there: then it is still in the cache.
        """
        held, blocks = self._scratch.take("held", len(tasks), self._size), [*self._blocks(tasks)]
        rows, waiting = held.unbind(), dict[int, torch.Tensor]()
        numbers = [tasks[n].number for members, width in blocks if width for n in members]
        draws = self._draws(tasks[0], numbers)
        first, due = 0, 0
        for members, width in blocks:
            last, some = first + len(members), [tasks[n] for n in members]
            if width:
                numbers = numbers[len(members) :]
            try:
                self._block(some, width, draws, out=held[first:last])
            except Exception:
                self._alone(some, width, out=held[first:last])
                draws = self._draws(tasks[0], numbers)
            waiting.update(zip(members, rows[first:last], strict=True))
            first = last
            while due in waiting:
                yield waiting.pop(due)
                due += 1
            if not waiting:
                first = 0  # nobody needs those rows any more

    def _draws(self, task: ClientTask, numbers: Sequence[int]) -> Draws:
        return self._work.randomness.generators("batches", task.shared.round, numbers)

    def _alone(self, tasks: Sequence[ClientTask], width: int, out: torch.Tensor) -> None:
        """The same as `_block`, one client at a time: one whose work raises takes nobody along."""
        for task, row in zip(tasks, out, strict=True):
            try:
                self._block([task], width, self._draws(task, [task.number]), out=row[None])
            except Exception as error:
                self._raised[task.client] = error

    def _blocks(self, tasks: Sequence[ClientTask]) -> Iterator[tuple[list[int], int]]:
        """Places in `tasks` of clients that are trained together, most steps first, and how wide
        their batches are: 0 for those without rows.
        """
        training = tasks[0].shared.training
        examples = [len(self._work.shards[task.client]) for task in tasks]
        widths = {count: padded_width(count, training.batch_size) for count in set(examples)}
        steps = {count: step_count(count, training) for count in widths}
        alike = defaultdict[int, list[int]](list)
        for place, count in enumerate(examples):
            alike[widths[count]].append(place)
        for width, places in alike.items():
            places.sort(key=lambda place: -steps[examples[place]])
            blocks = -(-len(places) // self._clients_together(width, training))
            each = -(-len(places) // blocks)
            for start in range(0, len(places), each):
                yield places[start : start + each], width

    def _block(
        self, tasks: Sequence[ClientTask], width: int, draws: Draws, out: torch.Tensor
    ) -> None:
        """Write the updates of clients (most steps first) that are trained together, one row
        each.
        """
        if width == 0:
            out.zero_()
            return
        shared, training, clients = tasks[0].shared, tasks[0].shared.training, len(tasks)
        rows, counts = self._tables([task.client for task in tasks], width, training, draws)
        with torch.inference_mode():  # spares each call the preparations for autograd
            labels = self._work.labels.index_select(0, torch.from_numpy(rows).view(-1))
            label_of = self._slope.arranged(labels, clients, width).unbind()
            share_of = shares(counts, width)[:, :, None].unbind()
            radius = torch.tensor([task.clip_norm for task in tasks], dtype=torch.float32)
            start = torch.from_numpy(shared.parameters)
            block = _Block(
                self._layers, start, shared.lr, training, radius, self._scratch, self._slope
            )
            space = self._scratch.take("batch", clients, width, self._features.shape[1])
            active = [*(counts > 0).sum(axis=1).tolist(), 0]
            for step, (many, staying) in enumerate(pairwise(active)):
                numbers, batch, label, share = rows[step], space, label_of[step], share_of[step]
                if many < clients:
                    numbers, batch = numbers[:many], batch[:many]
                    label, share = label[:many], share[:many]
                self._gather(numbers, out=batch)
                block.step(batch, label, share, slice(staying, many))
            block.updates(out)
            if training.shape.lus > 0:
                sparsify(out, block.gradients, self._sizes, training.shape.lus)

    def _gather(self, numbers: IntArray, out: torch.Tensor) -> None:
        """Write the rows with these numbers, which are known to be there.

        numpy is faster than torch by a tenth, but would first copy rows that lie apart.
        """
        if self._array is not None:
            self._array.take(numbers, axis=0, out=out.numpy(), mode="clip")
        else:
            chosen = torch.from_numpy(numbers).view(-1)
            torch.index_select(self._features, 0, chosen, out=out.flatten(0, 1))

    def _tables(
        self, clients: Sequence[str], width: int, training: LocalTraining, draws: Draws
    ) -> tuple[IntArray, IntArray]:
        """Rows of `features` for (step, client, column), and how many columns count for (step,
        client): 0 after the last step.
        """
        shards = [self._work.shards[client] for client in clients]
        cuts = {examples: Cut.of(examples, training) for examples in {*map(len, shards)}}
        steps = len(cuts[len(shards[0])].counts)
        rows = np.zeros((steps, len(shards), width), dtype=np.int64)
        counts = np.zeros((steps, len(shards)), dtype=np.int64)
        for k, (shard, generator) in enumerate(zip(shards, draws, strict=False)):
            cut = cuts[len(shard)]
            table = shard[cut.padded(generator)]
            taken, columns = table.shape
            rows[:taken, k, :columns] = table
            if columns < width:
                rows[:taken, k, columns:] = table[:, :1]
            counts[:taken, k] = cut.counts
        return rows, counts

    def _clients_together(self, width: int, training: LocalTraining) -> int:
        """How many clients may share a product: as many as fit, if that makes no difference to any
        of them, else one.
        """
        if width == 0:
            return _MOST_CLIENTS
        if (width, training) not in self._together:
            activations = self._layers[0].inputs + sum(2 * layer.outputs for layer in self._layers)
            one_client = 4 * (2 * self._size + width * activations)
            space = _BLOCK_BYTES * (1 + len(self._layers))
            fit = max(1, min(_MOST_CLIENTS, space // one_client))
            alike = fit == 1 or company_changes_nothing(
                self._layers, width, training, fit, self._slope
            )
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
    """(step, client, column): what a row weighs in its client's mean loss; padding weighs
    nothing.
    """
    return torch.from_numpy(_shares_of(width)[counts])


@lru_cache(maxsize=8)
def _shares_of(width: int) -> Float32Array:
    """(count, column): the same for each count of rows."""
    counts = np.arange(width + 1)[:, None]
    return ((np.arange(width) < counts) / np.maximum(counts, 1)).astype(np.float32)


def company_changes_nothing(
    layers: list[Layer],
    width: int,
    training: LocalTraining,
    most: int,
    slope: Slope = CROSS_ENTROPY,
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
    labels = slope.made_up(layers[-1].outputs, (most, most_steps), width, generator)
    share, radius = torch.full((most, 1, width), 1 / width), torch.full((most,), 0.01)

    def moved(clients: list[int], lr: float, steps: int) -> torch.Tensor:
        block = _Block(layers, start, lr, training, radius[clients], Scratch(), slope)
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
        """A tensor, not initialised, valid until the same name is taken again."""
        numbers = math.prod(shape)
        if name not in self._held or self._held[name].numel() < numbers:
            self._held[name] = torch.empty(numbers)
        return self._held[name][:numbers].view(shape)

    def repeat(self, name: str, piece: torch.Tensor, clients: int) -> torch.Tensor:
        return self.take(name, clients, *piece.shape).copy_(piece)


class _Block:
    """Clients that take their steps together.

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
        slope: Slope = CROSS_ENTROPY,
    ) -> None:
        clients, self._slope = radius.shape[0], slope
        self._start, self._lr, self._radius, self._scratch = parameters, lr, radius, scratch
        self._blur, self._lus, self._moved = training.shape.blur, training.shape.lus, False
        # the loss gradient of each client's last step: LUS asks for it
        self.gradients = scratch.take("gradients", clients if self._lus else 0, parameters.numel())
        self._parts = [
            _Part.at_start(layer, parameters, clients, training.momentum, scratch)
            for layer in layers
        ]
        self._first = self._parts
        self._weights = [part.weight for part in self._parts]
        self._pieces = sorted(
            [piece for part in self._parts for piece in part.pieces()],
            key=lambda piece: piece[1].start - piece[1].stop,
        )

    def updates(self, out: torch.Tensor) -> None:
        """Write how far each client has moved from the start, one row each."""
        for values, place in self._pieces:
            torch.sub(values.flatten(1), self._start[place], out=out[:, place])

    def step(
        self, batch: torch.Tensor, labels: torch.Tensor, share: torch.Tensor, ending: slice
    ) -> None:
        """One step of the first `len(batch)` clients on (clients, examples, features); for those in
        `ending` it is the last.

        `labels` are as the loss's `Slope` arranges them; `share` is (clients, 1, examples): what an
        example weighs in its client's mean loss.
        """
        parts = self._of_first(batch.shape[0])
        pull = self._pull(batch.shape[0]) if self._blur else None
        value, inputs = batch.mT, []
        for part in parts:
            inputs.append(value)
            value = part.forward(value)
        gradient = self._slope.at(value, labels).mul_(share)
        for number in range(len(parts) - 1, -1, -1):
            part, entering = parts[number], inputs[number]
            below = torch.bmm(part.turned, gradient) if number else None
            rows = batch if number == 0 else entering.mT
            change = None if part.bias is None else gradient.sum(2, keepdim=True)
            if self._lus and ending.start < ending.stop:
                part.keep_gradient(gradient, rows, change, ending, self.gradients)
            part.descend(gradient, rows, change, self._lr, pull)
            if below is not None:
                relu = parts[number - 1].layer.relu
                gradient = _threshold_backward(below, entering, 0) if relu else below

    def _of_first(self, clients: int) -> list[_Part]:
        """The layers of the first `clients`: nearly always the same as in the step before."""
        if self._first[0].weight.shape[0] != clients:
            self._first = [part.of_first(clients) for part in self._parts]
        return self._first

    def _pull(self, clients: int) -> torch.Tensor | None:
        """BLUR's weight of `w - w_t` in the gradient: `blur` for a client outside its ball, else 0;
        None if all are inside.
        """
        if not self._moved:
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


_threshold_backward = torch.ops.aten.threshold_backward.default


@dataclass(slots=True)
class _Part:
    """One layer of several clients: weights (clients, outputs, inputs), biases (clients, outputs,
    1), and how fast both move if there is momentum.
    """

    layer: Layer
    start: tuple[torch.Tensor, torch.Tensor | None]  # of one client
    weight: torch.Tensor
    turned: torch.Tensor  # the weights seen as (clients, inputs, outputs)
    bias: torch.Tensor | None
    momentum: float = 0.0
    velocity: torch.Tensor | None = None
    bias_velocity: torch.Tensor | None = None

    @classmethod
    def at_start(
        cls, layer: Layer, parameters: torch.Tensor, clients: int, momentum: float, scratch: Scratch
    ) -> _Part:
        start = parameters[layer.weight].view(layer.outputs, -1)
        weight = scratch.repeat(f"weight {layer.weight}", start, clients)
        first = bias = None
        if layer.bias is not None:
            first = parameters[layer.bias].view(-1, 1)
            bias = scratch.repeat(f"bias {layer.bias}", first, clients)
        part = cls(layer, (start, first), weight, weight.mT, bias, momentum)
        if momentum:
            part.velocity = torch.zeros_like(weight)
            part.bias_velocity = None if bias is None else torch.zeros_like(bias)
        return part

    def of_first(self, clients: int) -> _Part:
        return replace(
            self,
            weight=self.weight[:clients],
            turned=self.turned[:clients],
            bias=None if self.bias is None else self.bias[:clients],
            velocity=None if self.velocity is None else self.velocity[:clients],
            bias_velocity=None if self.bias_velocity is None else self.bias_velocity[:clients],
        )

    def pieces(self) -> list[tuple[torch.Tensor, slice]]:
        """Values and their place in the flat vector."""
        weight = (self.weight, self.layer.weight)
        if self.bias is None or self.layer.bias is None:
            return [weight]
        return [weight, (self.bias, self.layer.bias)]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        value = torch.bmm(weight, value) if bias is None else torch.baddbmm(bias, weight, value)
        return value.relu_() if self.layer.relu else value

    def keep_gradient(
        self,
        gradient: torch.Tensor,
        inputs: torch.Tensor,
        change: torch.Tensor | None,
        ending: slice,
        out: torch.Tensor,
    ) -> None:
        """Write the loss gradient of the clients in `ending`."""
        out[ending, self.layer.weight] = torch.bmm(gradient[ending], inputs[ending]).flatten(1)
        if change is not None and self.layer.bias is not None:
            out[ending, self.layer.bias] = change[ending, :, 0]

    def descend(
        self,
        gradient: torch.Tensor,
        inputs: torch.Tensor,
        change: torch.Tensor | None,
        lr: float,
        pull: torch.Tensor | None,
    ) -> None:
        """Move against the gradient: its product with the inputs for the weights, `change` for the
        biases; with `pull` also back to the start.
        """
        if self.velocity is not None:
            self.velocity.baddbmm_(gradient, inputs, beta=self.momentum)
            _descend_with(self.velocity, self.weight, self.start[0], lr, pull)
        else:
            if pull is not None:
                self.weight.lerp_(self.start[0], lr * pull)
            self.weight.baddbmm_(gradient, inputs, alpha=-lr)
        if self.bias is None or change is None:
            return
        if self.bias_velocity is not None:
            self.bias_velocity.mul_(self.momentum).add_(change)
            _descend_with(self.bias_velocity, self.bias, self.start[1], lr, pull)
        else:
            if pull is not None and self.start[1] is not None:
                self.bias.lerp_(self.start[1], lr * pull)
            self.bias.add_(change, alpha=-lr)


def _descend_with(
    velocity: torch.Tensor,
    values: torch.Tensor,
    start: torch.Tensor | None,
    lr: float,
    pull: torch.Tensor | None,
) -> None:
    if pull is not None and start is not None:
        velocity.addcmul_(values, pull).addcmul_(start, -pull)
    values.add_(velocity, alpha=-lr)
