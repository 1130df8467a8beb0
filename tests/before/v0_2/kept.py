"""Where the files of version 0.2.0 are, and how a test gets copies of its own.

Guarantee: nothing that 0.2.0 wrote is changed on the way to a test. It wrote absolute names of
files into `run.json`, and the digest of that into the ledger, so no placeholder can be put there
afterwards: everything was made in `WHERE`, which is nobody's folder. A copy may lie anywhere; a run
on rows of one's own, which 0.2.0 finds by their absolute names, goes on only in `WHERE` itself
(`in_its_place`).
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import json
import shutil
import tarfile
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARCHIVE = Path(__file__).parent / "files.tar.xz"
WHERE = Path("/tmp/fedspend-0.2.0")


def unpacked(to: Path) -> Path:
    """All files, in the new folder `to`, with the modes that they had."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(to, filter="data")
    return to


@contextmanager
def in_its_place() -> Iterator[Path]:
    """All files where they were made, for one test of one process at a time."""
    with open(f"{WHERE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(WHERE, ignore_errors=True)
        try:
            yield unpacked(WHERE)
        finally:
            shutil.rmtree(WHERE, ignore_errors=True)


def read_json(path: Path) -> Any:
    body = path.read_bytes()
    return json.loads(gzip.decompress(body) if path.suffix == ".gz" else body)


def marked(names: Iterable[str], slow: Container[str]) -> list[Any]:
    """Parameters of a test; it takes half a second or more with the slow ones."""
    return [pytest.param(name, marks=[pytest.mark.full] if name in slow else []) for name in names]


# --- messages, as text ---


def message_as_json(content: Any) -> dict[str, Any]:
    """The content of a Flower message, every byte of it."""
    return {
        "about": dict(content["fedspend.about"]),
        "arrays": [
            {
                "name": name,
                "dtype": array.dtype,
                "shape": list(array.shape),
                "stype": array.stype,
                "data": base64.b64encode(array.data).decode(),
            }
            for name, array in content["fedspend.arrays"].items()
        ],
    }


def message_from_json(said: dict[str, Any]) -> Any:
    """The inverse of `message_as_json`."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        one["name"]: Array(
            dtype=one["dtype"],
            shape=tuple(one["shape"]),
            stype=one["stype"],
            data=base64.b64decode(one["data"]),
        )
        for one in said["arrays"]
    }
    return RecordDict(
        {"fedspend.about": ConfigRecord(said["about"]), "fedspend.arrays": ArrayRecord(arrays)}
    )
