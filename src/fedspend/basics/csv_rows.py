"""CSV files as rows of text, each with its line number.

A file that is empty, ragged, not CSV or not UTF-8 is refused with its name and the line.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from fedspend.errors import InvalidInput

_PLAIN_SPACE = " \t\r\n\v\f"


@dataclass(frozen=True)
class Table:
    """The named columns of a CSV file."""

    name: str
    header: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    lines: list[int]
    header_line: int
    # cells with non-ASCII space at either end, by column
    untrimmed: dict[str, dict[int, str]] = field(default_factory=dict)

    def raw(self, column: str) -> list[str]:
        """The cells of a column, stripped of ASCII space only: in ids, other space matters."""
        cells = list(self.columns[column])
        for row, cell in self.untrimmed.get(column, {}).items():
            cells[row] = cell
        return cells

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: str | Path) -> Table:
    """Read a CSV file whose first line names the columns; skips blank lines and strips cells."""
    name = str(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{name}:{line}: not UTF-8 text; save the file as CSV in UTF-8"
        ) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    untrimmed: list[tuple[int, int, str]] = []
    ascii_only = text.isascii()
    lines: list[int] = []
    try:
        for row in reader:
            if row:
                if not ascii_only:
                    cells = ((n, cell.strip(_PLAIN_SPACE)) for n, cell in enumerate(row))
                    untrimmed += [
                        (len(rows) - 1, n, cell) for n, cell in cells if cell != cell.strip()
                    ]
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InvalidInput(f"{name}:{reader.line_num}: not valid CSV: {error}") from None
    if not rows:
        raise InvalidInput(f"{name}: the file is empty; the first line must name the columns")
    header = rows[0]
    for n, column in enumerate(header):
        if not column:
            raise InvalidInput(
                f"{name}:{lines[0]}: column {n + 1} has no name; the first line must name the "
                "columns"
            )
        if column in header[:n]:
            raise InvalidInput(f"{name}:{lines[0]}: column {column!r} is listed twice; remove one")
    if len(rows) == 1:
        raise InvalidInput(f"{name}: there is a header but no row below it; add at least one")
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            raise InvalidInput(
                f"{name}:{line}: {len(row)} cells where the header has {len(header)}"
            )
    columns = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    ends: dict[str, dict[int, str]] = {}
    for line, n, cell in untrimmed:
        if line >= 0:
            ends.setdefault(header[n], {})[line] = cell
    return Table(name, tuple(header), columns, lines[1:], lines[0], ends)
