"""What the numbers of rows mean, as short digests: do server and nodes mean the same?

Guarantee: digests are made of what is declared, of a table's header and of the shape of a row; no
cell of a row is in them. Whoever agrees in all parts makes the same numbers of the same cells. A
part that somebody cannot state, as arrays have no names of columns, is not compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from fedspend.data.dataset import Rows

# the parts, and where a config states each of them
WHERE: Mapping[str, str] = {
    "columns": "data.columns (without it, the header of the file)",
    "bounds": "data.bounds",
    "levels": "data.categories, data.other and data.vocabulary",
    "missing": "data.missing and data.indicators",
    "label": "data.label",
    "labels": "data.labels, data.classes and data.label_bounds",
    "scale": "data.bounds",  # of arrays, whose columns have no names
    "shape": "the shape of a row, data.classes and data.image_size",
    "features": "model.features",
}
_LENGTH = 12  # hexadecimal digits: enough to tell slips apart


def summary(rows: Rows, features: str) -> str:
    """What the rows mean to a model that is given them through this fixed map of features."""
    shape = [rows.features.shape[1:], int(rows.classes)]
    parts = {**rows.meaning, "shape": shape, "features": features}
    return " ".join(f"{part}={_digest(parts[part])}" for part in WHERE if part in parts)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def parts_of(said: str) -> dict[str, str]:
    """The digests of a summary, by part; anything else is left out."""
    found = dict(one.partition("=")[::2] for one in said.split())
    return {part: found[part] for part in WHERE if part in found}


class Agreement:
    """What rows mean to everyone who has spoken so far; the server is the first."""

    def __init__(self, ours: str) -> None:
        self._by = {"": parts_of(ours)}  # client -> its digests; "" is the server

    def heard(self, client: str, said: str) -> None:
        """What nobody has stated before counts from now on."""
        self._by[client] = parts_of(said)

    def forget(self, client: str) -> None:
        """It has gone: what it alone has stated counts no longer."""
        self._by.pop(client, None)

    def difference(self, said: str, us: str = "this server") -> str:
        """In which parts somebody's rows mean something else, and what to compare; empty if in
        none.
        """
        theirs = parts_of(said)
        different = {
            whom: [part for part in theirs if ours.get(part, theirs[part]) != theirs[part]]
            for whom, ours in self._by.items()
        }
        whom = next((one for one, parts in different.items() if parts), None)
        if whom is None:
            return ""
        parts, first = different[whom], f"client {whom!r}" if whom else us
        return (
            f"declares its data otherwise than {first} does, in {', '.join(parts)}: compare "
            f"{'; '.join(dict.fromkeys(WHERE[part] for part in parts))} of the two configs, and "
            "make them the same"
        )
