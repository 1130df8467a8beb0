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
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import write_whole
from fedspend.errors import FedspendError, InvalidInput, Refused

Content = dict[str, Any]
# half of a character (a surrogate), escaped or not: such text can be read, but not written
_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
P_co = TypeVar("P_co", covariant=True)
MOST_BYTES = 1 << 31  # of a file; a plan for a million clients has a tenth of that
# What is compressed may unpack to this many times its size, or to `SMALL` bytes: plans come to 10
# to 20 times, and a short file must not fill the memory.
MOST_PACKED, SMALL = 32, 1 << 24
# Cells of a table, rounds times schedules: at most 2 GiB, and no more than a plan can be made with,
# or than `ROUNDS` for each schedule that is listed.
MOST_CELLS, MOST_MADE, ROUNDS = 1 << 28, 50_000_000, 1000


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
        write_whole(path, _packed(body) if path.suffix == ".gz" else body)

    def file_text(self) -> str:
        """The plan as the text of a plan file."""
        content = self.content()
        head = {name: content.pop(name) for name in ("format", "version")}
        return readable(head | {"hash": self.hash} | content)


def _packed(body: bytes) -> bytes:
    """The body as gzip; not compressed where it would be too well for `parsed_text`."""
    packed = gzip.compress(body, compresslevel=5, mtime=0)
    return packed if len(body) <= _most_unpacked(packed) else gzip.compress(body, 0, mtime=0)


def _most_unpacked(packed: bytes) -> int:
    return min(MOST_BYTES, max(SMALL, MOST_PACKED * len(packed)))


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
            most = _most_unpacked(body)
            body = gzip.GzipFile(fileobj=io.BytesIO(body)).read(most + 1)
            if len(body) > most:
                raise InvalidInput(
                    f"not a plan: it unpacks to more than {MOST_PACKED} times its size; if it is "
                    "one, unpack it with gunzip and name that file"
                )
        if len(body) > MOST_BYTES:
            raise InvalidInput(f"not a plan: it has more than {MOST_BYTES:,} bytes")
        content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
        if _MAY_BE_HALF.search(body):
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeError:
        raise InvalidInput("not a plan: its text is not UTF-8, or holds half a character") from None
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
    most = min(MOST_CELLS, max(MOST_MADE, ROUNDS * schedules))
    if not (type(rounds) is int and rounds >= 1 and rounds * schedules <= most):
        raise InvalidInput(
            f"the plan is malformed: {_short(rounds)} rounds of {schedules:,} schedules"
        )


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or value < 10**20 else "more than 10^20"
    return text if len(text) <= 40 else text[:37] + "..."


def table_of(columns: Sequence[list[list[Any]]], rounds: int) -> FloatArray:
    """Columns, each stored as runs, as a table (rounds, columns)."""
    table = np.empty((rounds, len(columns)))
    for number, runs in enumerate(columns):
        _fill(table[:, number], runs)
    table.flags.writeable = False
    return table


def from_runs(runs: list[list[Any]], rounds: int) -> FloatArray:
    return table_of([runs], rounds)[:, 0]


def _fill(column: FloatArray, runs: list[list[Any]]) -> None:
    values, lengths = zip(*runs, strict=True)
    counts, numbers = integers(list(lengths)), floats(list(values))
    fits = counts.min() >= 1 and counts.max() <= column.size  # so that the sum cannot overflow
    if not (fits and counts.sum() == column.size):
        raise InvalidInput(f"the plan is malformed: a column does not have {column.size} rounds")
    if counts.size > 64:
        column[:] = np.repeat(numbers, counts)
        return
    end = 0
    for value, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        column[end : end + count] = value
        end += count
