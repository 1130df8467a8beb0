"""Public image data sets. Pixels are divided by the largest value that the format allows (255 or
16), never by the largest in the data.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray
from fedspend.data.dataset import Features, Rows, stratified
from fedspend.data.files import locate, read_content, read_idx
from fedspend.data.sources import CIFAR_ARCHIVE, CIFAR_BINARY, require
from fedspend.errors import InvalidInput
from fedspend.noise.randomness import Randomness

_CIFAR_ROW = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def load_digits() -> Rows:
    """scikit-learn's 8x8 digits with a fixed, stratified split: 360 of 1,797 are for testing."""
    try:
        from sklearn.datasets import load_digits as bundled  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InvalidInput(
            "data set 'digits' comes with scikit-learn, which is not installed; pip install "
            "'fedspend[train]'"
        ) from None
    images, labels = bundled(return_X_y=True)
    features = np.divide(images, 16, dtype=np.float32).reshape(-1, 1, 8, 8)
    labels = np.asarray(labels, dtype=np.int64)
    test = stratified(labels, 360 / len(labels), Randomness(0).generator("data", 2))
    return Rows(features[~test], labels[~test], 10, features[test], labels[test])


def load_mnist(name: str, folder: Path | None) -> Rows:
    """The four idx files of MNIST or Fashion-MNIST."""
    place = require(name, folder)
    train = (
        _images(place, "train-images-idx3-ubyte.gz"),
        _labels(place, "train-labels-idx1-ubyte.gz"),
    )
    test = _images(place, "t10k-images-idx3-ubyte.gz"), _labels(place, "t10k-labels-idx1-ubyte.gz")
    return Rows(train[0], train[1], 10, test[0], test[1])


def load_writers(folder: Path | None) -> Rows:
    """MNIST with the person who wrote a digit as its client. Columns of the QMNIST labels: class,
    series, writer, and more.
    """
    place = require("mnist-writers", folder)
    rows = load_mnist("mnist", folder)
    path = _file(place, "qmnist-train-labels-idx2-int.gz")
    table = read_idx(path, 2)
    if (
        table.shape[0] != len(rows.labels)
        or table.shape[1] < 3
        or not np.array_equal(table[:, 0], rows.labels)
    ):
        raise InvalidInput(
            f"{path}: does not describe the {len(rows.labels)} training images of mnist; download "
            "both again"
        )
    return Rows(
        rows.features,
        rows.labels,
        10,
        rows.test_features,
        rows.test_labels,
        table[:, 2].astype(np.int64),
    )


def load_cifar10(folder: Path | None) -> Rows:
    """The binary batches, in their archive or unpacked. Pickled batches are not read."""
    place = require("cifar10", folder)
    archive = place / CIFAR_ARCHIVE
    if archive.is_file():
        batches = _archive_batches(archive)
    else:
        batches = [
            _binary_batch(str(place / name), read_content(place / name)) for name in CIFAR_BINARY
        ]
    features, labels = (
        np.concatenate([batch[0] for batch in batches[:-1]]),
        np.concatenate([batch[1] for batch in batches[:-1]]),
    )
    return Rows(features, labels, 10, *batches[-1])


# --- idx ------------------------------------------------------------------------------------------


def _file(place: Path, name: str) -> Path:
    return locate(place, name) or place / name


def _images(place: Path, name: str) -> Features:
    return _unit(read_idx(_file(place, name), 3)[:, None])


def _labels(place: Path, name: str) -> IntArray:
    return read_idx(_file(place, name), 1).astype(np.int64)


def _unit(pixels: npt.NDArray[Any]) -> Features:
    unit: Features = np.divide(pixels, np.float32(255), dtype=np.float32)
    return unit


# --- CIFAR-10 -------------------------------------------------------------------------------------


def _binary_batch(name: str, content: bytes) -> tuple[Features, IntArray]:
    if len(content) == 0 or len(content) % _CIFAR_ROW:
        raise InvalidInput(
            f"{name}: {len(content)} bytes are not a whole number of {_CIFAR_ROW}-byte images; "
            "download it again"
        )
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_ROW)
    return _unit(table[:, 1:].reshape(-1, 3, 32, 32)), table[:, 0].astype(np.int64)


def _archive_batches(archive: Path) -> list[tuple[Features, IntArray]]:
    """Reads members by name in memory; unpacks nothing to disk."""
    batches = []
    try:
        with tarfile.open(archive) as tar:
            for name in CIFAR_BINARY:
                member = tar.extractfile(name)
                if member is None:
                    raise KeyError(name)
                batches.append(_binary_batch(f"{archive}:{name}", member.read()))
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise InvalidInput(
            f"{archive}: not the CIFAR-10 archive, or damaged ({error}); delete it and download it "
            "again"
        ) from None
    return batches
