"""A hash tree: one root binds many leaves, and a short path shows that a leaf is among them.

Guarantee: nobody finds another leaf that has a path to the same root. A path says nothing about the
other leaves but their hashes, so leaves that hide their content (`signing.commitments`) stay
hidden. Leaves and inner nodes are hashed under different prefixes: neither passes for the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

_PREFIX = b"fedspend-tree-1\n"
_HASH = re.compile(r"[0-9a-f]{64}")
MOST_STEPS = 64  # of a path; a tree of a million leaves has 20

Path = list[list[str]]  # from the leaf up: ["left" or "right", hash of the neighbour]


def parent(left: str, right: str) -> str:
    return hashlib.sha256(_PREFIX + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest()


def levels(leaves: Sequence[str]) -> list[list[str]]:
    """The leaves, their parents, and so on up to the root. One without a neighbour moves up."""
    found = [list(leaves)]
    while len(found[-1]) > 1:
        below = found[-1]
        pairs = [parent(*below[n : n + 2]) for n in range(0, len(below) - 1, 2)]
        found.append(pairs + below[len(below) - len(below) % 2 :])
    return found


def path_of(tree: Sequence[Sequence[str]], number: int) -> Path:
    """What leads from a leaf to the root of `levels`.

    >>> tree = levels([character * 64 for character in "abc"])
    >>> [climbed(character * 64, path_of(tree, n)) for n, character in enumerate("abc")] == (
    ...     tree[-1] * 3
    ... )
    True
    """
    path: Path = []
    for level in tree[:-1]:
        neighbour = number ^ 1
        if neighbour < len(level):
            path.append(["left" if neighbour < number else "right", level[neighbour]])
        number //= 2
    return path


def climbed(leaf: str, path: Any) -> str | None:
    """The root that a path leads to; None if it is no path."""
    if not (isinstance(path, list) and len(path) <= MOST_STEPS and is_hash(leaf)):
        return None
    found = leaf
    for step in path:
        if not (isinstance(step, list) and len(step) == 2 and is_hash(step[1])):
            return None
        if step[0] not in ("left", "right"):
            return None
        found = parent(step[1], found) if step[0] == "left" else parent(found, step[1])
    return found


def is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None
