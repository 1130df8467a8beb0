"""One way to every data set by name. Unknown options are refused, and so is anything that would learn from private rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedspend.basics.choices import choose, only
from fedspend.data.adult import load_adult
from fedspend.data.dataset import Dataset, Rows, finished
from fedspend.data.heart import load_heart
from fedspend.data.images import load_cifar10, load_digits, load_mnist, load_writers
from fedspend.data.sources import BUNDLED, SOURCES
from fedspend.data.synthetic import make_synthetic
from fedspend.data.tables import read_csv, read_npz
from fedspend.errors import InvalidInput, whole_number

OWN = ("csv", "npz")
NATURAL = ("mnist-writers", "heart")  # benchmarks that name their clients
NAMES = (*BUNDLED, *SOURCES, *OWN)

_WITH_OPTIONS: Mapping[str, Callable[..., Rows]] = {"synthetic": make_synthetic, "csv": read_csv, "npz": read_npz}
_LEARNED = ("standardise", "standardize", "normalise", "normalize", "scale", "whiten", "pca", "impute", "mean", "std")


def options_of(name: str) -> tuple[str, ...]:
    """The options that `load(name, ...)` takes.

    >>> options_of("synthetic")
    ('examples', 'features', 'classes', 'separation')
    """
    function = _WITH_OPTIONS.get(choose("data set", name, NAMES))
    return () if function is None else tuple(option for option in inspect.signature(function).parameters if option != "seed")


def load(
    name: str,
    *,
    folder: Path | None = None,
    validation: float = 0.0,
    seed: int = 0,
    by_row: bool = False,
    rows: Rows | None = None,
    **options: Any,
) -> Dataset:
    """The data set `name`. `folder` overrides where files are looked for; `rows` are what is in them, if they were read before.

    With `validation` above 0, that share of the training rows takes the place of the test rows, so that settings can be chosen
    without the test set: seeded, in proportion by label, or `by_row`, where every row decides for itself.
    """
    found = read(name, folder=folder, seed=seed, **options) if rows is None else rows
    return finished(name, found, validation, seed, public=name not in OWN, by_row=by_row)


def read(name: str, *, folder: Path | None = None, seed: int = 0, **options: Any) -> Rows:
    """The rows of data set `name`, before any hold-out."""
    known = options_of(name)
    seed = whole_number("seed", seed, at_least=0)
    for option in options:
        if option in _LEARNED:
            raise InvalidInput(
                f"{option} would learn from private rows, a release that no budget covers; give public bounds instead, "
                "for example bounds = [0, 100]"
            )
    only(f"data set {name!r}", options, known)
    if name in OWN and options.get("path") is None:
        raise InvalidInput(f"data set {name!r} needs a file; give path = 'FILE.{name}'")
    return _read(name, folder, seed, options)


def _read(name: str, folder: Path | None, seed: int, options: Mapping[str, Any]) -> Rows:
    match name:
        case "digits":
            return load_digits()
        case "synthetic":
            return make_synthetic(seed, **options)
        case "mnist-writers":
            return load_writers(folder)
        case "adult":
            return load_adult(folder)
        case "heart":
            return load_heart(folder, seed)
        case "cifar10":
            return load_cifar10(folder)
        case "csv":
            return read_csv(**options)
        case "npz":
            return read_npz(**options)
        case _:
            return load_mnist(name, folder)
