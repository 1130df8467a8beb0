"""Markdown tables, numbers with their intervals, and what the runs behind a table cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiment import Finished, Outcome, compared


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
    """Points against another arm; bold if the interval leaves 0 out. Where both would round to the
    same, or the interval to nothing, there is another digit: nobody could see what is the case.

    >>> gain(1.23, 0.4), gain(-0.2, 0.4), gain(1.0, None), gain(0.041, 0.032)
    ('**+1.2 ± 0.4**', '-0.2 ± 0.4', '+1.0', '**+0.04 ± 0.03**')
    >>> gain(-0.164, 0.157), gain(1.02, 0.04), gain(0.1, 0.0)
    ('**-0.164 ± 0.157**', '**+1.02 ± 0.04**', '**+0.1 ± 0.0**')
    """
    if half is None:
        return f"{mean:+.{digits}f}"
    if 0.005 <= half < 0.1:
        digits = max(digits, 2)
    while digits < 3 and f"{abs(mean):.{digits}f}" == f"{half:.{digits}f}":
        digits += 1
    text = f"{mean:+.{digits}f} ± {half:.{digits}f}"
    return f"**{text}**" if abs(mean) > half else text


def beside_paper(theirs: str, ours: str) -> str:
    """The paper's number, if it has one, and ours.

    >>> beside_paper("94.77", "95.0"), beside_paper("", "95.0")
    ('*94.77* / 95.0', '95.0')
    """
    return f"*{theirs}* / {ours}" if theirs else ours


class _Noted(dict[str, dict[str, Any]]):
    """Lines by key, and which of them were looked up."""

    def __init__(self, lines: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(lines)
        self.read: dict[str, dict[str, Any]] = {}

    def __getitem__(self, key: str) -> dict[str, Any]:
        line = self.read[key] = super().__getitem__(key)
        return line

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


def against(ours: Outcome | None, base: Outcome | None, digits: int = 1) -> str:
    found = compared(ours, base)
    return "-" if found is None else gain(*found, digits=digits)


def with_seconds(block: Callable[[Finished], str]) -> Callable[[Finished], str]:
    """The block, and below it what the runs that it reads took. Runs that other tables read too are
    counted in each; before the first run nothing is added.
    """

    def made(results: Finished) -> str:
        noted = _Noted(results.found)
        text = block(Finished(results.path, noted))
        if not noted.read:
            return text
        lines = noted.read.values()
        seconds, tuning = (sum(map(cost, lines)) for cost in (_seconds, _tunes))
        told = f"CPU: {seconds:,.0f} s in {len(lines):,} runs"
        return f"{text}\n\n{told}{f', {tuning:,} of them for tuning' if tuning else ''}."

    return made


def _seconds(line: Mapping[str, Any]) -> float:
    return float(line["seconds"])


def _tunes(line: Mapping[str, Any]) -> int:
    return int(line["held_out"] > 0)
