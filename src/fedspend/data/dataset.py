"""A data set in memory: shared arrays of training rows and test rows.

Guarantee: features are finite float32, targets are of their kind (classes lie in 0..classes-1),
lengths agree and no part is empty, except the training rows where clients keep them on machines of
their own; an error names the row and the value. Features are only ever scaled by bounds that
somebody stated: nothing here is learned from the rows, because a mean, a standard deviation or a
maximum is itself a release that no budget covers. By default, hold-out and samples are drawn from
the pool of all rows, in proportion by label; this is for rows that are dealt to simulated clients.
Where clients are real, `by_row` decides for every row by itself (`row_choice`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.basics.choices import choose
from fedspend.budgets.identity import read_array
from fedspend.budgets.population import apportion
from fedspend.data.row_choice import chosen_rows
from fedspend.data.targets import Targets, as_targets, check_targets, read_classes
from fedspend.errors import InvalidInput, finite_number
from fedspend.noise.randomness import Randomness
from fedspend.tasks.kinds import BY_CLASS, CLASSES, KINDS

Features = npt.NDArray[np.float32]
Bounds = Sequence[float] | Mapping[str, Sequence[float]]

_ROWS_AT_A_TIME = 4096
# Keeps the hold-out independent of the partition, which draws from stream 0 of the same seed.
_VALIDATION_STREAM = 1
_SAMPLE_STREAMS = (2, 3)  # of training rows and of test rows
# what rows are chosen for one by one: hold-out, and samples of the same two kinds
HOLD_OUT = "hold-out"
SAMPLES = tuple(f"sample {stream}" for stream in _SAMPLE_STREAMS)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images are (rows, channels, height, width), tables (rows, columns).

    `client_of` is the natural client of each training row (writer, hospital), if there is one;
    `clients` are all natural clients, including those whose rows are all held out. `public` marks
    benchmark data, for which a seeded simulation is the sensible default.
    """

    name: str
    features: Features
    labels: Targets
    test_features: Features
    test_labels: Targets
    classes: int  # of numbers and labels: how many a row has
    client_of: npt.NDArray[Any] | None = None
    public: bool = False
    # epsilon of each training row, if the data has a column for it
    budget_of: FloatArray | None = None
    # rows without labels that no client holds and no budget protects
    public_features: Features | None = None
    # id of each training row, if the data has a column for it
    record_of: npt.NDArray[Any] | None = None
    clients: tuple[str, ...] | None = None
    # client of each test row, if the test rows come from clients
    test_client_of: npt.NDArray[Any] | None = None
    untested: bool = False  # there are no test rows, which a real run may do without
    elsewhere: bool = False  # the training rows are on the clients' own machines: there are none
    kind: str = CLASSES  # what a target is (`tasks.kinds`)
    columns: tuple[str, ...] = ()  # of a table, in the order of the features; () if it is none

    def __post_init__(self) -> None:
        read_classes(self.classes, self.kind)
        if not self.elsewhere:
            check_rows("features", self.features, "labels", self.labels, self.classes, self.kind)
        elif self.features.size or self.labels.size:
            raise InvalidInput("the training rows are elsewhere, but some were given; drop them")
        if not self.untested:
            check_rows(
                "test_features",
                self.test_features,
                "test_labels",
                self.test_labels,
                self.classes,
                self.kind,
            )
            if not (self.elsewhere or self.labels.shape[1:] == self.test_labels.shape[1:]):
                raise InvalidInput(
                    f"a test target has shape {self.test_labels.shape[1:]}, a training target "
                    f"{self.labels.shape[1:]}; make them the same"
                )
        if self.features.shape[1:] != self.test_features.shape[1:]:
            raise InvalidInput(
                f"a test row has shape {self.test_features.shape[1:]}, a training row "
                f"{self.features.shape[1:]}; make them the same"
            )
        check_columns(
            self.labels,
            client_of=self.client_of,
            budget_of=self.budget_of,
            record_of=self.record_of,
        )
        check_columns(self.test_labels, test_client_of=self.test_client_of)
        if self.public_features is not None:
            check_rows(
                "public rows",
                self.public_features,
                "labels",
                np.zeros(len(self.public_features), np.int64),
                self.classes,
            )
            if self.public_features.shape[1:] != self.features.shape[1:]:
                raise InvalidInput(
                    f"a public row has shape {self.public_features.shape[1:]}, a training row "
                    f"{self.features.shape[1:]}; make them the same"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.features.shape[1:])


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that a reader found, before any hold-out; there may be no test rows yet."""

    features: Features
    labels: Targets
    classes: int
    test_features: Features | None = None
    test_labels: Targets | None = None
    client_of: npt.NDArray[Any] | None = None
    budget_of: FloatArray | None = None
    public_features: Features | None = None
    record_of: npt.NDArray[Any] | None = None
    test_client_of: npt.NDArray[Any] | None = None
    test_record_of: npt.NDArray[Any] | None = None
    elsewhere: bool = False  # the clients keep their rows themselves
    kind: str = CLASSES  # what a target is (`tasks.kinds`)
    columns: tuple[str, ...] = ()  # of a table, in the order of the features
    meaning: Mapping[str, Any] = field(default_factory=dict)  # what was declared (`meaning`)

    def only_tests(self) -> Rows:
        """These rows as test rows, for a server whose clients keep their own."""
        none = self.features[:0], self.labels[:0]
        return Rows(
            *none,
            self.classes,
            self.features,
            self.labels,
            np.zeros(0, dtype="<U1"),
            public_features=self.public_features,
            elsewhere=True,
            kind=self.kind,
            columns=self.columns,
            meaning=self.meaning,
        )

    @cached_property
    def clients(self) -> tuple[str, ...] | None:
        return None if self.client_of is None else natural_ids(self.client_of)


def natural_ids(client_of: npt.NDArray[Any]) -> tuple[str, ...]:
    """The clients named in a column: numbers in numerical order, text in alphabetical order."""
    names = list(map(str, np.unique(client_of).tolist()))
    if all(re.fullmatch("0|-?[1-9][0-9]*", name) for name in names):
        names.sort(key=int)  # also where a file has them as text, as CSV does
    return tuple(names)


def rows(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    classes: int,
    test_features: npt.ArrayLike | None = None,
    test_labels: npt.ArrayLike | None = None,
    client_of: npt.ArrayLike | None = None,
    bounds: Bounds | None = None,
    kind: str = CLASSES,
) -> Rows:
    """What your own reader should return: arrays, converted and scaled by public `bounds`.

    `kind` says what a target is: classes, binary, numbers, several (labels), or tokens. For numbers
    and several labels, `classes` is how many a row has.
    """
    choose("kind of target", kind, KINDS)
    return Rows(
        scaled(as_features("features", features), bounds),
        as_targets("labels", labels, kind),
        read_classes(classes, kind),
        None
        if test_features is None
        else scaled(as_features("test_features", test_features), bounds),
        None if test_labels is None else as_targets("test_labels", test_labels, kind),
        None if client_of is None else read_array(client_of),
        kind=kind,
    )


def from_arrays(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    classes: int,
    test_features: npt.ArrayLike | None = None,
    test_labels: npt.ArrayLike | None = None,
    client_of: npt.ArrayLike | None = None,
    bounds: Bounds | None = None,
    validation: float = 0.0,
    seed: int = 0,
    name: str = "arrays",
    public: bool = False,
    kind: str = CLASSES,
) -> Dataset:
    """A data set from your own arrays. Give test rows, or hold out a share `validation` of the
    training rows.

    >>> rows, labels = [[0], [5], [10], [10]], [0, 0, 1, 1]
    >>> data = from_arrays(rows, labels, classes=2, bounds=[0, 10], validation=0.5)
    >>> data.features.ravel().tolist(), data.test_labels.tolist()
    ([0.5, 1.0], [0, 1])
    """
    found = rows(
        features,
        labels,
        classes=classes,
        test_features=test_features,
        test_labels=test_labels,
        client_of=client_of,
        bounds=bounds,
        kind=kind,
    )
    return finished(name, found, validation, seed, public)


def finished(
    name: str,
    rows: Rows,
    validation: float,
    seed: int,
    public: bool,
    *,
    by_row: bool = False,
    secret: bytes | None = None,
    untested: bool = False,
) -> Dataset:
    """The data set made of `rows`; with `validation`, that share of the training rows replaces the
    test rows.

    They are drawn by the seed, in proportion by label, or, with `by_row`, each by itself, under a
    `secret` key if there is one. `untested`: there need be no test rows.
    """
    share = finite_number("validation", validation)
    if not 0 <= share < 1:
        raise InvalidInput(f"validation must be at least 0 and below 1, got {validation!r}")
    if share == 0:
        return _with_own_tests(name, rows, public, untested=untested)
    check_rows("features", rows.features, "labels", rows.labels, rows.classes, rows.kind)
    check_columns(
        rows.labels, client_of=rows.client_of, budget_of=rows.budget_of, record_of=rows.record_of
    )
    if by_row:
        held = chosen_rows(
            rows.client_of,
            rows.features,
            rows.labels,
            share,
            HOLD_OUT,
            seed,
            rows.record_of,
            secret,
        )
    else:
        held = stratified(
            strata(rows.labels, rows.kind),
            share,
            Randomness(seed).generator("data", _VALIDATION_STREAM),
        )
    return _split(name, rows, held, public)


def _with_own_tests(name: str, rows: Rows, public: bool, *, untested: bool) -> Dataset:
    """All rows for training, and the reader's own test rows; none, if there may be none."""
    test_features, test_labels = rows.test_features, rows.test_labels
    without = untested and test_features is None
    if without:
        test_features, test_labels = rows.features[:0], rows.labels[:0]
    if test_features is None or test_labels is None:
        raise InvalidInput(
            "there are no test rows; give some, or hold out training rows with "
            "data.validation = 0.2"
        )
    return Dataset(
        name,
        rows.features,
        rows.labels,
        test_features,
        test_labels,
        rows.classes,
        client_of=rows.client_of,
        public=public,
        budget_of=rows.budget_of,
        public_features=rows.public_features,
        record_of=rows.record_of,
        clients=rows.clients,
        test_client_of=rows.test_client_of,
        untested=without,
        elsewhere=rows.elsewhere,
        kind=rows.kind,
        columns=rows.columns,
    )


