"""ResNet-18 for small images (He et al. 2016, with a 3x3 stem and no first pooling), with group
norm.

Group norm reads one example at a time; batch norm would keep running statistics of a client's data
that no clip bounds.
"""

from __future__ import annotations

import torch
from torch import nn

_GROUPS = 32


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, after),
        )
        same = stride == 1 and before == after
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(_GROUPS, after)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(channels: int, classes: int) -> nn.Module:
    """Eleven million parameters: for comparisons with large budgets and many clients."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
    ]
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
