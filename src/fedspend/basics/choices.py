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
    near = difflib.get_close_matches(str(value).lower(), names, 1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"choose one of {', '.join(names)}"
        if names
        else "there are none"
    )
    raise InvalidInput(f"unknown {what} {value!r}; {hint}")


def only(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse any option that is not known."""
    names = list(known)
    for option in given:
        if option not in names:
            choose(f"option of {what}:", option, names)
