"""What one key of a config file may hold, and how it is read. `sections` lists the keys.

Guarantee: a reader takes the parsed TOML value and returns it as the type that its `Key` names, or
raises `ValueError`; it never lets NaN, infinity or a boolean through as a number. `wanted`
completes the sentence "rate must be ...".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, overload

from fedspend.basics.registry import Registry

T = TypeVar("T")
KEY = "key"  # of a dataclass field's metadata


@dataclass(frozen=True)
class Key(Generic[T]):
    """One key: its reader, a phrase for what is wanted, what it means and its default.

    A list of tables also has the keys of one table; a file has `placed`, which makes a name
    absolute.
    """

    read: Callable[[Any], T]
    wanted: str
    help: str
    default: T | None = None
    table: Mapping[str, AnyKey] | None = None
    placed: Callable[[str, Path], str] | None = None
    registry: Registry[Any] | None = None
    also: tuple[str, ...] = ()  # words beside the names of the registry
    words: tuple[str, ...] = ()  # all that may be given, where it is one of a few words

    @property
    def names(self) -> tuple[str, ...]:
        """The words that may be given, built in or registered later; none where others may be."""
        return self.words if self.registry is None else (*self.also, *self.registry.names)

    @property
    def asks(self) -> str:
        """What is wanted, including any names that were registered later."""
        if self.registry is None:
            return self.wanted
        return one_of((*self.also, *self.registry.names))


AnyKey = Key[Any]


@overload
def setting(key: Key[T]) -> T | None: ...
@overload
def setting(key: Key[T], default: T) -> T: ...
def setting(key: Key[T], default: T | None = None) -> Any:
    """A field of a section, which is `default` or None if it is not given.

    Type checkers see the type of its value, as with `dataclasses.field`.
    """
    return field(default=default, metadata={KEY: replace(key, default=default)})


# --- readers --------------------------------------------------------------------------------------


def require(good: bool) -> None:
    if not good:
        raise ValueError


def number(wanted: str, good: Callable[[float], bool], help: str) -> Key[float]:
    """A finite number for which `good` holds. Integers will do; booleans will not."""

    def read(value: Any) -> float:
        require(isinstance(value, int | float) and not isinstance(value, bool))
        try:
            result = float(value)
        except OverflowError:
            raise ValueError from None
        require(math.isfinite(result) and good(result))
        return result

    return Key(read, wanted, help)


def whole(least: int, help: str) -> Key[int]:
    def read(value: Any) -> int:
        require(isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63)
        return int(value)

    return Key(read, f"a whole number of at least {least}", help)


def text(help: str) -> Key[str]:
    def read(value: Any) -> str:
        require(isinstance(value, str) and value.strip() != "" and value.isprintable())
        return str(value)

    return Key(read, "one line of text in quotes", help)


def file(help: str) -> Key[str]:
    return replace(text(help), placed=lambda name, folder: os.path.realpath(folder / name))


def ledger(help: str) -> Key[str]:
    """A file, or a URL, which does not depend on a folder."""

    def placed(name: str, folder: Path) -> str:
        from fedspend.ledger.storage import is_url, path_of

        return name if is_url(name) else os.path.realpath(folder / path_of(name))

    return replace(text(help), placed=placed)


def one_of(names: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{name}"' for name in names)


def registered(registry: Registry[Any], help: str, also: tuple[str, ...] = ()) -> Key[str]:
    """The name of an entry, built in or registered later, or one of the words `also`."""

    def read(value: Any) -> str:
        require(isinstance(value, str) and (value in registry or value in also))
        return str(value)

    return Key(read, one_of((*also, *registry.names)), help, registry=registry, also=also)


def choice(*names: str, help: str) -> Key[str]:
    def read(value: Any) -> str:
        require(isinstance(value, str) and value in names)
        return str(value)

    return Key(read, one_of(names), help, words=names)


def _anything(value: Any) -> Any:
    return value


# a key of a user's own entry, which checks it itself
ANYTHING: AnyKey = Key(_anything, "a value", "a key of your own entry")


def flag(help: str) -> Key[bool]:
    def read(value: Any) -> bool:
        require(isinstance(value, bool))
        return bool(value)

    return Key(read, "true or false", help)


def ratio_or_list(help: str) -> Key[float | list[float]]:
    """A positive number (the ratio of policy geometric) or a list of them (one per round)."""
    one = positive("")

    def read(value: Any) -> float | list[float]:
        if isinstance(value, list):
            require(len(value) > 0)
            return [one.read(item) for item in value]
        return one.read(value)

    return Key(read, "a positive number, or a list of positive numbers, one per round", help)


def word_or_list(*words: str, help: str) -> Key[str | list[float]]:
    """One of a few words, or a list of positive numbers (one per round)."""
    one = positive("")

    def read(value: Any) -> str | list[float]:
        if isinstance(value, list):
            require(len(value) > 0)
            return [one.read(item) for item in value]
        require(isinstance(value, str) and value in words)
        return str(value)

    wanted = f"{one_of(words)}, or a list of positive numbers, one per round"
    return Key(read, wanted, help)


def wholes(help: str) -> Key[list[int]]:
    one = whole(1, "")

    def read(value: Any) -> list[int]:
        require(isinstance(value, list))
        return [one.read(item) for item in value]

    return Key(read, "a list of whole numbers of at least 1", help)


def pair(help: str) -> Key[tuple[float, float]]:
    one = number("", lambda _: True, "")

    def read(value: Any) -> tuple[float, float]:
        require(isinstance(value, list) and len(value) == 2)
        low, high = (one.read(item) for item in value)
        require(low < high)
        return low, high

    return Key(read, "two numbers, the lower first, for example [0, 255]", help)


def table(help: str) -> Key[dict[str, Any]]:
    """A table of whatever a function of the user's own takes."""

    def read(value: Any) -> dict[str, Any]:
        require(isinstance(value, dict))
        return dict(value)

    return Key(read, "a table, for example {depth = 3}", help)


