"""Entries and the hash chain that ties each to all before it.

Guarantee: with the head (number and hash of the last entry) an outsider can tell whether any entry
was changed, removed, added, reordered or cut off. An entry is a JSON object, and its exact UTF-8
text is hashed:

    hash = SHA-256(previous hash + number as 8 bytes, big-endian + text)

The hash before the first entry is 32 zero bytes. A row holds the number, the text (compressed with
zlib if that is shorter: JSON begins with "{", zlib with the byte 0x78) and the hash.

The chain is not a signature: anyone who can rewrite the whole ledger can make a new chain. Heads
kept elsewhere protect against that.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.errors import InvalidInput, Refused

Body = dict[str, Any]
Row = tuple[int, bytes, bytes]  # number, text as stored, hash
START = bytes(32)
MOST_BYTES = 1 << 30  # of one body, unpacked: a damaged file must not fill the memory


class Damaged(Refused):
    """The ledger is damaged or was altered, and must not be used."""


@dataclass(frozen=True)
class Head:
    """A point in a chain: its ledger, its number of entries so far, and the hash of the last."""

    ledger: str
    entries: int
    hash: str

    @property
    def body(self) -> bytes:
        """What a file that keeps the head holds."""
        return (json.dumps(vars(self)) + "\n").encode()

    def save(self, path: Path) -> None:
        write_whole(path, self.body)

    @classmethod
    def load(cls, path: Path) -> Head:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(str(content["ledger"]), int(content["entries"]), str(content["hash"]))
        except FileNotFoundError:
            raise InvalidInput(f"there is no ledger head {str(path)!r}") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Damaged(f"{str(path)!r} is not a ledger head, or is damaged") from None

    @classmethod
    def parse(cls, text: str) -> Head:
        """`ENTRIES:HASH`, as `fedspend ledger verify` prints it."""
        match = re.fullmatch(r"([1-9][0-9]{0,15}):([0-9a-f]{64})", text.strip())
        if match is None:
            raise InvalidInput(
                f"{text!r} is neither a file nor a head such as 42:1f0c... (64 hexadecimal digits)"
            )
        return cls("", int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.entries}:{self.hash}"


def to_text(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def pack(text: bytes) -> bytes:
    packed = zlib.compress(text, 6) if len(text) > 512 else text
    return min(text, packed, key=len)


def unpack(stored: bytes) -> bytes:
    """The text of a stored row; raises `ValueError` if it cannot be unpacked."""
    if stored[:1] == b"{":
        return stored
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(stored, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("incomplete")
    return text


def link(previous: bytes, number: int, text: bytes) -> bytes:
    return hashlib.sha256(previous + number.to_bytes(8, "big") + text).digest()


def follow(rows: Iterable[Row], number: int, previous: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Check that `rows` continue a chain; yields the number, text and hash of each.

    The chain so far has `number` entries and ends with the hash `previous`.
    """
    for row in rows:
        number += 1
        if not (isinstance(row[1], bytes) and isinstance(row[2], bytes)) or row[0] != number:
            raise Damaged(f"the ledger is damaged: entry {number} is missing or out of place")
        try:
            text = unpack(row[1])
        except ValueError:
            raise Damaged(f"the ledger is damaged: entry {number} cannot be read") from None
        if link(previous, number, text) != row[2]:
            raise Damaged(
                f"the ledger is damaged: entry {number} does not continue the chain, so it or an "
                "earlier one was changed"
            )
        yield number, text, row[2]
        previous = row[2]


def parse(number: int, text: bytes) -> Body:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Damaged(f"the ledger is damaged: entry {number} cannot be read")
    return body
