"""Fixed features, computed once for each set of images and kept in the cache folder.

The key is a hash of the images and of the source of the feature map: other images or another map are another entry, so the
cache never has to be cleared. A cache that cannot be written is no cache, not an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
from dataclasses import replace

import numpy as np

from fedspend.data.dataset import Dataset, Features
from fedspend.data.sources import cache_folder
from fedspend.files import write_whole
from fedspend.models import features as maps

MOST_BYTES = 2 << 30


def cached_features(name: str, dataset: Dataset) -> Dataset:
    """The data set with features in the place of images."""
    public = dataset.public_features
    return replace(
        dataset,
        features=_cached(name, dataset.features),
        test_features=_cached(name, dataset.test_features),
        public_features=None if public is None else _cached(name, public),
    )


def _cached(name: str, images: Features) -> Features:
    digest = hashlib.sha256(f"{name} {images.shape} {inspect.getsource(maps)}".encode())
    digest.update(np.ascontiguousarray(images).data)
    path = cache_folder() / "features" / f"{name}-{digest.hexdigest()[:32]}.npy"
    with contextlib.suppress(OSError, ValueError):
        found: Features = np.load(path)
        if found.dtype == np.float32 and len(found) == len(images):
            return found
    made = maps.features(name, images)
    if made.nbytes <= MOST_BYTES:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            body = io.BytesIO()
            np.save(body, made)
            write_whole(path, body.getvalue())
    return made
