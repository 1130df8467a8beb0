"""What runs are made from beside their settings: files that these name, and code.

Guarantee: runs of equal settings and origins find the same numbers. Not noticed are changes of code
of your own outside the files that register it, of code typed into a notebook, and of the packages
that such code imports.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import fedspend
from fedspend.configuration.config import Config
from fedspend.configuration.register import files_of_own
from fedspend.configuration.sections import SECTIONS

# what their files say decides nothing about a simulation in memory
_ELSEWHERE = ("ledger", "engine", "node", "design")


def code_and_machine() -> dict[str, str]:
    """Versions, and a digest of this package's own code, which may change without them."""
    from fedspend.runs.beginning import environment

    return {**environment(), "code": _code()}


@cache
def _code() -> str:
    return _digest(Path(fedspend.__file__).parent, "*.py")


def digests_of_files(configs: Iterable[Config]) -> dict[str, str]:
    """SHA-256 by path of what configs name, and of users' own code. Folders are read whole. What
    is not there is left to those who need it.
    """
    paths = {path for config in configs for path in _files_of(config)} | files_of_own()
    return {str(path): _digest(path) for path in sorted(paths) if path.exists()}


def _files_of(config: Config) -> Iterator[Path]:
    for section, values in config.values.items():
        for key, value in values.items():
            known = SECTIONS[section].get(key)
            if known is not None and known.placed and section not in _ELSEWHERE:
                yield Path(value)
    for name in (config.model.name, config.model.backbone):
        module, colon, _ = (name or "").partition(":")
        origin = _origin_of(module) if colon else None
        if origin is not None:
            yield Path(origin)


def _origin_of(module: str) -> str | None:
    """The file of a module; whoever builds the model says what is wrong with a name."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if found is None or not found.has_location else found.origin


def _digest(path: Path, pattern: str = "*") -> str:
    """Of a file's content, or of the names and contents of all files in a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for one in sorted(path.rglob(pattern)):
        if one.is_file():
            whole.update(f"{one.relative_to(path)}\n{_digest(one)}\n".encode())
    return whole.hexdigest()
