"""Names that users may give: a misspelt one is refused, and the nearest is suggested."""

from __future__ import annotations

import difflib
import re
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
    >>> near("clinic-1", ["clinic-51", "clinic-01"])
    "did you mean 'clinic-01'?"
    """
    names = list(known)
    given = str(value).lower()
    found = [one for one in names if _unpadded(one.lower()) == _unpadded(given)]
    found = found or difflib.get_close_matches(given, names, 1)
    return f"{before}did you mean {found[0]!r}?" if found else ""


def _unpadded(name: str) -> str:
    """Without the zeros that numbers in it begin with."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", name)


def only(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse any option that is not known."""
    names = list(known)
    for option in given:
        if option not in names:
            choose(f"option of {what}:", option, names)
