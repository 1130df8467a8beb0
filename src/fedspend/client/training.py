"""Plain local training, one client at a time, with torch's own optimiser and no optimisations.
Every fast path is tested against it.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedspend.client.batches import step_batches
from fedspend.client.rows import Rows
from fedspend.client.shaping import kept
from fedspend.client.task import ClientTask
from fedspend.models.flat import flat_vector, layer_sizes, load_vector, trainable
from fedspend.noise.randomness import Randomness
from fedspend.tasks.task import CLASSIFY, Task


def trained(
    task: ClientTask,
    rows: Rows,
    module: nn.Module,
    randomness: Randomness,
    goal: Task = CLASSIFY,
) -> torch.Tensor:
    """The client's update: how far its parameters moved, shaped according to the task. Zero without
    rows.

    Seeds torch's global generator, for dropout and the like.
    """
    training, start = task.shared.training, torch.from_numpy(task.shared.parameters)
    generator = randomness.generator("batches", task.shared.round, task.number)
    batches = step_batches(generator, len(rows), training)
    torch.default_generator.manual_seed(int(generator.integers(2**63)))
    local = copy.deepcopy(module).train()  # a copy, so that nothing of another client is left in it
    load_vector(local, start)
    parameters = [parameter for _, parameter in trainable(local)]
    begun = [parameter.detach().clone() for parameter in parameters]
    optimizer = training.descent.made(parameters, task.shared.lr)
    gradient = torch.zeros_like(start)
    for positions in batches:
        features, labels = rows.take(positions)
        optimizer.zero_grad()
        goal.mean(local(features), labels).backward()  # type: ignore[no-untyped-call]
        gradient = _gradient(parameters)
        training.descent.adjust(parameters, begun)
        if training.shape.blur > 0:
            _blur(parameters, start, training.shape.blur, task.clip_norm)
        optimizer.step()
    update = flat_vector(local) - start
    return (
        _sparse(update, gradient, layer_sizes(local), training.shape.lus)
        if training.shape.lus > 0 and batches
        else update
    )


def _gradient(parameters: list[nn.Parameter]) -> torch.Tensor:
    """The gradient of the loss alone, flat; zero where the loss does not depend on a parameter."""
    parts = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
    return torch.cat([part.reshape(-1) for part in parts])


def _blur(parameters: list[nn.Parameter], start: torch.Tensor, blur: float, radius: float) -> None:
    """BLUR: outside the ball the gradient gains `blur * (w - w_t)`."""
    pieces = torch.split(start, [parameter.numel() for parameter in parameters])
    moved = [p.detach() - piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)]
    if sum(float(part.square().sum()) for part in moved) ** 0.5 > radius:
        for parameter, part in zip(parameters, moved, strict=True):
            if parameter.grad is not None:
                parameter.grad += blur * part


def _sparse(
    update: torch.Tensor, gradient: torch.Tensor, layers: tuple[int, ...], lus: float
) -> torch.Tensor:
    """LUS: each layer keeps the values with the largest `|gradient * update|`; among equals, the
    first.
    """
    mask = torch.zeros_like(update)
    start = 0
    for size in layers:
        importance = (update * gradient).abs()[start : start + size]
        mask[start + torch.argsort(importance, descending=True, stable=True)[: kept(size, lus)]] = 1
        start += size
    return update * mask  # values that are not finite stay so, and the bound discards the update
