"""Fixed features, computed once for each set of public images and kept in the cache folder.

Guarantee: features of your own images are never written anywhere. Natural clients' features are
computed client by client: no chunk holds images of two clients.

The key is a hash of the images, of which client holds which, and of the feature map's source code:
different images or a different map make a different entry, so the cache never needs clearing. If
the cache cannot be written, features are computed each time; that is not an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray
from fedspend.basics.files import write_whole
from fedspend.data.dataset import Dataset, Features
from fedspend.data.sources import cache_folder
from fedspend.errors import InvalidInput
from fedspend.models import features as maps

MOST_BYTES = 2 << 30


def cached_features(
    name: str, dataset: Dataset, shards: Sequence[IntArray] | None = None
) -> Dataset:
    """The data set with features in place of images. With `shards` (the rows of each natural
    client), features are computed client by client, and rows that belong to nobody stay zero.
    """
    make = _cached if dataset.public else _made
    public = dataset.public_features
    return replace(
        dataset,
        features=make(name, dataset.features, shards),
        test_features=make(
            name,
            dataset.test_features,
            None if shards is None else _by_client(dataset.test_client_of),
        ),
        public_features=None if public is None else make(name, public, None),
    )


def _by_client(client_of: npt.NDArray[Any] | None) -> list[IntArray] | None:
    """The rows of each client, or None if the rows have no clients."""
    if client_of is None:
        return None
    _, owner = np.unique(client_of, return_inverse=True)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


def _made(name: str, images: Features, shards: Sequence[IntArray] | None) -> Features:
    if shards is None:
        return maps.features(name, images)
    made = np.zeros((len(images), maps.LENGTH), dtype=np.float32)
    for rows in shards:
        if len(rows):
            made[rows] = maps.features(name, images[rows])
    return made


def _cached(name: str, images: Features, shards: Sequence[IntArray] | None) -> Features:
    digest = hashlib.sha256(f"{name} {images.shape} {inspect.getsource(maps)}".encode())
    digest.update(np.ascontiguousarray(images).data)
    for rows in shards or ():
        digest.update(
            len(rows).to_bytes(8, "little") + np.ascontiguousarray(rows, dtype="<i8").tobytes()
        )
    path = cache_folder() / "features" / f"{name}-{digest.hexdigest()[:32]}.npy"
    with contextlib.suppress(OSError, ValueError):
        found: Features = np.load(path)
        if found.dtype == np.float32 and len(found) == len(images):
            return found
    made = _made(name, images, shards)
    if made.nbytes <= MOST_BYTES:
        with contextlib.suppress(OSError, InvalidInput):
            path.parent.mkdir(parents=True, exist_ok=True)
            body = io.BytesIO()
            np.save(body, made)
            write_whole(path, body.getvalue())
    return made
