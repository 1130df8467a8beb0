"""Arrays and a few facts about them as one block of bytes (safetensors), for files and the network.

Guarantee: equal content gives equal bytes. Damaged or foreign bytes are refused with one line;
nothing is ever executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedspend.errors import InvalidInput

_PLACE = 8  # bytes that say how long the header is


def pack(arrays: dict[str, npt.NDArray[Any]], about: dict[str, Any]) -> bytes:
    """The arrays and the facts as bytes.

    All facts go into one metadata entry: safetensors writes several in no fixed order, and equal
    content must give equal bytes.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(contiguous, {"about": json.dumps(about, allow_nan=False)}))


def unpack(
    body: bytes, what: str, remedy: str = "send it again"
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and the facts in a block; anything else is refused, as `what`."""
    try:
        arrays = load(body)
        header = json.loads(body[_PLACE : _PLACE + int.from_bytes(body[:_PLACE], "little")])
        about = json.loads(header["__metadata__"]["about"])
        about.items()
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise InvalidInput(f"{what} is damaged; {remedy}") from None
    return arrays, about


def read_tensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Arrays and facts in a file of a run."""
    remedy = "restore it from a copy or start the run again"
    try:
        body = path.read_bytes()
    except OSError:
        raise InvalidInput(f"{path} is damaged; {remedy}") from None
    return unpack(body, str(path), remedy)
