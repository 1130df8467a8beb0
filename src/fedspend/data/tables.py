"""Your own data: a table in a CSV file, or named arrays in an NPZ file.

Guarantee: every cell is read as given or by what you declare (`declared`, `label_columns`); nothing
is learned from the rows, not even the number of classes or the list of labels, which you also
declare. Undeclared text, missing values and unknown labels are refused, and the error names the
line. Ids of clients and records are normalised; two that look alike are refused (`identity`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.choices import choose
from fedspend.basics.csv_rows import read_table
from fedspend.budgets.identity import read_array
from fedspend.budgets.identity import read_ids as read_any_ids
from fedspend.data.columns import CsvFrame, Frame, check_column, distinct_ids
from fedspend.data.dataset import Bounds, Features, Rows, array_bounds, as_features, scaled
from fedspend.data.declared import Declared, declared
from fedspend.data.label_columns import Target, target_of
from fedspend.data.targets import Targets, as_targets, read_classes
from fedspend.data.texts import Beginnings, NextToken, Texts, texts_of
from fedspend.errors import InvalidInput
from fedspend.tasks.kinds import CLASSES, WHOLE

CLIENT, SPLIT = "client", "split"


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What you declare of a table, whatever kind of file it is in.

    `label` names the target: with `classes` (a number) or `labels` (a list) it is one of several
    classes, with `label_bounds` a number, and a list of columns is several answers of 0 and 1.
    `columns` are the columns to use; by default, all that have no other purpose. Columns named
    client and split are used if they exist; a column that you name differently must exist.
    `budget` names a column with each record's epsilon; test rows need one too, but it is not used.
    `record` names a column with each record's id, which must be unique in the file. For the others
    see `declared`. `text` names a column of text that is used instead, with a `vocabulary` and a
    `max_length`; where the label is that column, the next token is to be predicted.
    """

    label: str | Sequence[str] = "label"
    classes: int | Sequence[str] | None = None
    labels: Sequence[str] | None = None
    label_bounds: Bounds | None = None
    client: str | None = CLIENT
    split: str | None = SPLIT
    record: str | None = None
    budget: str | None = None
    columns: Sequence[str] | None = None
    bounds: Bounds | None = None
    categories: Mapping[str, Sequence[Any]] | None = None
    other: Sequence[str] | None = None
    missing: Mapping[str, Any] | None = None
    indicators: Sequence[str] | None = None
    missing_marks: Sequence[str] | None = None
    text: str | None = None
    vocabulary: str | Sequence[str] | None = None
    max_length: int | None = None

    @property
    def texts(self) -> Texts | None:
        """The column of text that is used instead of others."""
        if self.text is not None:
            return texts_of(self.text, self.vocabulary, self.max_length, self.other)
        for key in ("vocabulary", "max_length"):
            if getattr(self, key) is not None:
                raise InvalidInput(f'{key} is for a column of text; say which: text = "COLUMN"')
        return None

    def declared(self, used: Sequence[str]) -> Declared:
        """What is declared of the columns that are used as features."""
        return declared(
            used,
            bounds=self.bounds,
            categories=self.categories,
            other=self.other,
            missing=self.missing,
            indicators=self.indicators,
            missing_marks=self.missing_marks,
        )

    def by_column(self) -> Iterator[tuple[str, Iterable[str]]]:
        """What is declared of single columns: under which key, and of which."""
        for key in ("bounds", "categories", "missing", "indicators", "other"):
            given = getattr(self, key)
            if isinstance(given, Mapping) or key in ("indicators", "other"):
                yield key, map(str, given or ())

    @property
    def target(self) -> Target | NextToken:
        texts = self.texts
        if texts is not None and self.label == texts.column:
            return NextToken(texts)
        return target_of(
            self.label, classes=self.classes, labels=self.labels, label_bounds=self.label_bounds
        )

    def used(self, header: Sequence[str]) -> list[str]:
        """The columns that become features: those that are named, or all that are for nothing
        else.
        """
        if self.columns is not None:
            return [self.columns] if isinstance(self.columns, str) else list(self.columns)
        label: Sequence[str] = (self.label,) if isinstance(self.label, str) else self.label
        special = {*label, self.client or CLIENT, self.split or SPLIT, self.record, self.budget}
        return [column for column in header if column not in special]


TABLE_OPTIONS = tuple(field.name for field in fields(TableOptions))
FILES_OF_ROWS = ("path", "test_path", "public_path")
CSV_OPTIONS = (*FILES_OF_ROWS, *TABLE_OPTIONS, "separator", "decimal")