def _split(name: str, rows: Rows, held: BoolArray, public: bool) -> Dataset:
    """The rows that are `held` for testing, and the others for training."""
    return Dataset(
        name,
        rows.features[~held],
        rows.labels[~held],
        rows.features[held],
        rows.labels[held],
        rows.classes,
        client_of=None if rows.client_of is None else rows.client_of[~held],
        public=public,
        budget_of=None if rows.budget_of is None else rows.budget_of[~held],
        public_features=rows.public_features,
        record_of=None if rows.record_of is None else rows.record_of[~held],
        clients=rows.clients,
        test_client_of=None if rows.client_of is None else rows.client_of[held],
        kind=rows.kind,
        columns=rows.columns,
    )


def sample(
    dataset: Dataset, *, share: float = 1.0, test_share: float = 1.0, by_row: bool = False
) -> Dataset:
    """A sample of the rows, independent of a run's seed: a published sample stays the same."""

    def part(
        share: float,
        kind: int,
        client_of: npt.NDArray[Any] | None,
        features: Features,
        labels: Targets,
        record_of: npt.NDArray[Any] | None = None,
    ) -> slice | IntArray:
        if share == 1:
            return slice(None)
        if by_row:
            return np.flatnonzero(
                chosen_rows(client_of, features, labels, share, SAMPLES[kind], 0, record_of)
            )
        generator = Randomness(0).generator("data", _SAMPLE_STREAMS[kind])
        return np.flatnonzero(stratified(strata(labels, dataset.kind), share, generator))

    kept = part(share, 0, dataset.client_of, dataset.features, dataset.labels, dataset.record_of)
    tested = part(
        test_share,
        1,
        dataset.test_client_of,
        dataset.test_features,
        dataset.test_labels,
    )
    return replace(
        dataset,
        features=dataset.features[kept],
        labels=dataset.labels[kept],
        test_features=dataset.test_features[tested],
        test_labels=dataset.test_labels[tested],
        client_of=None if dataset.client_of is None else dataset.client_of[kept],
        budget_of=None if dataset.budget_of is None else dataset.budget_of[kept],
        record_of=None if dataset.record_of is None else dataset.record_of[kept],
        test_client_of=None if dataset.test_client_of is None else dataset.test_client_of[tested],
    )


