"""Markdown tables, and numbers with their intervals."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [headings, *rows]
    first, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, "|" + "---|" * len(headings), *rest])


def accuracy(mean: float, half: float | None) -> str:
    """Percent, with half the width of its interval.

    >>> accuracy(81.234, 0.56), accuracy(81.234, None)
    ('81.2 ± 0.6', '81.2')
    """
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def gain(mean: float, half: float | None, digits: int = 1) -> str:
    """Points against another arm; bold if the interval leaves 0 out.

    >>> gain(1.23, 0.4), gain(-0.2, 0.4), gain(1.0, None)
    ('**+1.2 ± 0.4**', '-0.2 ± 0.4', '+1.0')
    """
    if half is None:
        return f"{mean:+.{digits}f}"
    text = f"{mean:+.{digits}f} ± {half:.{digits}f}"
    return f"**{text}**" if abs(mean) > half else text