def read_csv(
    path: str | Path,
    *,
    test_path: str | Path | None = None,
    public_path: str | Path | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    **options: Any,
) -> Rows:
    """The rows of a CSV file; `options` are those of `TableOptions`.

    Test rows come from `test_path`, from a `split` column that says train or test, or not at all.
    `public_path` is a file of public rows with the same feature columns; any others, such as a
    label, are not read. `separator` and `decimal` say how the files are written, where the header
    does not.
    """
    how = TableOptions(**options)
    _ = how.target  # what is declared is checked before a file is opened

    return rows_of(
        lambda file: CsvFrame(read_table(file, separator=separator, decimal=decimal)),
        how,
        path,
        test_path,
        public_path,
    )


def rows_of(
    opened: Callable[[str | Path], Frame],
    how: TableOptions,
    path: str | Path,
    test_path: str | Path | None = None,
    public_path: str | Path | None = None,
) -> Rows:
    """The rows of a table, and of tables with test rows and with public rows, in files that
    `opened` opens.
    """
    frame = opened(path)
    layout = layout_of(frame, how, test_path)
    return table_rows(
        layout,
        frame,
        tests=None if test_path is None else opened(test_path),
        public=None if public_path is None else opened(public_path),
    )


def table_rows(
    layout: Layout, frame: Frame, *, tests: Frame | None = None, public: Frame | None = None
) -> Rows:
    """The rows of a table, and of tables with its test rows and with public rows."""
    target = layout.target
    values = layout.features.read(frame)
    labels: Targets = target.read(frame)
    clients = None if layout.client is None else frame.column(layout.client).ids()
    records = None if layout.record is None else distinct_ids(frame.column(layout.record))
    budgets = None if layout.budget is None else _budgets(frame, layout.budget)
    unlabelled = None if public is None else layout.features.read(public)
    if layout.split is not None:
        test = _test_rows(frame, layout.split)
        found = _divided(
            values, labels, target.classes, clients, budgets, records, test, unlabelled
        )
        return replace(found, kind=target.kind, columns=layout.columns, meaning=layout.meaning)
    test_features: Features | None = None
    test_labels: Targets | None = None
    if tests is not None:
        test_features, test_labels = labelled(layout, tests)
    return Rows(
        values,
        labels,
        target.classes,
        test_features,
        test_labels,
        clients,
        budgets,
        unlabelled,
        records,
        kind=target.kind,
        columns=layout.columns,
        meaning=layout.meaning,
    )


def labelled(layout: Layout, frame: Frame) -> tuple[Features, Targets]:
    """Features and labels of another table that is laid out in the same way."""
    for column in layout.target.columns:
        check_column(frame, column)
    return layout.features.read(frame), layout.target.read(frame)


