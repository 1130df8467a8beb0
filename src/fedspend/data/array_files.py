"""Your own data as a folder of NPY files, which are mapped into memory instead of read.

Guarantee: arrays are taken as they are; nothing is learned from them. Only what is being trained on
is kept in memory, which does not grow with their size. They are never written to: a change in
memory stays there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import IntArray
from fedspend.basics.choices import choose
from fedspend.budgets.identity import read_array, read_ids
from fedspend.data.dataset import Features, Rows
from fedspend.data.label_columns import OneOf, target_of
from fedspend.data.tables import CLIENT
from fedspend.errors import InvalidInput

Arrays = Mapping[str, npt.NDArray[Any]]
_FEATURES = "features"


def read_npy(
    path: str | Path,
    *,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    label: str = "label",
    client: str | None = CLIENT,
    record: str | None = None,
    public_path: str | Path | None = None,
) -> Rows:
    """The rows in a folder of NPY files, under the names of an NPZ file's arrays: features.npy,
    label.npy, client.npy and so on. Features are mapped, not read; they must be float32.
    """
    target = target_of(label, classes=classes, labels=labels)
    assert isinstance(target, OneOf)
    arrays, public = _mapped(Path(path)), None
    if client == CLIENT and client not in arrays:
        client = None
    for key in (_FEATURES, label, *(name for name in (client, record) if name is not None)):
        choose(f"array in {path}:", key, sorted(arrays))
    if public_path is not None:
        public = _mapped(Path(public_path))
        choose(f"array in {public_path}:", _FEATURES, sorted(public))
    tested = f"test_{_FEATURES}" in arrays
    if tested:
        choose(f"array in {path}:", f"test_{label}", sorted(arrays))

    def words(name: str) -> IntArray:
        return _labels(f"{path}: {name}", arrays[name], target.names)

    return Rows(
        _as_they_are(path, _FEATURES, arrays),
        words(label),
        target.classes,
        _as_they_are(path, f"test_{_FEATURES}", arrays) if tested else None,
        words(f"test_{label}") if tested else None,
        None if client is None else read_array(arrays[client], what=f"{path}: client"),
        public_features=None
        if public is None
        else _as_they_are(str(public_path), _FEATURES, public),
        record_of=None if record is None else _ids(arrays[record], f"{path}: record"),
        meaning={} if target.names is None else {"labels": target.meaning},
    )


def _ids(values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    return np.array(read_ids(map(str, read_array(values, what=what).tolist()), what=what))


def _labels(what: str, values: npt.NDArray[Any], names: Sequence[str] | None) -> IntArray:
    """Labels as numbers: words by their place in the list of names."""
    if names is None:
        if values.dtype.kind not in "iu":
            raise InvalidInput(
                f"{what} must be whole numbers from 0, got {values.dtype}; save them as int64, or "
                'list the words: labels = ["...", "..."]'
            )
        return values.astype(np.int64, copy=False)  # mapped, if it can be
    if values.dtype.kind not in "US" or values.ndim != 1:
        raise InvalidInput(
            f"{what} must be words, since labels lists them, got {values.dtype} of shape "
            f"{values.shape}; save words, or declare classes = {len(names)} instead"
        )
    found = np.full(len(values), -1, dtype=np.int64)
    for n, name in enumerate(names):
        found[values == (name if values.dtype.kind == "U" else name.encode())] = n
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise InvalidInput(
            f"{what}[{row}] {str(values[row])!r} is not among the classes {', '.join(names)}"
        )
    return found


def _as_they_are(path: str | Path, name: str, arrays: Arrays) -> Features:
    values = arrays[name]
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        order = "" if values.flags.c_contiguous else " in column order"
        raise InvalidInput(
            f"{path}: {name}.npy holds {values.dtype}{order}, which would have to be converted in "
            "memory; save it as float32 in row order"
        )
    return values


def _mapped(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays in a folder, mapped into memory."""
    if not folder.is_dir():
        said = "is a file" if folder.exists() else "there is no such folder"
        raise InvalidInput(f"{folder}: {said}; give a folder of .npy files")
    found = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            # copy on write: torch takes no array that it may not write to
            found[path.stem] = np.load(path, mmap_mode="c", allow_pickle=False)
        except (ValueError, EOFError) as error:
            reason = (str(error).splitlines() or ["damaged"])[0]
            raise InvalidInput(
                f"{path}: not an npy file of a plain array ({reason}); save with numpy.save"
            ) from None
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
    return {name: np.asarray(array) for name, array in found.items()}
