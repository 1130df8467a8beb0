"""What a table holds, for whoever holds the data: which columns need a declaration.

Guarantee: what is said here comes from rows, so it is as private as they are, and is for the data
holder's own eyes. It names what to declare and never with which values: levels and bounds belong to
what is publicly known, such as a codebook. Copied from rows, they would be a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.csv_rows import read_table
from fedspend.data.arrow_files import opened_parquet
from fedspend.data.columns import CsvFrame, Frame
from fedspend.data.dataset import Rows
from fedspend.data.declared import MARKS
from fedspend.errors import InvalidInput

NUMBERS, WORDS = "numbers", "words"


@dataclass(frozen=True)
class Look:
    """One column: what its cells are, how many have no value, and what to declare."""

    column: str
    cells: str
    missing: int
    declare: tuple[str, ...]


def opened(path: str | Path) -> tuple[Frame, str]:
    """A table by the name of its file, and how it was recognised."""
    suffix = Path(path).suffix.lower()
    if suffix in (".parquet", ".pq"):
        return opened_parquet(path), "a Parquet file"
    if Path(path).is_dir():
        raise InvalidInput(f"{path}: is a directory; give a CSV or Parquet file")
    table = read_table(path)
    return CsvFrame(table), f"a CSV file, {table.recognised}"


def look(frame: Frame) -> list[Look]:
    """What each column holds."""
    return [_column(frame, name) for name in frame.header]


def _column(frame: Frame, name: str) -> Look:
    try:
        column = frame.column(name)
    except InvalidInput as error:
        return Look(
            name, str(error).partition(" holds ")[2].partition(",")[0], 0, ("leave it out",)
        )
    absent = column.absent(MARKS)
    try:
        column.numbers("a number", np.isfinite, absent)
        cells, declare = NUMBERS, [f"bounds = {{{name} = [LOWEST, HIGHEST]}} (advised)"]
    except InvalidInput:
        cells, declare = WORDS, [f'client, label, or categories = {{{name} = ["...", "..."]}}']
    gone = int(absent.sum())
    if gone:
        what = "A NUMBER" if cells == NUMBERS else '"A LEVEL"'
        declare.append(f"missing = {{{name} = {what}}}")
    return Look(name, cells, gone, tuple(declare))


def summary(rows: Rows) -> dict[str, Any]:
    """What was read by a config."""
    found: dict[str, Any] = {
        "rows": len(rows.labels),
        "features": list(rows.features.shape[1:]),
        "classes": rows.classes,
        "test rows": 0 if rows.test_labels is None else len(rows.test_labels),
    }
    if rows.client_of is not None:
        sizes = np.unique(rows.client_of, return_counts=True)[1]
        found["clients"] = len(sizes)
        found["rows of a client"] = {
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
        }
    return found
