"""Gives every client a module that no other client has used.

A module can remember what it has seen: in a counter, a cache, an attribute that `forward` sets. If
one module served two clients, the second client's update would depend on the first client's rows,
and no clip bounds that.

Guarantee: `fresh` returns a module that holds nothing from an earlier client. Modules that cannot
remember anything, because they are made of torch's own layers (or ours) without buffers or hooks,
and hold nothing but numbers, text, tensors and functions of torch, are reused as they are; all
others are copied. A copy does not cover state outside the module: an
attribute of its class, a global variable of its file, a closure variable of a hook.
`refuse_memory_outside` tries a module that is not torch's own on made-up rows and refuses it if it
remembers them in such a place, or if it draws from a generator that clients would share. It cannot
detect a module that would remember only particular rows.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedspend.basics.threads import single_threaded
from fedspend.errors import InvalidInput

_KNOWN = ("torch.nn.modules.", "fedspend.models.")
_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, torch.Tensor, np.ndarray)
_PLAIN += (np.generic, torch.dtype, torch.device)
# for saving and loading, so they never see a row
_NEVER_RUN = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_modules",  # each is looked at by itself
)
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def remembers_nothing(module: nn.Module) -> bool:
    """Whether the module is certain not to change when it runs.

    >>> remembers_nothing(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    """
    parts = all(
        type(part).__module__.startswith(_KNOWN)
        and "forward" not in vars(part)
        and not any(getattr(part, hooks, None) for hooks in _HOOKS)
        and all(_plain(value) for name, value in vars(part).items() if name not in _NEVER_RUN)
        for part in module.modules()
    )
    watched = any(
        getattr(parameter, hooks, None)
        for parameter in module.parameters()
        for hooks in _PARAMETER_HOOKS
    )
    return parts and not watched and not any(True for _ in module.buffers())


def _plain(value: Any) -> bool:
    """Whether a layer that holds this holds nothing that could remember: an activation, say, may be
    an object of any class.
    """
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return str(value.__module__).startswith("torch.") or value.__module__ in ("torch", "_VF")
    if isinstance(value, nn.Module):
        return remembers_nothing(value)
    if isinstance(value, ReferenceType):  # recurrent layers have some, of their parameters
        return _plain(value())
    if isinstance(value, Mapping):
        return all(map(_plain, value.keys())) and all(map(_plain, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and all(map(_plain, value))


def fresh(module: nn.Module) -> nn.Module:
    """`module` itself if it remembers nothing, else a copy of it."""
    return module if remembers_nothing(module) else copy.deepcopy(module)


def refuse_memory_outside(
    module: nn.Module, row_shape: tuple[int, ...], *, integers: bool = False
) -> None:
    """Refuse a module whose copies share state: one client's rows would change another's update."""
    if remembers_nothing(module):
        return
    kind = torch.int64 if integers else torch.float32
    try:
        with _as_begun():
            first = _tried(module, torch.zeros(2, *row_shape, dtype=kind))
        with _as_begun():
            _tried(module, torch.ones(3, *row_shape, dtype=kind))
        with _as_begun():
            again = _tried(module, torch.zeros(2, *row_shape, dtype=kind))
        with _as_begun(others=1):
            drawn = _tried(module, torch.zeros(2, *row_shape, dtype=kind))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return  # it cannot read such rows; training will show what is wrong
    if not _same(first, again):
        raise InvalidInput(
            "the model remembers rows outside itself (in its class, in a global variable or in a "
            "hook), so one client's rows would change another's update; keep such state in "
            "attributes of the module"
        )
    if not _same(first, drawn):
        raise InvalidInput(
            "the model draws from numpy.random or random, whose state one client would leave to "
            "the next; draw with torch, whose generator every client has afresh"
        )


def _tried(module: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of a copy for these rows, run twice, and its gradients."""
    local = copy.deepcopy(module).train()
    said = [local(rows), local(rows)]
    # every output has its part in the gradients, and so has every row
    loss = functional.softplus(torch.cat(said).flatten(1)).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = [parameter.grad for parameter in local.parameters()]
    return [one.detach() for one in said] + [slope for slope in slopes if slope is not None]


def _same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """To the last bit."""
    return len(ones) == len(others) and all(
        one.numpy().tobytes() == other.numpy().tobytes()
        for one, other in zip(ones, others, strict=True)
    )


@contextmanager
def _as_begun(others: int = 0) -> Iterator[None]:
    """Gives torch's generator the same seed each time, and Python's and numpy's the seed `others`;
    restores them afterwards.
    """
    plain, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the module may use it
    with single_threaded():
        torch.default_generator.manual_seed(0)
        random.seed(others)
        np.random.seed(others)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numpy)  # noqa: NPY002
