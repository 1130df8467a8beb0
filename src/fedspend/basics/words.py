"""Small words for sentences."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """
    >>> counted(1, "client"), counted(1200, "client")
    ('1 client', '1,200 clients')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
