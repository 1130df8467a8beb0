"""Public data sets that are read once per process, with their fixed features already computed.

Guarantee: a run on such a data set is the same, to the last bit, as one on the data set that it is
made of with `model.features`: a feature vector depends on its own image alone.
"""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import lus_final
import numpy as np

import fedspend
from fedspend.data.dataset import Rows, finished
from fedspend.data.loading import DATA_SETS, read
from fedspend.errors import InvalidInput
from fedspend.models import features as maps
from fedspend.models.feature_cache import cached_features

FEMNIST = "femnist"
WRITERS = "femnist/femnist-writers.npz"  # in FEDSPEND_DATA
NAMES = ("digits", "fashion-mnist", "mnist", "cifar10", "mnist-writers", "adult", FEMNIST)


def femnist(_folder: Path | None = None, _seed: int = 0) -> Rows:
    """FEMNIST by writer, 62 classes. Test images that equal a training image are dropped."""
    path = Path(os.environ.get("FEDSPEND_DATA", ".")) / WRITERS
    if not path.is_file():
        raise InvalidInput(f"{path} is missing; set FEDSPEND_DATA to the folder of femnist/")
    with np.load(path) as found:
        images, test = found["features"], found["test_features"]
        seen = {image.tobytes() for image in images}
        fresh = np.array([image.tobytes() not in seen for image in test])
        return Rows(
            _scaled(images),
            found["label"].astype(np.int64),
            62,
            _scaled(test[fresh]),
            found["test_label"][fresh].astype(np.int64),
            found["client"],
        )


def _scaled(images: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.divide(images.reshape(-1, 1, 28, 28), np.float32(255), dtype=np.float32)


@lru_cache(maxsize=2)
def _rows(name: str, features: str) -> Rows:
    found = read(name)
    if features == "none":
        return found
    made = cached_features(features, finished(name, found, 0.0, 0, public=True, by_row=False))
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


def held_out_of(settings: dict[str, Any], share: float) -> int:
    """Puts a data set whose test rows are this share of the training rows in place of the one that
    is named; without a share it stays. Returns how many rows there are to train on. Which those
    are, the seed of the run may decide.
    """
    name, seed = settings["data.name"], settings["train.seed"]
    rows = DATA_SETS[name].read(None, seed)
    if not share:
        return len(rows.labels)
    place = f"{name}-{seed}-without-{100 * share:.0f}-percent"
    order = np.random.default_rng(0).permutation(len(rows.labels))
    apart, rest = np.split(order, [round(share * len(order))])
    if place not in DATA_SETS:
        part = Rows(
            rows.features[rest],
            rows.labels[rest],
            rows.classes,
            rows.features[apart],
            rows.labels[apart],
        )
        fedspend.register(
            "data set", place, lambda *_: part, help=f"{name}, rows held out", public=True
        )
    settings["data.name"] = place
    return len(rest)


def register() -> None:
    lus_final.register()
    fedspend.register(
        "data set", FEMNIST, femnist, help="FEMNIST by writer", public=True, natural=True
    )
    for name in NAMES:
        for features in ("none", *maps.NAMES) if name != "adult" else ("none",):
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
    if FEMNIST not in DATA_SETS:
        register()
    return {**settings, "data.name": place(name, features), "model.features": "none"}
