"""Public data sets that are read once per process, with their fixed features already computed.

Guarantee: a run on such a data set is the same, to the last bit, as one on the data set that it is
made of with `model.features`: a feature vector depends on its own image alone.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import fedspend
from fedspend.data.dataset import Rows
from fedspend.data.loading import DATA_SETS, load, read
from fedspend.models.feature_cache import cached_features

NAMES = ("digits", "fashion-mnist", "mnist", "cifar10", "mnist-writers", "adult")


@lru_cache(maxsize=2)
def _rows(name: str, features: str) -> Rows:
    found = read(name)
    if features == "none":
        return found
    made = cached_features(features, load(name, rows=found))
    return Rows(
        made.features,
        made.labels,
        made.classes,
        made.test_features,
        made.test_labels,
        found.client_of,
    )


def _read(_folder: Path | None, _seed: int, *, name: str, features: str) -> Rows:
    return _rows(name, features)


def place(name: str, features: str) -> str:
    """The name under which a data set with these features is in memory.

    >>> place("mnist", "gabor")
    'mnist-with-gabor'
    """
    return f"{name}-with-{features}"


def register() -> None:
    for name in NAMES:
        for features in ("none", "gabor") if name != "adult" else ("none",):
            fedspend.register(
                "data set",
                place(name, features),
                partial(_read, name=name, features=features),
                help=f"{name}, read once, with features {features}",
                public=True,
                natural=DATA_SETS[name].natural,
            )


def in_memory(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings, on the data set in memory if there is one."""
    name, features = settings["data.name"], settings.get("model.features", "none")
    if name not in NAMES:
        return settings
    if place(name, features) not in DATA_SETS:
        register()
    return {**settings, "data.name": place(name, features), "model.features": "none"}
