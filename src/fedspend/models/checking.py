"""What a module must be before clients may train it.

Guarantee: everything that training changes is a float32 parameter, and so is clipped and gets
noise. Running statistics (batch norm) are buffers: they would leave a client without passing
through the mechanism, and no budget would cover them. Dropout and the like draw from torch's
generator, which is seeded for each client anew, and for each step of a plan for records.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from fedspend.errors import InvalidInput


def check_module(
    module: Any, *, input_shape: tuple[int, ...] | None = None, classes: int | None = None
) -> nn.Module:
    """Returns `module`, or raises `InvalidInput`. With a shape and a number of classes, also tries
    it on two rows of zeros.
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(module).__name__}")
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            raise InvalidInput(
                f"model part {name or 'itself'!r} is {type(part).__name__}, whose statistics of "
                "private data would leave the client uncounted; use GroupNorm"
            )
        if isinstance(part, _NormBase) and part.track_running_stats:
            raise InvalidInput(
                f"model buffer '{name}.running_mean' learns from rows, and what it holds is "
                "neither clipped nor noised; use GroupNorm, or track_running_stats=False"
            )
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise InvalidInput(
                f"model parameter {name!r} has no shape yet; run the lazy module on one batch first"
            )
        if parameter.dtype != torch.float32:
            raise InvalidInput(
                f"model parameter {name!r} is {parameter.dtype}; convert the model with .float()"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise InvalidInput(
                f"model parameter {name!r} holds NaN or infinite numbers; start from finite ones"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput(
            "the model has no trainable parameters; set requires_grad on at least one"
        )
    if input_shape is not None and classes is not None:
        shape = tuple(tried_output(module, input_shape).shape)
        if shape != (2, classes):
            raise InvalidInput(
                f"for two rows the model must return shape (2, {classes}), one score per class, "
                f"got {shape}"
            )
    return module


def refuse_mixing(
    module: nn.Module, input_shape: tuple[int, ...], *, integers: bool = False
) -> None:
    """Refuse a module in which one row changes what another gives, or that learns in a buffer; the
    layer is named. Tried on made-up rows, in a copy, in training mode.
    """
    generator = torch.Generator().manual_seed(0)
    if integers:
        rows = torch.stack([torch.zeros(input_shape), torch.ones(input_shape)]).long()
        other = torch.stack([rows[1], rows[0]])
    else:
        rows, other = torch.randn(2, 2, *input_shape, generator=generator)
    try:
        before = _heard(module, rows)
        for kept in (0, 1):
            changed = rows.clone()
            changed[1 - kept] = other[1 - kept]
            for (name, was), (_, now) in zip(before, _heard(module, changed), strict=True):
                if not _alike(was[kept], now[kept]):
                    raise InvalidInput(
                        f"model part {name!r} mixes rows: what it gives for one row changes with "
                        "another, so no bound on one row's gradient would hold; use layers that "
                        "read one row at a time (GroupNorm, batch_first=True)"
                    )
    except InvalidInput:
        raise
    except Exception:  # whatever a user's own module raises on such rows
        return


def _heard(module: nn.Module, rows: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """What each part of a copy gives for two rows, innermost first; refuses buffers that learn."""
    local, found = copy.deepcopy(module).train(), []

    def listen(name: str, part: nn.Module) -> None:
        def hear(_part: nn.Module, _given: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.dim() >= 1 and len(first) == 2:
                kind = f" ({type(part).__name__})"
                found.append(((name or "itself") + kind, first.detach().clone()))

        part.register_forward_hook(hear)

    for name, part in local.named_modules():
        listen(name, part)
    held = {name: buffer.clone() for name, buffer in local.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)  # the same dropout every time
        local(rows)
    for name, buffer in local.named_buffers():
        if name not in held or not torch.equal(buffer, held[name]):
            raise InvalidInput(
                f"model buffer {name!r} learns from rows: it changes when the model runs, and what "
                "it holds is neither clipped nor noised; use GroupNorm in place of running "
                "statistics, or keep constants unchanged"
            )
    return found


def _alike(was: torch.Tensor, now: torch.Tensor) -> bool:
    if was.shape != now.shape:
        return False
    if not was.is_floating_point():
        return torch.equal(was, now)
    return torch.allclose(was, now, rtol=1e-4, atol=1e-6, equal_nan=True)


def tried_output(
    module: nn.Module, input_shape: tuple[int, ...], *, integers: bool = False
) -> torch.Tensor:
    """What the module makes of two rows of zeros; restores torch's generator, which it may draw
    from.
    """
    rows = torch.zeros(2, *input_shape, dtype=torch.int64 if integers else torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = copy.deepcopy(module)(rows)
    except Exception as error:  # whatever a user's own module raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"the model cannot read rows of shape {input_shape}: {reason}") from None
    if not (isinstance(output, torch.Tensor) and output.dim() >= 1 and len(output) == 2):
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InvalidInput(
            f"for two rows the model must return a tensor whose first dimension is 2, got {shape}"
        )
    return output