def by_column(one: Key[T], example: str, help: str) -> Key[dict[str, T]]:
    """A table with a value for each of some columns, each of which `one` accepts."""

    def read(value: Any) -> dict[str, T]:
        require(isinstance(value, dict) and len(value) > 0)
        return {str(column): one.read(item) for column, item in value.items()}

    return Key(read, f"a table with {one.wanted} for each column, for example {example}", help)


def either(one: Key[Any], other: Key[Any], help: str) -> AnyKey:
    """What one of two keys accepts."""

    def read(value: Any) -> Any:
        try:
            return one.read(value)
        except ValueError:
            return other.read(value)

    return Key(read, f"{one.wanted}, or {other.wanted}", help)


def letter(help: str, example: str) -> Key[str]:
    """A single character, also a tab."""

    def read(value: Any) -> str:
        require(isinstance(value, str) and len(value) == 1)
        return str(value)

    return Key(read, f"one character in quotes, for example {example}", help)


def letters(help: str) -> Key[str]:
    """Different characters in one string, also space and line breaks."""

    def read(value: Any) -> str:
        require(isinstance(value, str) and len(value) >= 2 and len(set(value)) == len(value))
        return str(value)

    return Key(read, 'different characters in quotes, for example "abc"', help)


def levels(help: str, least: int = 1) -> Key[list[str]]:
    """A list of at least this many different words; numbers and booleans are taken as the words
    that they are.
    """

    def read(value: Any) -> list[str]:
        require(isinstance(value, list) and len(value) >= least)
        return several(text(""), "").read([_as_word(item) for item in value])

    many = "" if least < 2 else f"at least {least} "
    return Key(read, f'a list of {many}different words, for example ["no", "yes"]', help)


def _as_word(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def tables(keys: Mapping[str, AnyKey], help: str) -> Key[list[Any]]:
    def read(value: Any) -> list[Any]:
        require(
            isinstance(value, list)
            and len(value) > 0
            and all(isinstance(item, dict) for item in value)
        )
        return list(value)

    return Key(read, "a list of tables, for example [{epsilon = 10, share = 1}]", help, table=keys)


def positive(help: str) -> Key[float]:
    return number("a positive number", lambda x: x > 0, help)


def several(one: Key[T], help: str) -> Key[list[T]]:
    """A list of different values, each of which `one` accepts."""

    def read(value: Any) -> list[T]:
        require(isinstance(value, list) and len(value) > 0)
        values = [one.read(item) for item in value]
        require(len(set(values)) == len(values))
        return values

    return Key(read, f"a list of different values, each {one.wanted}", help)


def probability(help: str) -> Key[float]:
    return number("a number above 0 and at most 1", lambda x: 0 < x <= 1, help)


# --- tables inside a list -------------------------------------------------------------------------

GROUP: Mapping[str, AnyKey] = {
    "epsilon": positive("the budget of every client in this group"),
    "share": number(
        "a number of at least 0",
        lambda x: x >= 0,
        "this group's part of all clients, relative to the other shares",
    ),
    "saving_rate": probability("sampling rate before the transition round"),
    "transition": whole(1, "first round at the full rate"),
}


class GroupTable(TypedDict, total=False):
    """One of `privacy.groups`, as given; its keys are those of `GROUP`."""

    epsilon: float
    share: float
    saving_rate: float
    transition: int
