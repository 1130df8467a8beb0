"""Tables of names: whatever has a name in a config is an entry in one of them.

Guarantee: every name means one thing only; a misspelt one is refused, and the nearest is suggested.
Users' own entries sit beside ours, and the same readers, messages and help find them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedspend.basics.choices import choose
from fedspend.errors import InvalidInput

NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"


@dataclass(frozen=True)
class Entry:
    """A name, a sentence that says what it is, and the config keys that it uses."""

    name: str
    help: str
    keys: tuple[str, ...] = ()


E = TypeVar("E", bound=Entry)
_OF_SECTION: dict[str, list[Registry[Any]]] = {}


class Registry(Generic[E]):
    """Entries in the order they were added.

    `section` is the section of the config that names them and holds their keys.
    """

    def __init__(self, what: str, *entries: E, section: str) -> None:
        self.what, self._entries = what, {entry.name: entry for entry in entries}
        self._ours = frozenset(self._entries)
        _OF_SECTION.setdefault(section, []).append(self)

    def add(self, entry: E) -> E:
        """Add an entry; refuses a name that is taken or malformed."""
        if not (isinstance(entry.name, str) and re.fullmatch(NAME, entry.name)):
            raise InvalidInput(
                f"{self.what} names must be lower-case letters and digits with dashes in between, "
                f"got {entry.name!r}"
            )
        if entry.name in self._entries:
            raise InvalidInput(
                f"another {self.what} is already called {entry.name!r}; choose another name"
            )
        if not (isinstance(entry.help, str) and entry.help.strip()):
            raise InvalidInput(
                f"{self.what} {entry.name!r} needs a sentence that says what it is (help)"
            )
        self._entries[entry.name] = entry
        return entry

    def remove(self, name: str) -> None:
        """Remove an entry: for tests, and for notebooks that define one again."""
        del self._entries[self[name].name]

    def __getitem__(self, name: str) -> E:
        return self._entries[choose(self.what, name, self._entries)]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    @property
    def own(self) -> tuple[str, ...]:
        """The names that users have added."""
        return tuple(name for name in self._entries if name not in self._ours)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)


def any_own() -> bool:
    """Whether users have added an entry to any registry."""
    return any(registry.own for registries in _OF_SECTION.values() for registry in registries)


def own_entries(section: str) -> list[Entry]:
    """The entries that users have added to the registries of a section."""
    return [registry[name] for registry in _OF_SECTION.get(section, ()) for name in registry.own]


def own_keys(section: str) -> set[str]:
    """The keys that users' own entries take from a section of the config."""
    return {key for entry in own_entries(section) for key in entry.keys}


def entries_with(section: str, key: str) -> list[Entry]:
    return [entry for entry in own_entries(section) if key in entry.keys]
