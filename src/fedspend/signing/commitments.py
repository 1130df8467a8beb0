"""Commitments: a number that says nothing about what is in it, until its owner opens it.

Guarantee: a commitment is SHA-256 over 32 fresh random bytes, the opening, and then the content. It
hides the content however few values that could have, because nobody can try them without the
opening; and it binds, because nobody finds another content that fits. A digest without an opening
would do neither: budgets are few round numbers, and anyone could try them all.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

BYTES = 32
_PREFIX = b"fedspend-commitment-1\n"


def new_opening() -> bytes:
    return secrets.token_bytes(BYTES)


def commitment(kind: str, opening: bytes, content: dict[str, Any]) -> str:
    """The commitment to `content`, which is of a `kind`, under an opening of 32 bytes.

    >>> commitment("client", bytes(32), {"a": 1}) == commitment("client", bytes(32), {"a": 2})
    False
    """
    if len(opening) != BYTES:
        raise ValueError("an opening has 32 bytes")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    # the opening has a fixed length and comes before everything of any length
    return hashlib.sha256(_PREFIX + opening + f"{kind}\n{text}".encode()).hexdigest()


def sealed(kind: str, content: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A commitment under a fresh opening, and what opens it."""
    opening = new_opening()
    return commitment(kind, opening, content), {"opening": opening.hex(), "content": content}


def opens(kind: str, stated: Any, opening: Any) -> dict[str, Any] | None:
    """The content in `opening` (as `sealed` made it) if it opens the commitment `stated`."""
    try:
        content = opening["content"]
        if not isinstance(content, dict):
            return None
        fits = commitment(kind, bytes.fromhex(opening["opening"]), content) == stated
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return content if fits else None