@dataclass(frozen=True)
class Layout:
    """Which column of a table is for what."""

    target: Target | NextToken
    features: Declared | Texts | Beginnings
    client: str | None
    split: str | None
    record: str | None
    budget: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that become features, in this order; none if a text does."""
        if not isinstance(self.features, Declared):
            return ()
        return tuple(column.name for column in self.features.columns)

    @property
    def meaning(self) -> dict[str, Any]:
        """What is declared, for `meaning.summary`."""
        # what a single label is called changes no number; several must come in one order
        names = self.target.columns if len(self.target.columns) > 1 else ()
        target = {"label": names, "labels": self.target.meaning}
        return self.features.meaning | target


def layout_of(frame: Frame, how: TableOptions, test_path: str | Path | None = None) -> Layout:
    """Which column is for what; refuses columns that are not there, or that are for two things."""
    target = how.target
    client = _present(how.client, CLIENT, frame.header)
    split = _present(how.split, SPLIT, frame.header)
    if test_path is not None and split is not None:
        raise InvalidInput(
            f"test rows come from {test_path} and from column {split!r}; give either test_path "
            "or split"
        )
    others = [one for one in (client, split, how.budget, how.record) if one is not None]
    special = [*target.columns, *others]
    if len(set(special)) < len(special):
        raise InvalidInput(
            "label, client, split, budget and record must be different columns, got "
            f"{', '.join(special)}"
        )
    for column in special:
        check_column(frame, column)
    if how.texts is not None:
        return Layout(target, _of_text(how, target, others), client, split, how.record, how.budget)
    used = [column for column in frame.header if column not in special]
    if how.columns is not None:
        used = [how.columns] if isinstance(how.columns, str) else list(how.columns)
    if not used or set(used) & set(special) or len(set(used)) < len(used):
        raise InvalidInput(
            f"{frame.name}: columns must be different ones, at least one column other than "
            f"{', '.join(special)}, got {used}"
        )
    for column in used:
        check_column(frame, column)
    for key, named in how.by_column():
        for column in named:
            check_column(frame, column, key)
    features = how.declared(used)
    return Layout(target, features, client, split, how.record, how.budget)


def _of_text(
    how: TableOptions, target: Target | NextToken, others: Sequence[str]
) -> Texts | Beginnings:
    """The features of a text; refuses declarations that are for other columns."""
    texts = how.texts
    assert texts is not None
    for key in ("columns", "bounds", "categories", "missing", "indicators", "missing_marks"):
        if getattr(how, key) is not None:
            raise InvalidInput(
                f"{key} is for columns of numbers and words, and text = {texts.column!r} is all "
                "that is used; drop one of them"
            )
    if isinstance(target, NextToken):
        return Beginnings(texts)
    if texts.column in (*target.columns, *others):
        raise InvalidInput(f"text column {texts.column!r} has another purpose, too; name another")
    return texts


def _divided(
    values: Features,
    labels: Targets,
    classes: int,
    clients: npt.NDArray[Any] | None,
    budgets: FloatArray | None,
    records: npt.NDArray[Any] | None,
    test: BoolArray,
    public: Features | None,
) -> Rows:
    """The rows, some of which are test rows."""

    def part(column: npt.NDArray[Any] | None, which: BoolArray) -> npt.NDArray[Any] | None:
        return None if column is None else column[which]

    return Rows(
        values[~test],
        labels[~test],
        classes,
        values[test],
        labels[test],
        part(clients, ~test),
        part(budgets, ~test),
        public,
        part(records, ~test),
        part(clients, test),
        part(records, test),
    )


def _present(name: str | None, usual: str, there: Iterable[str]) -> str | None:
    """`name`, or None for a column that has its usual name and does not exist."""
    return None if name == usual and usual not in there else name


def _budgets(frame: Frame, column: str) -> FloatArray:
    return frame.column(column).numbers("a positive number", lambda x: x > 0)


def _test_rows(frame: Frame, name: str) -> BoolArray:
    column = frame.column(name)
    cells = column.text()
    for row, cell in enumerate(cells):
        if cell not in ("train", "test"):
            raise InvalidInput(f"{column.at(row)}: {name} must be train or test, got {cell!r}")
    return np.array([cell == "test" for cell in cells], dtype=bool)


# --- NPZ ------------------------------------------------------------------------------------------


def read_npz(
    path: str | Path,
    *,
    classes: int | None = None,
    label: str = "label",
    client: str | None = CLIENT,
    bounds: Bounds | None = None,
    record: str | None = None,
    public_path: str | Path | None = None,
    targets: str = CLASSES,
) -> Rows:
    """The rows of an NPZ file: arrays features and label and, if they exist, client (one per row),
    test_features and test_label.

    `record` names an array with each record's id. `public_path` is another npz file, whose array
    features holds public rows. `targets` says what a label is (`tasks.kinds`); numbers and several
    labels need no classes.
    """
    if classes is None and targets in WHOLE:
        raise InvalidInput(
            "classes is missing: declare how many classes there are (classes = 3); reading it from "
            "private rows would leak"
        )
    if not isinstance(classes, int | np.integer | None):
        raise InvalidInput(
            "classes must be a number for an npz file, whose labels are whole numbers from 0"
        )
    arrays = _read_npz(Path(path))
    client = _present(client, CLIENT, arrays)
    wanted = ["features", label, *(name for name in (client, record) if name is not None)]
    for key in wanted:
        choose(f"array in {path}:", key, sorted(arrays))
    test_features: Features | None = None
    test_labels: Targets | None = None
    if "test_features" in arrays:
        choose(f"array in {path}:", f"test_{label}", sorted(arrays))
        test_features = scaled(
            as_features(f"{path}: test_features", arrays["test_features"]), bounds
        )
        test_labels = as_targets(f"{path}: test_{label}", arrays[f"test_{label}"], targets)
    features = scaled(as_features(f"{path}: features", arrays["features"]), bounds)
    labels = as_targets(f"{path}: {label}", arrays[label], targets)
    # without classes, the width of an array, not its values
    width = 1 if labels.ndim < 2 else labels.shape[1]
    known = read_classes(width if classes is None else classes, targets)
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
    tested = test_features, test_labels
    meaning = {"scale": array_bounds(bounds)}
    found = features, labels, known, *tested, mine, None, public, ids
    return Rows(*found, kind=targets, meaning=meaning)


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as begun:
            head = begun.read(1000)
        if head.isascii() and b"\0" not in head and not head.startswith(b"PK") and head:
            raise InvalidInput(
                f"{path}: not an npz file of plain arrays, but text; if it is a CSV file, say name "
                '= "csv", otherwise save with numpy.savez'
            )
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("a single array")
        with file:
            return {key: file[key] for key in file.files}
    except InvalidInput:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise InvalidInput(
            f"{path}: not an npz file of plain arrays ({reason}); save with numpy.savez"
        ) from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
