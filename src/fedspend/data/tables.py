"""Your own data: a CSV file with a label column, or an NPZ file with named arrays.

Guarantee: every cell is read as given or scaled by the bounds that you state; nothing is learned
from the rows, not even the number of classes or the list of labels, which you also state. Text,
missing values and unknown labels are refused, and the error names the line. Ids of clients and
records are normalised; two that look alike are refused (`identity`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, IntArray
from fedspend.basics.choices import choose
from fedspend.basics.csv_rows import Table, read_table
from fedspend.budgets.csv_file import Lines, read_ids, read_numbers, refuse_empty
from fedspend.budgets.identity import read_array, read_column
from fedspend.budgets.identity import read_ids as read_any_ids
from fedspend.data.dataset import (
    Bounds,
    Features,
    Rows,
    as_features,
    as_labels,
    read_bounds,
    scaled,
)
from fedspend.errors import InvalidInput, whole_number

Classes = int | Sequence[str]

CLIENT, SPLIT = "client", "split"
_NUMBER = "a number (turn text into 0/1 columns first)"


def read_csv(
    path: str | Path,
    *,
    classes: Classes | None = None,
    label: str = "label",
    client: str | None = CLIENT,
    split: str | None = SPLIT,
    test_path: str | Path | None = None,
    features: Sequence[str] | None = None,
    bounds: Bounds | None = None,
    budget: str | None = None,
    record: str | None = None,
    public_path: str | Path | None = None,
) -> Rows:
    """The rows of a CSV file.

    `classes` is the number of classes, or the list of the label column's values. Test rows come
    from `test_path`, from a `split` column that says train or test, or not at all. `features` names
    the columns to use; by default, all other columns. Columns named client and split are used if
    they exist; a column that you name differently must exist. `budget` names a column with each
    record's epsilon; test rows need one too, but it is not used. `record` names a column with each
    record's id, which must be unique in the file. `public_path` is a file of public rows with the
    same feature columns; any others, such as a label, are not read.
    """
    known = _classes(classes)
    table = read_table(path)
    client, split = _present(client, CLIENT, table.header), _present(split, SPLIT, table.header)
    if test_path is not None and split is not None:
        raise InvalidInput(
            f"test rows come from {test_path} and from column {split!r}; give either test_path or "
            "split"
        )
    special = [column for column in (label, client, split, budget, record) if column is not None]
    if len(set(special)) < len(special):
        raise InvalidInput(
            "label, client, split, budget and record must be different columns, got "
            f"{', '.join(special)}"
        )
    for column in special:
        choose(f"column in {table.name}:", column, table.header)
    used = (
        [column for column in table.header if column not in special]
        if features is None
        else list(features)
    )
    if not used or set(used) & set(special):
        raise InvalidInput(
            f"{table.name}: features must be at least one column other than {', '.join(special)}, "
            f"got {used}"
        )
    by_column = _bounds_by_column(bounds, used)
    values, labels = _features(table, used, by_column), _labels(table, label, known)
    clients = None if client is None else _clients(table, client)
    records = (
        None if record is None else np.array(read_ids(table.raw(record), _lines(table), record))
    )
    count = known if isinstance(known, int) else len(known)
    budgets = None
    if budget is not None:
        budgets = read_numbers(
            budget, table.columns[budget], _lines(table), "a positive number", lambda x: x > 0
        )
    public = None if public_path is None else _features(read_table(public_path), used, by_column)
    if split is not None:
        test = _test_rows(table, split)
        mine, ids = (None if column is None else column[~test] for column in (clients, records))
        own, theirs = (
            None if budgets is None else budgets[~test],
            None if clients is None else clients[test],
        )
        tested_ids = None if records is None else records[test]
        return Rows(
            values[~test],
            labels[~test],
            count,
            values[test],
            labels[test],
            mine,
            own,
            public,
            ids,
            theirs,
            tested_ids,
        )
    if test_path is None:
        return Rows(values, labels, count, None, None, clients, budgets, public, records)
    other = read_table(test_path)
    choose(f"column in {other.name}:", label, other.header)
    tested = _features(other, used, by_column), _labels(other, label, known)
    return Rows(values, labels, count, *tested, clients, budgets, public, records)


def read_npz(
    path: str | Path,
    *,
    classes: int | None = None,
    label: str = "label",
    client: str | None = CLIENT,
    bounds: Bounds | None = None,
    record: str | None = None,
    public_path: str | Path | None = None,
) -> Rows:
    """The rows of an NPZ file: arrays features and label and, if they exist, client (one per row),
    test_features and test_label.

    `record` names an array with each record's id. `public_path` is another npz file, whose array
    features holds public rows.
    """
    known = _classes(classes)
    if not isinstance(known, int):
        raise InvalidInput(
            "classes must be a number for an npz file, whose labels are whole numbers from 0"
        )
    arrays = _read_npz(Path(path))
    client = _present(client, CLIENT, arrays)
    wanted = ["features", label, *(name for name in (client, record) if name is not None)]
    for key in wanted:
        choose(f"array in {path}:", key, sorted(arrays))
    test_features: Features | None = None
    test_labels: IntArray | None = None
    if "test_features" in arrays:
        choose(f"array in {path}:", f"test_{label}", sorted(arrays))
        test_features = scaled(
            as_features(f"{path}: test_features", arrays["test_features"]), bounds
        )
        test_labels = as_labels(f"{path}: test_{label}", arrays[f"test_{label}"])
    features = scaled(as_features(f"{path}: features", arrays["features"]), bounds)
    labels = as_labels(f"{path}: {label}", arrays[label])
    public: Features | None = None
    if public_path is not None:
        others = _read_npz(Path(public_path))
        choose(f"array in {public_path}:", "features", sorted(others))
        public = scaled(as_features(f"{public_path}: features", others["features"]), bounds)
    mine = None if client is None else read_array(arrays[client], what=f"{path}: client")
    ids = None
    if record is not None:
        ids = np.array(
            read_any_ids(
                map(str, read_array(arrays[record], what=f"{path}: record").tolist()),
                what=f"{path}: record",
            )
        )
    return Rows(features, labels, known, test_features, test_labels, mine, None, public, ids)


# --- options --------------------------------------------------------------------------------------


def _classes(classes: Classes | None) -> int | tuple[str, ...]:
    if classes is None:
        raise InvalidInput(
            "classes is missing: state how many classes there are, or list the labels; reading it "
            "from private rows would leak"
        )
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        return whole_number("classes", classes, at_least=2)
    names = tuple(map(str, classes))
    if len(set(names)) < max(2, len(names)):
        raise InvalidInput(
            f"classes must be a list of at least two different labels, got {list(classes)}"
        )
    return names


def _present(name: str | None, usual: str, there: Iterable[str]) -> str | None:
    """`name`, or None for a column that has its usual name and does not exist."""
    return None if name == usual and usual not in there else name


def _bounds_by_column(bounds: Bounds | None, used: Sequence[str]) -> dict[str, tuple[float, float]]:
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        pair = read_bounds("bounds", bounds)
        return dict.fromkeys(used, pair)
    return {
        choose("feature column in bounds:", key, used): read_bounds(f"bounds of {key}", pair)
        for key, pair in bounds.items()
    }


# --- CSV columns ----------------------------------------------------------------------------------


def _lines(table: Table) -> Lines:
    return Lines(table.name, table.lines)


def _features(
    table: Table, used: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> Features:
    result = np.empty((len(table), len(used)), dtype=np.float32)
    for n, column in enumerate(used):
        choose(f"column in {table.name}:", column, table.header)
        values = read_numbers(
            column,
            table.columns[column],
            _lines(table),
            _NUMBER,
            lambda x: np.abs(x) <= np.finfo(np.float32).max,
        )
        if column in bounds:
            low, high = bounds[column]
            values = np.clip((values - low) / (high - low), 0, 1)
        result[:, n] = values
    return result


def _clients(table: Table, column: str) -> npt.NDArray[np.str_]:
    at = _lines(table)
    refuse_empty(column, table.columns[column], at)
    return np.array(read_column(table.raw(column), what=column, at=lambda row: f"{at(row)}: "))


def _labels(table: Table, column: str, known: int | tuple[str, ...]) -> IntArray:
    cells, at = table.columns[column], _lines(table)
    if isinstance(known, int):
        wanted = f"a whole number between 0 and {known - 1}"
        return read_numbers(
            column, cells, at, wanted, lambda x: (x >= 0) & (x < known) & (x == np.floor(x))
        ).astype(np.int64)
    place = {name: n for n, name in enumerate(known)}
    for row, cell in enumerate(cells):
        if cell not in place:
            raise InvalidInput(
                f"{at(row)}: {column} {cell!r} is not among the classes {', '.join(known)}"
            )
    return np.array([place[cell] for cell in cells], dtype=np.int64)


def _test_rows(table: Table, column: str) -> BoolArray:
    at = _lines(table)
    for row, cell in enumerate(table.columns[column]):
        if cell not in ("train", "test"):
            raise InvalidInput(f"{at(row)}: {column} must be train or test, got {cell!r}")
    return np.array([cell == "test" for cell in table.columns[column]])


# --- NPZ ------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("a single array")
        with file:
            return {key: file[key] for key in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise InvalidInput(
            f"{path}: not an npz file of plain arrays ({reason}); save with numpy.savez"
        ) from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
