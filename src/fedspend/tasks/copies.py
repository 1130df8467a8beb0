"""Copies of functions that users bring, so that nothing of one client is left in them for the next.

Guarantee: what a copy writes to its own attributes, to the variables that it encloses, to its
defaults or to the object that it is a method of, the original does not see. Not covered: global
variables, and attributes of classes.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from fedspend.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])
_OURS = ("torch.", "fedspend.")


def copied(function: F) -> F:
    """A copy of a function, or of an object that is called like one."""
    found: F = _copied(function, {})
    return found


def refuse_uncopied(what: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be copied."""
    try:
        copied(function)
    except Exception as error:  # whatever a user's own object raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(
            f"{what} cannot be copied, and each client needs a copy of its own ({reason}); keep "
            "nothing in it but numbers, text, tensors and containers of them"
        ) from None


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, FunctionType):
        return _of_function(value, memo)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _copied(value.__self__, memo))
    if isinstance(value, functools.partial):
        given = [_copied(one, memo) for one in value.args]
        named = {name: _copied(one, memo) for name, one in value.keywords.items()}
        return functools.partial(_copied(value.func, memo), *given, **named)
    if isinstance(value, ModuleType):
        return value
    return copy.deepcopy(value, memo)


def _of_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """With cells, defaults and attributes of its own; a function that has none is its own copy."""
    cells, kept = function.__closure__ or (), vars(function)
    alone = not (cells or function.__defaults__ or function.__kwdefaults__ or kept)
    if alone or str(function.__module__).startswith(_OURS):
        return function
    others = tuple(CellType() for _ in cells)
    found = FunctionType(
        function.__code__, function.__globals__, function.__name__, None, others or None
    )
    memo[id(function)] = found  # it may enclose itself
    for cell, other in zip(cells, others, strict=True):
        try:
            held = cell.cell_contents
        except ValueError:  # not yet filled
            continue
        other.cell_contents = _copied(held, memo)
    defaults, named = function.__defaults__, function.__kwdefaults__
    if defaults is not None:
        found.__defaults__ = tuple(_copied(one, memo) for one in defaults)
    if named is not None:
        found.__kwdefaults__ = {name: _copied(one, memo) for name, one in named.items()}
    found.__module__, found.__qualname__ = function.__module__, function.__qualname__
    vars(found).update({name: _copied(one, memo) for name, one in kept.items()})
    return found
