"""Names that users may give: a misspelt one is refused, and the nearest is suggested."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fedspend.errors import InvalidInput


def choose(what: str, value: Any, known: Iterable[str]) -> str:
    """`value` if it is one of the `known` names, otherwise `InvalidInput`.

    >>> choose("partition", "iid", ["iid", "shards"])
    'iid'
    """
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    hint = near(value, names) or (
        f"choose one of {', '.join(names)}" if names else "there are none"
    )
    raise InvalidInput(f"unknown {what} {value!r}; {hint}")


def near(value: Any, known: Iterable[str], before: str = "") -> str:
    """A question about the nearest name, after the words `before`; empty if none is near.

    >>> near("optimul", ["uniform", "optimal"], "; "), near("x", ["uniform"], "; ")
    ("; did you mean 'optimal'?", '')
    """
    found = difflib.get_close_matches(str(value).lower(), list(known), 1)
    return f"{before}did you mean {found[0]!r}?" if found else ""


def only(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse any option that is not known."""
    names = list(known)
    for option in given:
        if option not in names:
            choose(f"option of {what}:", option, names)
