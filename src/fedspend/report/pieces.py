"""Small pieces that all parts of a report share: marks, tables, and formatted numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedspend.report.markup import Content, Markup, element

MARKS = {
    "planned": "planned",
    "release": "released",
    "public": "public rows",
    "simulation": "simulation only",
}
EXPLAINED = {
    "planned": "known before the run, costs nothing",
    "release": "a private release, or computed from releases",
    "public": "measured on public rows",
    "simulation": "not private, a real run does not show it",
}
MOST_BUDGETS = 6  # most budgets listed one by one


def mark(kind: str) -> Markup:
    return element("span", MARKS[kind], class_=f"mark {kind}")


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    words: int = 1,
    class_: str | None = None,
) -> Markup:
    """A table that scrolls if it is too wide; all but the first `words` columns are numbers."""

    def cells(tag: str, row: Sequence[Content]) -> list[Markup]:
        return [element(tag, cell, class_=None if n < words else "n") for n, cell in enumerate(row)]

    body = [element("tr", cells("td", row)) for row in rows]
    inner = element(
        "table",
        element("thead", element("tr", cells("th", head))),
        element("tbody", body),
        class_=class_,
    )
    return element("div", inner, class_="scroll", tabindex=0)


def plain(value: Any) -> str:
    """A setting as readable text.

    >>> groups = [{"epsilon": 10.0, "share": 0.5}, {"epsilon": 20.0}]
    >>> plain(groups), plain(True), plain([1, 2]), plain(None)
    ('epsilon 10, share 0.5; epsilon 20', 'yes', '1, 2', 'none')
    """
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(one)}" for key, one in value.items())
    if isinstance(value, list):
        between = "; " if any(isinstance(one, dict) for one in value) else ", "
        return between.join(plain(one) for one in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return power(value)
    return value if isinstance(value, str) else json.dumps(value)


def percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f}%"


def figure(value: float | None) -> str:
    """
    >>> figure(9.99999999), figure(None), figure(0.0), figure(1489.2), figure(12345.6)
    ('10.00', '—', '0', '1489', '12346')
    """
    if value is None:
        return "—"
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:#.4g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.1e}"


def power(value: float) -> str:
    """
    >>> power(1e-05), power(0.25), power(10.0)
    ('1e-5', '0.25', '10')
    """
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e")
