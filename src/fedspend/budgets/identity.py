"""Ids of clients and records: how they are written, and which of them look alike.

Guarantee: an id read here is text in Unicode's composed form (NFC), without space at either end,
printable and not empty. Two ids in one list never differ only by case, by how an accent is encoded,
by space, by invisible characters, by the width of letters or by the kind of a dash: a budget must
not go to the rows of a lookalike. Checks run where names enter (budgets, data, registration, new
plans); files of older versions open with the names they have. A million plain ids take a fraction
of a second.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.errors import InvalidInput

# where the n-th id is, as the prefix of an error: "clients.csv:3: "
Where = Callable[[int], str]

# Invisible characters outside category Cf: fillers, joiners, variation selectors, the empty Braille
# cell.
_UNSEEN = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x2800, 0x2800),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0xE0000, 0xE0FFF),
    )
    for code in range(first, last + 1)
)
# Dashes outside category Pd: the minus sign, the bullet and the point that hyphenate, and the swung
# and the upturned dash.
_DASHES = frozenset("\u2212\u2043\u2027\u2053\u2e43")


def normal(raw: str) -> str:
    """The normal form of an id: composed, and without space of any kind at the ends.

    >>> normal(" caf\\u0065\\u0301\\u00a0") == "caf\\u00e9"
    True
    """
    return raw.strip() if raw.isascii() else unicodedata.normalize("NFC", raw).strip()


def look(id: str) -> str:
    """An id without case, space, invisible characters, width and kind of dash: lookalikes become
    equal. Letters of another script that look like ours stay what they are.

    >>> look("North\\u200b  Clinic") == look("northclinic") == look("\\uff4eorth clinic")
    True
    >>> look("clinic\\u20101") == look("clinic-1")
    True
    """
    if id.isascii():
        return "".join(id.lower().split())
    seen = "".join(
        "-" if unicodedata.category(c) == "Pd" or c in _DASHES else c
        for c in unicodedata.normalize("NFKC", id)
        if unicodedata.category(c) != "Cf" and c not in _UNSEEN
    )
    # a capital I with a dot becomes an i with a second one
    folded = unicodedata.normalize("NFKC", seen.casefold()).replace("i\u0307", "i")
    return "".join(folded.split())


def read_ids(
    raw: Iterable[Any],
    *,
    what: str = "client",
    at: Where = lambda _: "",
    known: Collection[str] = (),
    where: str = "",
) -> tuple[str, ...]:
    """A list of distinct ids, normalised; refuses the first that cannot be accepted.

    None of them may look like one of the `known` ids, listed in `where`. Whether an id may
    equal a known one is for the caller to decide.
    """
    given = list(raw)
    if plain(given):
        refuse_lookalikes_of(given, known, what, where)
        return tuple(given)
    check_text(given, what, at)
    ids = list(map(normal, given))
    check_each(given, ids, what, at)
    refuse_lookalikes(given, ids, what, at)
    refuse_lookalikes_of(ids, known, what, where)
    check_printable(given, ids, what, at)
    return tuple(ids)


def plain(given: Sequence[Any]) -> bool:
    """Whether these ids need no further checks: printable ASCII, trimmed, no two alike. Fast."""
    try:
        text = "\n".join(given)
    except TypeError:
        return False
    if not (
        text.isascii()
        and text.count("\n") == len(given) - 1
        and text.replace("\n", "").isprintable()
    ):
        return False
    padded = f"\n{text}\n"
    if any(pair in padded for pair in ("\n\n", "\n ", " \n", "  ")):
        return False
    return len(set(text.lower().replace(" ", "").split("\n"))) == len(given)


def read_column(raw: Sequence[str], *, what: str = "client", at: Where = lambda _: "") -> list[str]:
    """A column of ids, normalised; an id may appear many times, always written the same way."""
    first: dict[str, int] = {}
    for row, cell in enumerate(raw):
        first.setdefault(cell, row)
    rows = list(first.values())
    ids = read_ids(first, what=what, at=lambda n: at(rows[n]))
    written = dict(zip(first, ids, strict=True))
    return [written[cell] for cell in raw]


def read_array(values: npt.ArrayLike, *, what: str = "client") -> npt.NDArray[Any]:
    """The ids in an array: text is normalised, whole numbers are kept."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise InvalidInput(
                f"{what} ids hold bytes that are not text; save them as text or as whole numbers"
            ) from None
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(str)
    if array.dtype.kind != "U":
        raise InvalidInput(
            f"{what} ids must be text or whole numbers, got {array.dtype}; {what}s are joined by id"
        )
    if array.ndim != 1:
        return array  # the caller, who knows the rows, refuses its shape
    return np.array(read_column(array.tolist(), what=what), dtype=np.str_)


