"""A small table in the formats that people paste: CSV, Markdown, LaTeX, HTML.

Guarantee: a cell is shown as it was given; what a format would read as its own is escaped, so that
no name, of a client or a setting, can become markup.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Cells under a header; the first column is words, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def csv(self) -> str:
        """
        >>> Table(["a", "b"], [["x, y", 1]]).csv()
        'a,b\\r\\n"x, y",1\\r\\n'
        """
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return text.getvalue()

    def markdown(self) -> str:
        """
        >>> print(Table(["a", "b"], [["x|y", 1]], "n").markdown())
        | a | b |
        |---|---:|
        | x\\|y | 1 |
        <BLANKLINE>
        n
        <BLANKLINE>
        """
        aligned = "|---|" + "---:|" * (len(self.header) - 1)
        lines = [_piped(self.header), aligned, *map(_piped, self.rows)]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def latex(self) -> str:
        """A `tabular` with the rules of the package booktabs.

        >>> print(Table(["a", "b"], [["50%", 1]]).latex())
        \\begin{tabular}{lr}
        \\toprule
        a & b \\\\
        \\midrule
        50\\% & 1 \\\\
        \\bottomrule
        \\end{tabular}
        <BLANKLINE>
        """

        def line(cells: Sequence[Any]) -> str:
            return " & ".join(_latex(cell) for cell in cells) + r" \\"

        body = [r"\toprule", line(self.header), r"\midrule", *map(line, self.rows), r"\bottomrule"]
        columns = "l" + "r" * (len(self.header) - 1)
        note = f"% {' '.join(self.note.split())}\n" if self.note else ""
        opened = rf"\begin{{tabular}}{{{columns}}}"
        return note + "\n".join([opened, *body, r"\end{tabular}"]) + "\n"

    def html(self, title: str = "") -> str:
        """
        >>> Table(["a"], [["<b>"]]).html("t")
        '<table><caption>t</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
        """
        caption = f"<caption>{escape(title)}</caption>" if title else ""
        head = "".join(f"<th>{escape(str(cell))}</th>" for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<table>{caption}<tr>{head}</tr>{body}</table>{note}"


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _piped(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_shown(cell).replace("|", "\\|") for cell in cells) + " |"


def _latex(cell: Any) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _shown(cell))


def first_rows(rows: Sequence[Sequence[Any]], most: int = 12) -> list[Sequence[Any]]:
    """The first rows, and one of dots where there are more."""
    if len(rows) <= most or not rows:
        return list(rows)
    return [*rows[:most], ["…"] * len(rows[0])]


def frame_of_rows(rows: Sequence[dict[str, Any]]) -> Any:
    """A pandas frame; says what is missing where pandas is not installed."""
    from fedspend.errors import InvalidInput

    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise InvalidInput(
            "a data frame needs pandas, which is not installed: pip install pandas"
        ) from None
    return pandas.DataFrame(rows)
