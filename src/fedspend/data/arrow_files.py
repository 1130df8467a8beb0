"""Your own data in Parquet files.

Guarantee: the same declarations and the same refusals as for CSV files (`declared`). Nothing is
fetched: only the files that you name are opened, and no code that comes with a data set is run.
Columns are read one at a time, and only those that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.data.columns import TypedFrame
from fedspend.data.dataset import Rows
from fedspend.data.tables import FILES_OF_ROWS, TABLE_OPTIONS, TableOptions, rows_of
from fedspend.errors import InvalidInput

ARROW_OPTIONS = (*FILES_OF_ROWS, *TABLE_OPTIONS)
NO_ARROW = "Parquet files are read by pyarrow, which is missing; pip install 'fedspend[parquet]'"


def read_parquet(
    path: str | Path,
    *,
    test_path: str | Path | None = None,
    public_path: str | Path | None = None,
    **options: Any,
) -> Rows:
    """The rows of a Parquet file; options as for a CSV file."""
    how = TableOptions(**options)
    _ = how.target  # what is declared is checked before a file is opened
    return rows_of(opened_parquet, how, path, test_path, public_path)


def opened_parquet(path: str | Path) -> TypedFrame:
    """The columns of a Parquet file, each read when it is asked for."""
    arrow = _arrow()
    if Path(path).is_dir():
        raise InvalidInput(f"{path}: is a directory; give one Parquet file")
    from pyarrow import parquet

    file = _tried(arrow, path, "a Parquet file", lambda: parquet.ParquetFile(path, memory_map=True))
    schema = file.schema_arrow

    def column(name: str) -> npt.NDArray[Any]:
        found = _tried(arrow, path, "a Parquet file", lambda: file.read(columns=[name]))
        return as_array(arrow, str(path), name, found.column(0))

    return _frame(str(path), schema.names, file.metadata.num_rows, column)


def _frame(
    name: str, columns: list[str], rows: int, column: Callable[[str], npt.NDArray[Any]]
) -> TypedFrame:
    twice = next((one for n, one in enumerate(columns) if one in columns[:n]), None)
    if twice is not None:
        raise InvalidInput(f"{name}: column {twice!r} is listed twice; remove one")
    if not rows:
        raise InvalidInput(f"{name}: there are columns but no row; add at least one")
    return TypedFrame(name, {one: partial(column, one) for one in columns}, rows)


def as_array(arrow: ModuleType, file: str, name: str, column: Any) -> npt.NDArray[Any]:
    """A column as numbers, or as objects: text, whole numbers with gaps, and None."""
    kinds, kind = arrow.types, column.type
    if kinds.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if kinds.is_floating(kind):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    if (kinds.is_integer(kind) or kinds.is_boolean(kind)) and column.null_count == 0:
        return np.asarray(column.to_numpy())
    if kinds.is_decimal(kind):
        return np.asarray(column.cast(arrow.float64()).to_numpy())
    readable = (kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_boolean)
    if not any(is_kind(kind) for is_kind in readable):
        raise InvalidInput(
            f"{file}: column {name!r} holds {kind}, not numbers or words; turn it into one of "
            "these, or leave it out of columns"
        )
    found = np.empty(len(column), dtype=object)
    found[:] = column.to_pylist()
    return found


def _arrow() -> ModuleType:
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise InvalidInput(NO_ARROW) from None


def _tried(arrow: ModuleType, path: str | Path, wanted: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (arrow.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None)
        if reason:
            raise InvalidInput(f"{path}: cannot be read: {reason}") from None
        said = (str(error).splitlines() or ["damaged"])[0]
        raise InvalidInput(f"{path}: not {wanted} ({said}); write it again") from None
