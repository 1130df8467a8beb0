"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedspend.errors import InvalidInput, Refused, exit_code_of


def write_whole(path: Path, body: bytes, *, private: bool = True) -> None:
    """Write a file atomically and durably: a crash or a full disk leaves the old file intact.

    A private file can be read by its owner only, any other by everyone. A place where none can be
    is bad input.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and exit_code_of(error) != InvalidInput.exit_code:
            raise
        why = _obstacle(path) or f": {getattr(error, 'strerror', None) or error}; name another"
        raise InvalidInput(f"cannot write: {str(path)!r}{why}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_unfinished(path: Path) -> None:
    """Remove what a process that was killed while it wrote this file has left beside it. Nobody may
    be writing it.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        left.unlink(missing_ok=True)


def check_writable(flag: str, name: str) -> None:
    """`name`, given with `flag`, must be a file in an existing directory that can be written to."""
    why = _obstacle(Path(name))
    if why is not None:
        raise InvalidInput(f"{flag} {name!r}{why}")


def _obstacle(path: Path) -> str | None:
    """Why no file can be written under this name, in words that go on after it."""
    if path.is_dir():
        return " is a directory; name a file in it"
    if not path.parent.is_dir():
        return f": there is no directory {str(path.parent)!r}; create it first"
    if not os.access(path.parent, os.W_OK):
        return f": directory {str(path.parent)!r} cannot be written to; name another"
    return None


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Make a folder, and its parents, where they are missing; a place where none can be made is bad
    input. A private one is for its owner only.
    """
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and exit_code_of(error) != InvalidInput.exit_code:
            raise
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"cannot make the folder {str(folder)!r}: {why}; name another") from None


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock a folder; refuses if another process is working in it.

    The lock ends with the process, however that ends.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"another process is at work in {folder}; wait for it, or stop it first"
            ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Lock a folder, waiting for whoever works in it; made if it is not there (0700)."""
    make_folder(folder, private=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def as_line(content: dict[str, Any]) -> bytes:
    """One JSON line, as files of lines have it."""
    return (json.dumps(content, allow_nan=False) + "\n").encode()


def append_line(path: Path, line: bytes) -> None:
    """Add one line, durably."""
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file, without a last line that a crash cut off."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
