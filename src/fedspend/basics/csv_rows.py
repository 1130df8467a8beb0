"""CSV files as rows of text, each with its line number.

Guarantee: which character separates columns is declared, or recognised from the header alone, which
is public; no row decides it. A header that allows two readings is refused, and so are numbers with
a comma that could be a decimal mark or a thousands separator. A file that is empty, ragged, not
CSV or not UTF-8 is refused with its name and the line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspend.errors import InvalidInput

_PLAIN_SPACE = " \t\r\n\v\f"
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# a comma followed by groups of three digits: in some countries it marks thousands
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
# how files of other kinds begin
_ZIP = b"PK\x03\x04"
_OTHER_KINDS = (
    (_ZIP, "a spreadsheet (xlsx, ods) or another zip archive"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet (xls)"),
    (b"PAR1", 'a Parquet file (in your own data, name = "parquet" reads one)'),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"%PDF", "a PDF"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
)


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
    separator: str = ","
    decimal: str | None = None  # declared mark of decimals; None: a point, or as recognised

    def raw(self, column: str) -> list[str]:
        """The cells of a column, stripped of ASCII space only: in ids, other space matters."""
        cells = list(self.columns[column])
        for row, cell in self.untrimmed.get(column, {}).items():
            cells[row] = cell
        return cells

    def numerals(self, column: str) -> Sequence[str]:
        """The cells of a column of numbers, with decimal points.

        Where columns are separated by something else, a comma is a decimal mark.
        """
        cells = self.columns[column]
        if self.decimal == "." or (self.decimal is None and self.separator == ","):
            return cells
        if self.decimal is None:
            self._refuse_ambiguous(column, cells)
        else:
            self._refuse_points(column, cells)
        return tuple(cell.replace(",", ".") for cell in cells)

    def _refuse_ambiguous(self, column: str, cells: Sequence[str]) -> None:
        with_comma = [row for row, cell in enumerate(cells) if "," in cell]
        if not with_comma:
            return
        row = with_comma[0]
        point = next((n for n, cell in enumerate(cells) if "." in cell), None)
        if point is not None:
            raise InvalidInput(
                f"{self.name}:{self.lines[point]}: {column} has {cells[point]!r}, with a point, "
                f"and {cells[row]!r}, with a comma, on line {self.lines[row]}; write decimals one "
                'way (in your own data, decimal = "," or decimal = "." says which)'
            )
        if all(_THOUSANDS.fullmatch(cells[n]) for n in with_comma):
            raise InvalidInput(
                f"{self.name}:{self.lines[row]}: {column} {cells[row]!r} has a comma that may mark "
                'decimals or thousands; write a point, or, in your own data, say decimal = ","'
            )

    def _refuse_points(self, column: str, cells: Sequence[str]) -> None:
        for row, cell in enumerate(cells):
            if "." in cell:
                raise InvalidInput(
                    f"{self.name}:{self.lines[row]}: {column} {cell!r} has a point, but the "
                    'decimal mark is declared to be a comma (decimal = ","); correct one of them'
                )

    @property
    def recognised(self) -> str:
        """How the file was read, in words."""
        return f"columns separated by {separated_by(self.separator)}"

    def __len__(self) -> int:
        return len(self.lines)


def separated_by(separator: str) -> str:
    return SEPARATORS.get(separator, repr(separator))


def read_table(
    path: str | Path, *, separator: str | None = None, decimal: str | None = None
) -> Table:
    """Read a CSV file whose first line names the columns; skips blank lines and strips cells."""
    name = str(path)
    text = text_of(path)
    separator = _declared(separator, decimal, name) or recognised(text, name)
    rows, lines, untrimmed = _cells(text, separator, name)
    if not rows:
        raise InvalidInput(f"{name}: the file is empty; the first line must name the columns")
    header = rows[0]
    _check_header(header, f"{name}:{lines[0]}")
    if len(rows) == 1:
        raise InvalidInput(f"{name}: there is a header but no row below it; add at least one")
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            raise InvalidInput(
                f"{name}:{line}: {len(row)} cells where the header has {len(header)}, with columns "
                f"separated by {separated_by(separator)}; quote a cell that contains one, or "
                "correct the line"
            )
    columns = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    ends: dict[str, dict[int, str]] = {}
    for line, n, cell in untrimmed:
        if line >= 0:
            ends.setdefault(header[n], {})[line] = cell
    return Table(name, tuple(header), columns, lines[1:], lines[0], ends, separator, decimal)


def text_of(path: str | Path) -> str:
    """The text of a CSV file; any other file is refused with one line that says why."""
    name = str(path)
    if Path(path).is_dir():
        raise InvalidInput(f"{name}: is a directory; give a CSV file")
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror}") from None
    kind = next((kind for start, kind in _OTHER_KINDS if raw.startswith(start)), None)
    # the first file in a zip archive has its name after 30 bytes
    first = raw[30 : 30 + int.from_bytes(raw[26:28], "little")]
    if raw.startswith(_ZIP) and first.endswith(b".npy"):
        kind = 'an NPZ file of arrays (in your own data, name = "npz" reads one)'
    if kind is not None:
        raise InvalidInput(f"{name}: this is {kind}, not a CSV file; save it as CSV in UTF-8")
    try:
        text = raw.decode("utf-8-sig")
        bad = text.find("\0")
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad >= 0:
        line = (raw.count(b"\n", 0, bad) if not text else text.count("\n", 0, bad)) + 1
        raise InvalidInput(f"{name}:{line}: not UTF-8 text; save the file as CSV in UTF-8")
    return text


def recognised(text: str, name: str) -> str:
    """The separator that the header line shows; a comma, if there is only one column."""
    first = re.search(r"[^\s][^\r\n]*", text)
    number = 1 if first is None else text.count("\n", 0, first.start()) + 1
    line = "" if first is None else first.group()
    outside = re.sub(r'"[^"]*"', "", line)
    there = [mark for mark in SEPARATORS if mark in outside]
    if len(there) > 1:
        raise InvalidInput(
            f"{name}:{number}: the first line has {' and '.join(map(separated_by, there))}, so "
            f"columns can be told apart in {len(there)} ways; say which with separator = "
            f"{_quoted(there[0])} or separator = {_quoted(there[1])}"
        )
    return there[0] if there else ","


def _quoted(separator: str) -> str:
    return '"\\t"' if separator == "\t" else f'"{separator}"'


def _declared(separator: str | None, decimal: str | None, name: str) -> str | None:
    if decimal not in (None, ".", ","):
        raise InvalidInput(f'decimal must be "." or ",", got {decimal!r}')
    if separator is None:
        return None
    if not (isinstance(separator, str) and len(separator) == 1 and separator not in '"\r\n'):
        raise InvalidInput(
            f'separator must be one character, for example ";" or "\\t", got {separator!r}'
        )
    if separator == decimal:
        raise InvalidInput(
            f"{name}: separator and decimal are both {separator!r}; they must be different"
        )
    return separator


def _cells(
    text: str, separator: str, name: str
) -> tuple[list[list[str]], list[int], list[tuple[int, int, str]]]:
    """All rows, their lines, and (row, column, cell) of cells with other than ASCII space."""
    rows: list[list[str]] = []
    lines: list[int] = []
    untrimmed: list[tuple[int, int, str]] = []
    for line, row in _records(text, separator, name):
        if not text.isascii():
            cells = ((n, cell.strip(_PLAIN_SPACE)) for n, cell in enumerate(row))
            untrimmed += [(len(rows) - 1, n, cell) for n, cell in cells if cell != cell.strip()]
        rows.append([cell.strip() for cell in row])
        lines.append(line)
    return rows, lines, untrimmed


def _records(text: str, separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise InvalidInput(f"{name}:{reader.line_num}: not valid CSV: {error}") from None


def _check_header(header: Sequence[str], where: str) -> None:
    for n, column in enumerate(header):
        if not column:
            raise InvalidInput(
                f"{where}: column {n + 1} has no name; the first line must name the columns"
            )
        if column in header[:n]:
            raise InvalidInput(f"{where}: column {column!r} is listed twice; remove one")
