"""What all plan files share: JSON that people can read, and that anyone can check with a script.

Guarantee: saving and loading is lossless to the last bit; a file is written whole or not at all; a
file that is malformed or of an unknown version is bad input, and one whose content does not match
its hash is refused, as a check that failed. `docs/reference/plan-format.md` describes every key.

Columns of equal numbers are stored as runs: `[[2.5, 12], [1.9, 13]]` is twelve rounds of 2.5, then
thirteen of 1.9.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import write_whole
from fedspend.errors import FedspendError, InvalidInput, Refused

Content = dict[str, Any]
P_co = TypeVar("P_co", covariant=True)
MOST_BYTES = 1 << 31  # of a file, unpacked; a plan for a million clients has a tenth of that
MOST_CELLS = 1 << 28  # of a table, rounds times schedules: 2 GiB


class Saved(ABC):
    """A plan that can be saved to a file."""

    @abstractmethod
    def content(self) -> Content:
        """Everything in the plan except its hash, as plain Python, in the order of the file."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the plan's content. It shows that a file is unchanged; it is no signature."""
        return hash_of(canonical(self.content()))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all; with gzip if the name ends in `.gz`."""
        path, body = Path(path), self.file_text().encode()
        write_whole(
            path, gzip.compress(body, compresslevel=5, mtime=0) if path.suffix == ".gz" else body
        )

    def file_text(self) -> str:
        """The plan as the text of a plan file."""
        content = self.content()
        head = {name: content.pop(name) for name in ("format", "version")}
        return readable(head | {"hash": self.hash} | content)


@dataclass(frozen=True)
class Kind(Generic[P_co]):
    """One kind of plan file: its format name, its keys, and how to build a plan from it."""

    format: str
    version: int
    keys: tuple[str, ...]  # besides format, version and hash
    build: Callable[[Content], P_co]


def readable(content: Content) -> str:
    """JSON with one line per key, and one line per object of a list."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = (
                "[\n  " + ",\n  ".join(json.dumps(one, allow_nan=False) for one in value) + "\n ]"
            )
        else:
            text = json.dumps(value, allow_nan=False)
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def canonical(content: Content) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def load(path: Path, *kinds: Kind[P_co]) -> P_co:
    """Read a plan file, check its hash and shape, and build the kind of plan that it says it is."""
    try:
        content = parsed(path)
        kind = next((kind for kind in kinds if content.get("format") == kind.format), None)
        if kind is None:
            formats = " or ".join(f'"{kind.format}"' for kind in kinds)
            raise InvalidInput(f'not a plan: a plan is a JSON object with "format": {formats}')
        return built(kind, content)
    except FedspendError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError:
        raise InvalidInput(f"{path}: the plan is too large for this machine's memory") from None


def parsed(path: Path) -> Content:
    """The JSON object in a file; an empty one if the file holds another JSON value."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the plan: {error.strerror}") from None
    return parsed_text(body)


def parsed_text(body: bytes) -> Content:
    """The JSON object in `body`, which may be compressed."""
    try:
        if body[:2] == b"\x1f\x8b":
            body = gzip.GzipFile(fileobj=io.BytesIO(body)).read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise InvalidInput(f"not a plan: it has more than {MOST_BYTES:,} bytes")
        content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (EOFError, OSError, zlib.error):
        raise InvalidInput("not a plan: the compressed file is damaged or cut off") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, FedspendError):
            raise
        raise InvalidInput(
            f"not a plan: it is not valid JSON ({str(error).splitlines()[0]})"
        ) from None
    return content if isinstance(content, dict) else {}


def built(kind: Kind[P_co], content: Content) -> P_co:
    """The plan that `content` describes; anything of the wrong type or shape is bad input, and
    content that its hash does not fit is refused.
    """
    if content.get("version") != kind.version:
        raise InvalidInput(
            f"the plan has version {content.get('version')!r}, but this fedspend reads version "
            f"{kind.version} only"
        )
    stored = content.pop("hash", None)
    if not isinstance(stored, str):
        raise InvalidInput("not a plan: it has no hash")
    try:
        same = stored == hash_of(canonical(content))
    except (ValueError, RecursionError):  # numbers or depths that a plan does not have
        same = False
    if not same:
        raise Refused(
            "the content does not match its hash: the file was altered or damaged after it was "
            "saved; restore it from a copy, or plan again"
        )
    wanted = {"format", "version", *kind.keys}
    unknown, missing = sorted(set(content) - wanted), sorted(wanted - set(content))
    if unknown or missing:
        raise InvalidInput(
            f"unknown key {unknown[0]!r} in the plan"
            if unknown
            else f"the plan has no key {missing[0]!r}"
        )
    try:
        return kind.build(content)
    except FedspendError:
        raise
    except KeyError as error:
        raise InvalidInput(f"the plan has no key {error}") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError):
        raise InvalidInput("the plan is malformed: a value has the wrong type or length") from None


def _no_constant(name: str) -> float:
    raise InvalidInput(f"not a plan: it holds {name}, which is not a number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise InvalidInput("not a plan: a key appears twice in one object")
    return out


# --- numbers ---


def to_runs(column: FloatArray) -> list[list[float | int]]:
    first = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    lengths = np.diff(np.append(first, column.size))
    return [list(pair) for pair in zip(column[first].tolist(), lengths.tolist(), strict=True)]


def floats(values: list[Any]) -> FloatArray:
    if not all(type(value) in (float, int) for value in values):
        raise InvalidInput("the plan is malformed: a number was expected")
    return np.array(values, dtype=np.float64)


def integers(values: list[Any]) -> Any:
    if not all(type(value) is int for value in values):
        raise InvalidInput("the plan is malformed: a whole number was expected")
    return np.array(values, dtype=np.int64)


def check_size(rounds: Any, schedules: int) -> None:
    """Refuse tables that would fill the memory."""
    if not (type(rounds) is int and rounds >= 1 and rounds * schedules <= MOST_CELLS):
        raise InvalidInput(
            f"the plan is malformed: {_short(rounds)} rounds of {schedules:,} schedules"
        )


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or value < 10**20 else "more than 10^20"
    return text if len(text) <= 40 else text[:37] + "..."


def from_runs(runs: list[list[Any]], rounds: int) -> FloatArray:
    values, lengths = zip(*runs, strict=True)
    counts = integers(list(lengths))
    if not (type(rounds) is int and counts.min() >= 1 and counts.sum() == rounds):
        raise InvalidInput(f"the plan is malformed: a column does not have {rounds} rounds")
    return np.repeat(floats(list(values)), counts)