def without_tests_of(dataset: Dataset, clients: Collection[str]) -> Dataset:
    """The data set without the test rows of these clients: a client that takes no part is not used
    for testing either.
    """
    if not clients or dataset.test_client_of is None:
        return dataset
    kept = np.array(
        [str(client) not in clients for client in dataset.test_client_of.tolist()], dtype=bool
    )
    if not kept.any():
        raise InvalidInput(
            "all test rows belong to clients that take no part; give other test rows, for example "
            "a file (test_path)"
        )
    return replace(
        dataset,
        test_features=dataset.test_features[kept],
        test_labels=dataset.test_labels[kept],
        test_client_of=dataset.test_client_of[kept],
    )


def strata(labels: Targets, kind: str) -> IntArray:
    """What rows are drawn in proportion by: their class; targets without classes are all alike."""
    return labels if kind in BY_CLASS else np.zeros(len(labels), dtype=np.int64)


def stratified(labels: IntArray, share: float, generator: np.random.Generator) -> BoolArray:
    """Marks `share` of the rows, in proportion by class; at least one row is in and one is out."""
    total = len(labels)
    wanted = round(share * total)
    if not 1 <= wanted < total:
        raise InvalidInput(
            f"a share of {share:g} takes {wanted} of {total} rows; at least one must be taken and "
            "one left"
        )
    chosen = np.zeros(total, dtype=bool)
    present = np.unique(labels)
    counts = apportion([float(np.count_nonzero(labels == label)) for label in present], wanted)
    for label, count in zip(present, counts, strict=True):
        chosen[generator.permutation(np.flatnonzero(labels == label))[:count]] = True
    return chosen


