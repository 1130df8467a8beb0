"""The matrix-multiply bound: the products and convolutions of forward and backward passes alone, on
ready tensors.

No loss, no activation, no pooling, no gather, no step, no update. Each shape in the faster of the
layouts that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch.nn import functional


def dense_bound(
    widths: list[int], clients: int, steps: int, batch: int
) -> list[Callable[[], None]]:
    """One client at a time, and fifteen at a time."""
    layers = list(pairwise(widths))
    values = [torch.randn(clients, batch, width) for width in widths]
    weights = [torch.randn(clients, after, before) for before, after in layers]

    def one_by_one() -> None:
        for client in range(clients):
            for _ in range(steps):
                for k, weight in enumerate(weights):
                    torch.mm(weight[client], values[k][client].t())
                    torch.mm(values[k + 1][client].t(), values[k][client])
                    if k:
                        torch.mm(values[k + 1][client], weight[client])

    def batched() -> None:
        for start in range(0, clients, 15):
            block = slice(start, start + 15)
            for _ in range(steps):
                for k, weight in enumerate(weights):
                    torch.bmm(weight[block], values[k][block].transpose(1, 2))
                    torch.bmm(values[k + 1][block].transpose(1, 2), values[k][block])
                    if k:
                        torch.bmm(values[k + 1][block], weight[block])

    return [one_by_one, batched]


def uneven_bound(widths: list[int], sizes: list[int], batch: int) -> Callable[[], None]:
    """One pass of every client over its own rows, the last batch as short as it is."""
    layers = list(pairwise(widths))
    values = [torch.randn(batch, width) for width in widths]
    weights = [torch.randn(after, before) for before, after in layers]

    def run() -> None:
        for size in sizes:
            for start in range(0, size, batch):
                rows = min(batch, size - start)
                for k, weight in enumerate(weights):
                    torch.mm(weight, values[k][:rows].t())
                    torch.mm(values[k + 1][:rows].t(), values[k][:rows])
                    if k:
                        torch.mm(values[k + 1][:rows], weight)

    return run


def cnn_bound(clients: int, steps: int, batch: int) -> list[Callable[[], None]]:
    """The two-layer CNN of McMahan et al. on 28x28x1, in both memory layouts. The first layer needs
    no gradient for its input.
    """
    return [
        _cnn_bound(clients * steps, batch, layout)
        for layout in (torch.channels_last, torch.contiguous_format)
    ]


def _cnn_bound(repeats: int, batch: int, layout: torch.memory_format) -> Callable[[], None]:
    def image(*shape: int) -> torch.Tensor:
        # spelled out, because one channel has both layouts at once
        if layout == torch.channels_last:
            return torch.randn(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        return torch.randn(*shape)

    pixels, middle = image(batch, 1, 28, 28), image(batch, 32, 14, 14)
    first, second = image(32, 1, 5, 5), image(64, 32, 5, 5)
    after_first, after_second = image(batch, 32, 28, 28), image(batch, 64, 14, 14)
    flat, hidden, scores = torch.randn(batch, 3136), torch.randn(batch, 512), torch.randn(batch, 10)
    third, fourth = torch.randn(512, 3136), torch.randn(10, 512)
    biases = [torch.randn(width) for width in (32, 64, 512, 10)]
    backward = torch.ops.aten.convolution_backward
    same = ([1, 1], [2, 2], [1, 1], False, [0, 0], 1)

    def run() -> None:
        for _ in range(repeats):
            functional.conv2d(pixels, first, biases[0], padding=2)
            functional.conv2d(middle, second, biases[1], padding=2)
            torch.addmm(biases[2], flat, third.t())
            torch.addmm(biases[3], hidden, fourth.t())
            torch.mm(scores.t(), hidden)
            torch.mm(scores, fourth)
            torch.mm(hidden.t(), flat)
            torch.mm(hidden, third)
            backward(after_second, middle, second, [64], *same, [True, True, True])
            backward(after_first, pixels, first, [32], *same, [False, True, True])

    return run
