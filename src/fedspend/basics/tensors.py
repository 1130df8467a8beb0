"""Arrays and a few facts about them as one block of bytes (safetensors), for files and the network.

Guarantee: equal content gives equal bytes. Damaged or foreign bytes are refused with one line;
nothing is ever executed. A sealed block carries a digest of all that is in it, so that a change of
any number, name or fact is noticed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedspend.errors import InvalidInput, unreadable

_PLACE = 8  # bytes that say how long the header is
_SEAL = "digest"  # the fact that holds the digest of a sealed block
REMEDY = "restore it from a copy, or start a new run"


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
    return unpack(_bytes_of(path), str(path), REMEDY)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


# --- sealed ---


@dataclass(frozen=True, eq=False)
class Sealed:
    """The content of a block, and the digest that was found in it; None if it has none."""

    arrays: dict[str, npt.NDArray[Any]]
    about: dict[str, Any]
    digest: str | None
    body: bytes

    @property
    def as_written(self) -> bool:
        """Whether the bytes are exactly those that `seal` or `pack` writes for this content."""
        facts = self.about if self.digest is None else self.about | {_SEAL: self.digest}
        return pack(self.arrays, facts) == self.body


def seal(arrays: dict[str, npt.NDArray[Any]], about: dict[str, Any]) -> tuple[bytes, str]:
    """Arrays and facts as bytes that carry their own digest, and the digest."""
    digest = digest_of(arrays, about)
    return pack(arrays, about | {_SEAL: digest}), digest


def read_sealed(path: Path, *, demanded: bool) -> Sealed:
    """A block from a file; refused if its digest is not that of its content, or `demanded` and
    missing.
    """
    body = _bytes_of(path)
    arrays, about = unpack(body, str(path), REMEDY)
    digest = about.pop(_SEAL, None)
    try:
        good = not demanded if digest is None else digest == digest_of(arrays, about)
    except (ValueError, RecursionError):  # facts that we would not write
        good = False
    if not good:
        raise InvalidInput(f"{path} is damaged: its content is not that of its digest; {REMEDY}")
    return Sealed(arrays, about, digest, body)


def digest_of(arrays: dict[str, npt.NDArray[Any]], about: dict[str, Any]) -> str:
    """SHA-256 of arrays and facts, in hexadecimal digits."""
    found = hashlib.sha256(json.dumps(about, allow_nan=False).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        found.update(array.data if array.size else b"")
    return found.hexdigest()
