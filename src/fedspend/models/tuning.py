"""Fine-tuning: a frozen backbone with a trainable last layer, or with low-rank adapters (Hu et al.
2021, "LoRA").

Guarantee: only the last linear layer and the adapters are trained, so only they are sent, clipped
and noised: noise grows with the number of coordinates, and these are few. The backbone is as its
file of weights has it; a file that does not fit is refused, and no code is read from it.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from fedspend.errors import InvalidInput, whole_number


class LowRank(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices, which begins at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.base(value) + value @ self.down.T @ self.up.T
        return added


def tuned(backbone: nn.Module, weights: str | Path | None, rank: int) -> nn.Module:
    """The backbone with the weights of a file, frozen but for its last linear layer and, with a
    `rank`, for adapters beside its other linear layers.
    """
    rank = whole_number("rank", rank, at_least=0)
    linear = [
        (name, part) for name, part in backbone.named_modules() if isinstance(part, nn.Linear)
    ]
    if not linear:
        raise InvalidInput(
            "model 'fine-tune' trains the last linear layer, and the backbone has none; choose "
            "another backbone"
        )
    head = linear[-1][0]
    if weights is not None:
        _load(backbone, Path(weights), head)
    backbone.requires_grad_(False)
    for name, part in linear[:-1]:
        if rank > 0:
            _replace(backbone, name, LowRank(part, rank))
    linear[-1][1].requires_grad_(True)
    return backbone


def _load(module: nn.Module, path: Path, head: str) -> None:
    """The file's numbers by name. The head may be missing there, or have other outputs."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise InvalidInput(
            f"{path}: not a safetensors file that can be read ({reason}); give a local file of "
            "weights (model.weights)"
        ) from None
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        own = name.rpartition(".")[0] == head
        there = found.get(name)
        if there is None or there.shape != parameter.shape:
            if own:
                continue  # a new task has new outputs
            said = "is missing" if there is None else f"has shape {tuple(there.shape)}"
            raise InvalidInput(
                f"{path}: {name} {said}, and the backbone needs {tuple(parameter.shape)}; give the "
                "weights of this backbone"
            )
        if not bool(torch.isfinite(there).all()):
            raise InvalidInput(f"{path}: {name} holds NaN or infinite numbers; give another file")
        parameter.data = there.float().clone()


def _replace(module: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, part)
