"""Numbers in sentences."""

from __future__ import annotations

from fedspend.basics.arrays import FloatArray


def counted(number: int, word: str) -> str:
    """A number and its noun.

    >>> counted(1, "client"), counted(1200, "client")
    ('1 client', '1,200 clients')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def span(values: FloatArray) -> str:
    """The smallest and the largest value, or one number if the two look the same as printed.

    >>> import numpy as np
    >>> span(np.array([2.0, 2.0])), span(np.array([5.0, 0.5, 1.0]))
    ('2', '0.5 to 5')
    """
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
