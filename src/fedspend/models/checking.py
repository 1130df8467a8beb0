"""What a module must be before clients may train it.

Guarantee: everything that training changes is a float32 parameter, and so is clipped and gets
noise. Running statistics (batch norm) are buffers: they would leave a client without passing
through the mechanism, and no budget would cover them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
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
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() or buffer.is_complex():
            raise InvalidInput(
                f"model buffer {name!r} holds floating point numbers, which could carry private "
                "data out uncounted; use GroupNorm in place of running statistics, or make "
                "constants plain attributes"
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
        _try(module, input_shape, classes)
    return module


def _try(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Runs the module on two rows; restores torch's generator, which the module may draw from."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = module(torch.zeros(2, *input_shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"the model cannot read rows of shape {input_shape}: {reason}") from None
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if shape != (2, classes):
        raise InvalidInput(
            f"for two rows the model must return shape (2, {classes}), one score per class, got "
            f"{shape}"
        )
