"""What a client must remember from round to round: private, durable, and kept by the client, not by
the server.

Guarantee: a state is written whole or not at all, readable by its owner only (files 0600 in folders
0700), before anything that depends on it leaves the client.
"""

from __future__ import annotations

import hashlib
import string
from pathlib import Path
from typing import Protocol

from fedspend.basics.files import write_whole
from fedspend.errors import InvalidInput

FILE = "state.safetensors"
_LONGEST = 100
# no capitals: not every file system is case-sensitive
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_")


class States(Protocol):
    """One block of bytes per client."""

    def read(self, client: str) -> bytes | None: ...

    def write(self, client: str, body: bytes) -> None: ...

    def place(self, client: str) -> str:
        """Where the state is, for messages."""
        ...


class MemoryStates:
    """For runs that leave nothing on disk."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def read(self, client: str) -> bytes | None:
        return self._held.get(client)

    def write(self, client: str, body: bytes) -> None:
        self._held[client] = body

    def place(self, client: str) -> str:
        return f"the state of client {client!r}"


class FolderStates:
    """A folder with a subfolder for every client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: str) -> bytes | None:
        try:
            return self._path(client).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInput(f"{self._path(client)} cannot be read: {error.strerror}") from None

    def write(self, client: str, body: bytes) -> None:
        path = self._path(client)
        for folder in (self.folder, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, body)

    def place(self, client: str) -> str:
        return str(self._path(client))

    def _path(self, client: str) -> Path:
        return self.folder / file_name(client) / FILE


def file_name(client: str) -> str:
    """Turns any id into the name of a file: quotes special characters and hashes long ids.

    >>> file_name("north-7"), file_name("Süd/1")
    ('north-7', '%53%C3%BCd%2F1')
    """
    body = client.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in body)
    if not 0 < len(name) <= _LONGEST:
        name = f"={hashlib.sha256(body).hexdigest()}"  # no quoted name begins with "="
    return name


def folder_beside(run: Path) -> Path:
    """Where the clients of a run on one machine keep their states: beside the run directory, not in
    it, and the same however the directory is written (`.`, `x/..`, a link).
    """
    whole = run.resolve()
    return whole.with_name(f"{whole.name}.clients")