def read_mapping(values: Mapping[Any, Any], *, what: str = "client") -> dict[str, Any]:
    """A mapping with normalised ids as its keys; whole numbers become text."""
    keys = [str(key) if is_whole(key) else key for key in values]
    return dict(zip(read_ids(keys, what=what), values.values(), strict=True))


def as_mapping(values: Any, *, what: str = "client") -> dict[str, Any] | None:
    """Values by id, if they come with ids: a dict, or something like a pandas Series; else None."""
    if isinstance(values, Mapping):
        return read_mapping(values, what=what)
    index, to_numpy = getattr(values, "index", None), getattr(values, "to_numpy", None)
    if index is None or callable(index) or to_numpy is None:
        return None
    column = np.asarray(to_numpy())
    if column.ndim != 1:
        raise InvalidInput(
            f"values by {what} must be one column, got shape {column.shape}; take one column of "
            "the table"
        )
    keys = [str(key) if is_whole(key) else key for key in index]
    return dict(zip(read_ids(keys, what=what), column.tolist(), strict=True))


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


# --- what is refused ------------------------------------------------------------------------------


def check_text(given: Sequence[Any], what: str, at: Where) -> None:
    if not all(isinstance(value, str) for value in given):
        row = next(n for n, value in enumerate(given) if not isinstance(value, str))
        raise InvalidInput(f"{at(row)}{what} ids must be non-empty strings, got {given[row]!r}")


def check_each(given: Sequence[str], ids: Sequence[str], what: str, at: Where) -> None:
    if not all(ids):
        row = next(n for n, name in enumerate(ids) if not name)
        raise InvalidInput(f"{at(row)}{what} ids must be non-empty strings, got {given[row]!r}")


def check_printable(given: Sequence[str], ids: Sequence[str], what: str, at: Where) -> None:
    if not all(map(str.isprintable, ids)):
        row = next(n for n, name in enumerate(ids) if not name.isprintable())
        raise InvalidInput(
            f"{at(row)}{what} {given[row]!a} has a line break, a control character or an "
            "invisible character; use printable text"
        )


def refuse_lookalikes(given: Sequence[str], ids: Sequence[str], what: str, at: Where) -> None:
    """Refuse two ids in one list that are the same, or that a reader could mix up."""
    if len(set(map(look, ids))) < len(ids):
        first: dict[str, int] = {}
        for row, name in enumerate(ids):
            before = first.setdefault(look(name), row)
            if before != row:
                _refuse_pair(given[before], given[row], what, at(row))


def refuse_lookalikes_of(ids: Sequence[str], known: Collection[str], what: str, where: str) -> None:
    """Refuse an id that looks like a known one but differs; equal ones are for the caller."""
    if not known:
        return
    looks = set(map(look, ids))
    there = {look(name): name for name in known if look(name) in looks}
    for name in ids if there else ():
        other = there.get(look(name))
        if other is not None and other != name and name not in known:
            _refuse_pair(other, name, what, "", f" of {where}")


def alike(id: str, known: Iterable[str]) -> str | None:
    """A known id that looks like this one, as a hint in an error."""
    mine = look(normal(id))
    return next((name for name in known if name != id and look(name) == mine), None)


def hint_alike(id: str, known: Iterable[str]) -> str:
    """The text ", though ..." if there is a lookalike, else nothing."""
    other = alike(id, known)
    return "" if other is None else f", though {other!a} looks like it"


def _refuse_pair(one: str, other: str, what: str, place: str, whose: str = "") -> None:
    if one == other:
        raise InvalidInput(f"{place}{what} id {one!r} appears twice; every {what} needs its own")
    if normal(one) == normal(other):
        raise InvalidInput(
            f"{place}{what} ids {one!a}{whose} and {other!a} are the same except for space at the "
            "ends or how an accent is encoded; write both the same way"
        )
    raise InvalidInput(
        f"{place}{what} ids {one!a}{whose} and {other!a} differ only by case, space or invisible "
        "characters; write both the same way, or rename one"
    )
