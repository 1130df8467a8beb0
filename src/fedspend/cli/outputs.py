"""Refuse a file that cannot be written before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from fedspend.errors import InvalidInput


def check_writable(flag: str, name: str) -> None:
    """`name`, given with `flag`, must be a file in a folder that is there and can be written to."""
    path = Path(name)
    if path.is_dir():
        raise InvalidInput(f"{flag} {name!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InvalidInput(f"{flag} {name!r}: there is no directory {str(path.parent)!r}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"{flag} {name!r}: directory {str(path.parent)!r} cannot be written to")