# --- conversion -----------------------------------------------------------------------------------


def as_features(what: str, values: npt.ArrayLike) -> Features:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{what} must be numbers, got {array.dtype}; turn text into numbers or 0/1 columns "
            "first"
        )
    # A number too large for float32 becomes infinite, which is refused later.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def scaled(features: Features, bounds: Bounds | None) -> Features:
    """Scales from public `bounds` to [0, 1]: one (low, high) for all columns, or one per column
    number. Values outside are clipped.
    """
    if bounds is None:
        return features
    if not isinstance(bounds, Mapping):
        low, high = read_bounds("bounds", bounds)
        unit: Features = np.clip((features - np.float32(low)) / np.float32(high - low), 0, 1)
        return unit
    result = features.copy()
    for column, pair in bounds.items():
        low, high = read_bounds(f"bounds of column {column}", pair)
        if not (features.ndim == 2 and str(column).isdecimal() and int(column) < features.shape[1]):
            raise InvalidInput(
                f"bounds name column {column!r}, but features have shape {features.shape}; give a "
                "column number"
            )
        result[:, int(column)] = np.clip((features[:, int(column)] - low) / (high - low), 0, 1)
    return result


def array_bounds(bounds: Bounds | None) -> Any:
    """Bounds of an array in one spelling: a pair, or pairs by column number."""
    if not isinstance(bounds, Mapping):
        return None if bounds is None else read_bounds("bounds", bounds)
    return {str(int(n)): read_bounds("bounds", pair) for n, pair in bounds.items()}


def read_bounds(what: str, pair: Any) -> tuple[float, float]:
    if not (
        isinstance(pair, Sequence | np.ndarray) and not isinstance(pair, str) and len(pair) == 2
    ):
        raise InvalidInput(f"{what} must be two numbers, lowest and highest, got {pair!r}")
    low, high = finite_number(what, pair[0]), finite_number(what, pair[1])
    if not (low < high and math.isfinite(high - low)):
        raise InvalidInput(f"{what} must be two numbers, the lower one first, got {pair!r}")
    return low, high


# --- checks ---------------------------------------------------------------------------------------


def check_columns(labels: Targets, **columns: npt.NDArray[Any] | None) -> None:
    """Checks that each column has one value per row."""
    words = {
        "client_of": "client",
        "test_client_of": "client",
        "budget_of": "budget",
        "record_of": "id",
    }
    for name, column in columns.items():
        if column is not None and column.shape != labels.shape[:1]:
            raise InvalidInput(
                f"{name} has shape {column.shape}; it needs one {words[name]} for each of "
                f"{len(labels)} rows"
            )


def check_rows(
    what: str,
    features: Features,
    labels_name: str,
    labels: Targets,
    classes: int,
    kind: str = CLASSES,
) -> None:
    if features.dtype != np.float32 or (kind in BY_CLASS and labels.dtype != np.int64):
        raise InvalidInput(
            f"{what} must be float32 and {labels_name} int64, got {features.dtype} and "
            f"{labels.dtype}; use from_arrays to convert"
        )
    if features.ndim < 2 or (kind in BY_CLASS and labels.ndim != 1):
        raise InvalidInput(
            f"{what} needs one row per example and {labels_name} one number per example, got "
            f"shapes {features.shape} and {labels.shape}"
        )
    if len(features) != len(labels):
        raise InvalidInput(
            f"{what} has {len(features)} rows and {labels_name} {len(labels)}; make them the same"
        )
    if features.size == 0:
        raise InvalidInput(
            f"{what} is empty, its shape is {features.shape}; give at least one row and one column"
        )
    check_targets(labels_name, labels, classes, kind)
    for start in range(0, len(features), _ROWS_AT_A_TIME):
        good = np.isfinite(features[start : start + _ROWS_AT_A_TIME])
        if not good.all():
            at = np.argwhere(~good)[0]
            at[0] += start
            place = ", ".join(map(str, at))
            raise InvalidInput(
                f"{what}[{place}] is {features[tuple(at)]}; remove the row or replace the value "
                "with a fixed number"
            )
