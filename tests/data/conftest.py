"""Made files in the formats of the public data sets, small enough to write in a test."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

IDX_CODES = {"uint8": 0x08, "int32": 0x0C}


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, IDX_CODES[array.dtype.name], array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def write_idx():
    def write(path: Path, array: np.ndarray, compress: bool = True) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if compress else content)
        return path

    return write


@pytest.fixture
def mnist_folder(tmp_path, write_idx):
    """30 training and 20 test images of 28x28; a folder for `load(..., folder=)`."""
    generator = np.random.default_rng(0)
    for prefix, count in (("train", 30), ("t10k", 20)):
        images = generator.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        write_idx(tmp_path / "mnist" / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(
            tmp_path / "mnist" / f"{prefix}-labels-idx1-ubyte.gz",
            (np.arange(count) % 10).astype(np.uint8),
        )
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch, tmp_path_factory):
    """No test reads the data of this machine, or writes to its cache."""
    monkeypatch.delenv("FEDSPEND_DATA", raising=False)
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("fedspend.data.sources.DEBIAN", tmp_path_factory.mktemp("debian"))
