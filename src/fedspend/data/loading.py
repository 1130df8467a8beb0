"""Loads any data set by name. Unknown options are refused, and so is anything that would learn from
private rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.choices import only
from fedspend.basics.registry import Entry, Registry
from fedspend.data.adult import load_adult
from fedspend.data.array_files import read_npy
from fedspend.data.arrow_files import ARROW_OPTIONS, read_parquet
from fedspend.data.dataset import Dataset, Rows, finished
from fedspend.data.diabetes import load_diabetes
from fedspend.data.heart import load_heart
from fedspend.data.image_folders import read_images
from fedspend.data.images import load_cifar10, load_digits, load_mnist, load_writers
from fedspend.data.sources import BUNDLED, SOURCES
from fedspend.data.synthetic import make_synthetic
from fedspend.data.tables import CSV_OPTIONS, read_csv, read_npz
from fedspend.errors import InvalidInput, whole_number

_READERS: dict[str, Callable[[Path | None, int], Rows]] = {
    "mnist": lambda folder, _: load_mnist("mnist", folder),
    "fashion-mnist": lambda folder, _: load_mnist("fashion-mnist", folder),
    "mnist-writers": lambda folder, _: load_writers(folder),
    "adult": lambda folder, _: load_adult(folder),
    "heart": load_heart,
    "cifar10": lambda folder, _: load_cifar10(folder),
}


@dataclass(frozen=True)
class DataSet(Entry):
    """`read(folder, seed, **keys)` gives the rows. A data set that is not `public` is treated as
    private, like your own files. `natural`: its rows name their clients (in your own files, a
    column may).
    """

    read: Callable[..., Rows] = Rows
    public: bool = False
    natural: bool = False


def _options(function: Callable[..., Rows]) -> tuple[str, ...]:
    """The options a reader takes besides folder and seed."""
    return tuple(option for option in inspect.signature(function).parameters if option != "seed")


def _bundled_or_found(
    name: str, read: Callable[..., Rows], keys: tuple[str, ...] = (), natural: bool = False
) -> DataSet:
    about = BUNDLED[name][0] if name in BUNDLED else SOURCES[name].about
    return DataSet(name, about, keys, read, public=True, natural=natural)


DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    _bundled_or_found("digits", lambda _folder, _seed: load_digits()),
    _bundled_or_found("diabetes", lambda _folder, _seed: load_diabetes()),
    _bundled_or_found(
        "synthetic",
        lambda _folder, seed, **keys: make_synthetic(seed, **keys),
        _options(make_synthetic),
    ),
    *(
        _bundled_or_found(name, _READERS[name], natural=name in ("mnist-writers", "heart"))
        for name in SOURCES
    ),
    DataSet(
        "csv",
        "your own CSV file with a label column",
        CSV_OPTIONS,
        lambda _folder, _seed, **keys: read_csv(**keys),
    ),
    DataSet(
        "parquet",
        "your own Parquet file with a label column",
        ARROW_OPTIONS,
        lambda _folder, _seed, **keys: read_parquet(**keys),
    ),
    DataSet(
        "npz",
        "your own NPZ file of arrays",
        _options(read_npz),
        lambda _folder, _seed, **keys: read_npz(**keys),
    ),
    DataSet(
        "npy",
        "your own folder of NPY files, mapped into memory",
        _options(read_npy),
        lambda _folder, _seed, **keys: read_npy(**keys),
    ),
    DataSet(
        "images",
        "your own folder of images, by client and label",
        _options(read_images),
        lambda _folder, _seed, **keys: read_images(**keys),
    ),
    section="data",
)
TABLES = ("csv", "parquet")
FILES = (*TABLES, "npz", "npy", "images")
_FOLDERS = ("npy", "images")


class Those:
    """The names of all data sets of one kind, including entries added later."""

    def __init__(self, which: Callable[[DataSet], bool]) -> None:
        self._which = which

    def __contains__(self, name: object) -> bool:
        return any(entry.name == name and self._which(entry) for entry in DATA_SETS)


OWN = Those(lambda entry: not entry.public)  # treated as private
NATURAL = Those(lambda entry: entry.natural)
_LEARNED = (
    "standardise",
    "standardize",
    "normalise",
    "normalize",
    "scale",
    "whiten",
    "pca",
    "impute",
    "mean",
    "std",
)


def options_of(name: str) -> tuple[str, ...]:
    """The options that `load(name, ...)` takes.

    >>> options_of("synthetic")
    ('examples', 'features', 'classes', 'separation')
    """
    return DATA_SETS[name].keys


def load(
    name: str,
    *,
    folder: Path | None = None,
    validation: float = 0.0,
    seed: int = 0,
    by_row: bool = False,
    rows: Rows | None = None,
    secret: bytes | None = None,
    untested: bool = False,
    **options: Any,
) -> Dataset:
    """The data set `name`. `folder` overrides where to look for its files; `rows` are their rows,
    if you have read them already.

    With `validation` above 0, that share of the training rows replaces the test rows, so that
    settings can be chosen without the test set. The rows are drawn by the seed, in proportion by
    label, or, with `by_row`, each by itself, under a `secret` key if there is one. `untested`:
    there need be no test rows.
    """
    found = read(name, folder=folder, seed=seed, **options) if rows is None else rows
    return finished(
        name,
        found,
        validation,
        seed,
        public=DATA_SETS[name].public,
        by_row=by_row,
        secret=secret,
        untested=untested,
    )


def read(name: str, *, folder: Path | None = None, seed: int = 0, **options: Any) -> Rows:
    """The rows of data set `name`, before any hold-out."""
    known = options_of(name)
    seed = whole_number("seed", seed, at_least=0)
    for option in options:
        if option in _LEARNED:
            raise InvalidInput(
                f"{option} would learn from private rows, a release that no budget covers; give "
                "public bounds instead, for example bounds = [0, 100]"
            )
    only(f"data set {name!r}", options, known)
    if name in FILES and options.get("path") is None:
        wanted = "a folder; give path = 'FOLDER'"
        raise InvalidInput(
            f"data set {name!r} needs "
            + (wanted if name in _FOLDERS else f"a file; give path = 'FILE.{name}'")
        )
    found = DATA_SETS[name].read(folder, seed, **options)
    if not isinstance(found, Rows):
        raise InvalidInput(
            f"the reader of data set {name!r} must return fedspend.data.rows(...), got "
            f"{type(found).__name__}"
        )
    return found
