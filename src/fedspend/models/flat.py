"""A module's trainable parameters as one float32 vector, in the order of `module.parameters()`: the
form in which they are sent.

Guarantee: frozen parameters (`requires_grad` is False) are no part of the vector: they are neither
sent nor clipped nor noised, and stay what they are. After `load`, the `difference` from the same
vector is exactly zero; the caller's module is never changed. Four-dimensional weights are kept
channels-last inside, the faster layout for convolutions on a CPU; the vector outside has torch's
usual order.
"""

from __future__ import annotations

import copy
import hashlib
import math
from typing import Any

import torch
from torch import nn

from fedspend.models.checking import check_module
from fedspend.models.fresh import remembers_nothing
from fedspend.models.optimisers import PLAIN, Descent
from fedspend.tasks.task import CLASSIFY, Task


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, with their names, in the order of the vector."""
    return [(name, one) for name, one in module.named_parameters() if one.requires_grad]


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for _, parameter in trainable(module))


def flat_vector(module: nn.Module) -> torch.Tensor:
    """The trainable parameters as a vector of their own."""
    return torch.cat([parameter.detach().reshape(-1) for _, parameter in trainable(module)])


@torch.no_grad()
def load_vector(module: nn.Module, vector: torch.Tensor) -> None:
    """Give the trainable parameters the numbers of a vector, which is copied."""
    start = 0
    for _, parameter in trainable(module):
        piece = vector[start : start + parameter.numel()]
        parameter.data = piece.clone().view(parameter.shape)
        start += parameter.numel()


def named_pieces(module: nn.Module, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """The vector as tensors by the names of the trainable parameters."""
    named = trainable(module)
    pieces = torch.split(vector, [parameter.numel() for _, parameter in named])
    return {
        name: piece.view(parameter.shape)
        for (name, parameter), piece in zip(named, pieces, strict=True)
    }


def fingerprint(module: nn.Module) -> str:
    """Tells models apart that train other parameters, or have other frozen ones or other buffers.
    What the trainable ones hold does not count: a task brings it.
    """
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        frozen = not parameter.requires_grad
        digest.update(f"{name} {tuple(parameter.shape)} {frozen}\n".encode())
        if frozen:
            digest.update(parameter.detach().contiguous().numpy().tobytes())
    digest.update((buffers_digest(module) or "").encode())
    return digest.hexdigest()[:16]


def buffers_digest(module: nn.Module) -> str | None:
    """Tells modules apart by what their buffers hold, which is constant; None without any."""
    digest, some = hashlib.sha256(), False
    for name, buffer in module.named_buffers():
        held = buffer.detach().contiguous().cpu()
        digest.update(f"{name} {tuple(held.shape)} {held.dtype}\n".encode())
        digest.update(held.reshape(-1).view(torch.uint8).numpy().tobytes())
        some = True
    return digest.hexdigest()[:16] if some else None


def layer_sizes(module: nn.Module) -> tuple[int, ...]:
    """Layer sizes in the flat vector, with weight and bias of a layer together; used by per-layer
    clipping and LUS.
    """
    sizes: dict[str, int] = {}
    for name, parameter in trainable(module):
        layer = name.rpartition(".")[0]
        sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    return tuple(sizes.values())


def as_batch(rows: torch.Tensor) -> torch.Tensor:
    """Images in channels-last layout; anything else unchanged."""
    if rows.dim() != 4:
        return rows
    if rows.shape[1] == 1:
        # one channel has the same bytes in both layouts; only the strides tell torch which kernels
        # to use
        return rows.contiguous().view(rows.shape[0], *rows.shape[2:], 1).permute(0, 3, 1, 2)
    return rows.contiguous(memory_format=torch.channels_last)


def rearranged(module: nn.Module) -> nn.Module:
    """The same layers in an order that takes less time and gives the same bits.

    A maximum of what ReLU lets through is what ReLU lets through of the maximum, and so are their
    gradients: the pool comes first, and ReLU has less to do. Only where nothing could tell the
    difference: in a plain chain of torch's own layers.

    >>> rearranged(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()))
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
      (2): ReLU()
      (3): FlatImages()
    )
    """
    if type(module) is not nn.Sequential or not remembers_nothing(module):
        return module
    layers = list(module)
    for place in range(len(layers) - 1):
        first, second = layers[place : place + 2]
        pools = type(second) is nn.MaxPool2d and not second.return_indices
        if pools and type(first) is nn.ReLU:
            layers[place : place + 2] = second, first
    return nn.Sequential(*(FlatImages() if _flattens(layer) else layer for layer in layers))


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


class FlatImages(nn.Module):
    """`nn.Flatten`, but gradients of images come back in channels-last layout: any other costs the
    layer before three copies.
    """

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.dim() != 4 or not values.requires_grad:
            return values.flatten(1)
        flat: torch.Tensor = _FlatImages.apply(values)  # type: ignore[no-untyped-call]
        return flat


class _FlatImages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.shape = values.shape
        return values.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].view(ctx.shape).contiguous(memory_format=torch.channels_last)


class FlatModule:
    """A private copy of a module whose parameters can be set, stepped and compared as vectors."""

    def __init__(
        self,
        module: nn.Module,
        momentum: float = 0.0,
        blur: float = 0.0,
        task: Task = CLASSIFY,
        descent: Descent = PLAIN,
    ) -> None:
        check_module(module)
        self._task, self._descent = task, descent
        self._optimizer: torch.optim.Optimizer | None = None
        self._begun: list[torch.Tensor] = []  # where a client's parameters were at its start
        self.module = rearranged(copy.deepcopy(module).train())
        self.size = parameter_count(module)
        self._momentum = momentum
        self._blur = blur
        self._values = torch.empty(self.size)
        self._start, self._moved = torch.empty(2, self.size if blur else 0)
        self._velocity = torch.zeros(self.size if momentum else 0)
        self._trained: list[nn.Parameter] = []
        self._velocities: list[torch.Tensor] = []
        # channels-last weights: (place in the vector, value)
        self._images: list[tuple[slice, torch.Tensor]] = []
        self._places: list[slice] = []  # of the trained parameters
        start = 0
        for _, parameter in trainable(self.module):
            place = slice(start, start + parameter.numel())
            strides = _strides(parameter)
            value = self._values.as_strided(parameter.shape, strides, start)
            value.copy_(parameter.detach())
            parameter.data = value
            parameter.grad = None
            if strides != parameter.detach().contiguous().stride():
                self._images.append((place, value))
            self._trained.append(parameter)
            self._places.append(place)
            if momentum:
                self._velocities.append(self._velocity.as_strided(parameter.shape, strides, start))
            start = place.stop

    def load(self, vector: torch.Tensor) -> None:
        """Start a client: these parameters, no velocity."""
        self._values.copy_(vector)
        for place, value in self._images:
            value.copy_(vector[place].view(value.shape))
        self._velocity.zero_()
        if self._blur:
            self._start.copy_(self._values)
        self._optimizer = None
        if self._descent.proximal:
            self._begun = [parameter.detach().clone() for parameter in self._trained]

    @torch.no_grad()
    def difference(self, vector: torch.Tensor, out: torch.Tensor) -> None:
        """Write parameters minus `vector` to `out`."""
        torch.sub(self._values, vector, out=out)
        for place, value in self._images:
            out[place].view(value.shape).copy_(value)
            out[place].sub_(vector[place])

    def gradient(self, out: torch.Tensor) -> None:
        """Write the last step's loss gradient to `out`; zero where the loss ignores a parameter."""
        out.zero_()
        for place, parameter in zip(self._places, self._trained, strict=True):
            if parameter.grad is not None:
                out[place].view(parameter.shape).copy_(parameter.grad)

    def step(
        self, rows: torch.Tensor, labels: torch.Tensor, lr: float, radius: float = math.inf
    ) -> None:
        """One step of SGD on the mean loss, with BLUR's pull back to the start if that is
        further away than `radius`.
        """
        # With grad set to None, torch stores new gradients without a copy, which costs less than
        # adding them to a zeroed buffer.
        for parameter in self._trained:
            parameter.grad = None
        self._task.mean(self.module(rows), labels).backward()  # type: ignore[no-untyped-call]
        if not self._descent.plain:
            self._optimised(lr, radius)
            return
        used = [
            number for number, parameter in enumerate(self._trained) if parameter.grad is not None
        ]
        gradients = [
            gradient for parameter in self._trained if (gradient := parameter.grad) is not None
        ]
        with torch.no_grad():
            pulled = self._blur > 0 and radius < math.inf and self._distance() > radius
            if self._momentum:
                self._velocity.mul_(self._momentum)
                torch._foreach_add_([self._velocities[number] for number in used], gradients)
                if pulled:
                    self._velocity.add_(self._moved, alpha=self._blur)
                self._values.add_(self._velocity, alpha=-lr)
            else:
                if pulled:
                    self._values.add_(self._moved, alpha=-lr * self._blur)
                torch._foreach_add_(
                    [self._trained[number] for number in used], gradients, alpha=-lr
                )

    def _optimised(self, lr: float, radius: float) -> None:
        """The step of any other optimiser than plain SGD, by torch itself."""
        if self._optimizer is None:
            self._optimizer = self._descent.made(self._trained, lr)
        self._kept = [
            None if parameter.grad is None else parameter.grad.clone()
            for parameter in self._trained
        ]
        self._descent.adjust(self._trained, self._begun or self._trained)
        with torch.no_grad():
            if self._blur > 0 and radius < math.inf and self._distance() > radius:
                for parameter, place in zip(self._trained, self._places, strict=True):
                    if parameter.grad is not None:
                        moved = self._moved[place].as_strided(
                            parameter.shape, parameter.stride(), self._moved[place].storage_offset()
                        )
                        parameter.grad.add_(moved, alpha=self._blur)
        self._optimizer.step()
        for parameter, gradient in zip(self._trained, self._kept, strict=True):
            parameter.grad = gradient  # LUS asks for the gradient of the loss alone

    def _distance(self) -> float:
        return float(
            torch.linalg.vector_norm(torch.sub(self._values, self._start, out=self._moved))
        )


def _strides(parameter: nn.Parameter) -> tuple[int, ...]:
    layout = torch.channels_last if parameter.dim() == 4 else torch.contiguous_format
    return torch.empty(parameter.shape, device="meta", memory_format=layout).stride()
