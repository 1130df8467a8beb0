"""Your own images: a folder for each client, and in it a folder for each label.

Guarantee: an image becomes numbers between 0 and 1 by itself, at the size that is declared.
Labels are declared: a folder that is none of them is refused. A file that is no image is refused,
and the error names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from fedspend.budgets.identity import read_column
from fedspend.data.dataset import Features, Rows
from fedspend.data.label_columns import OneOf, target_of
from fedspend.errors import InvalidInput, whole_number

FILE = "file"  # the record id of an image: its name within the folder
_MODES = {1: "L", 3: "RGB"}
_PLAIN = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_LARGEST_SIDE = 4096
_SKIPPED = ("Thumbs.db", "desktop.ini")


def read_images(
    path: str | Path,
    *,
    labels: Sequence[str] | None = None,
    classes: int | None = None,
    image_size: Sequence[int] | None = None,
    record: str | None = None,
    test_path: str | Path | None = None,
    public_path: str | Path | None = None,
) -> Rows:
    """The images in `path`/CLIENT/LABEL/, brought to `image_size`: channels, height, width.

    `record = "file"` makes each image a record under its file's name. `test_path` has public images
    in LABEL/, `public_path` images without labels.
    """
    size, target = read_size(image_size), target_of("label", labels=labels, classes=classes)
    assert isinstance(target, OneOf)
    folder = _folder(path)
    found = _found(folder, target)
    tests = None if test_path is None else list(_labelled(_folder(test_path), target))
    plain = None if public_path is None else list(_images(_folder(public_path)))
    if record not in (None, FILE):
        raise InvalidInput(f'record is "{FILE}" for a folder of images, got {record!r}')
    return Rows(
        pixels([one.file for one in found], size),
        np.array([one.label for one in found], dtype=np.int64),
        target.classes,
        None if tests is None else pixels([file for file, _ in tests], size),
        None if tests is None else np.array([number for _, number in tests], dtype=np.int64),
        np.array(read_column([one.client for one in found], what="client")),
        public_features=None if plain is None else pixels(plain, size),
        record_of=None if record is None else np.array([one.record for one in found]),
        meaning={"labels": target.meaning},
    )


@dataclass(frozen=True)
class Image:
    """One image of a client."""

    file: Path
    client: str
    label: int
    record: str


def read_size(size: Sequence[int] | None) -> tuple[int, int, int]:
    """Channels (1: grey, 3: colour), height and width."""
    if size is None:
        raise InvalidInput(
            "image_size is missing: declare channels, height and width, for example image_size = "
            "[1, 28, 28]; reading it from private images would leak"
        )
    if len(size) != 3:
        raise InvalidInput(
            f"image_size must be channels, height and width, for example [1, 28, 28], got {size!r}"
        )
    channels, height, width = (whole_number("image_size", one, at_least=1) for one in size)
    if channels not in _MODES or max(height, width) > _LARGEST_SIDE:
        raise InvalidInput(
            f"image_size must have 1 channel (grey) or 3 (colour) and sides of at most "
            f"{_LARGEST_SIDE}, got {list(size)}"
        )
    return channels, height, width


# --- which files ----------------------------------------------------------------------------------


def _found(folder: Path, target: OneOf) -> list[Image]:
    """The images in CLIENT/LABEL/."""
    found = [
        Image(file, client.name, number, file.relative_to(folder).as_posix())
        for client in _folders(folder, "client")
        for file, number in _labelled(client, target)
    ]
    if not found:
        raise InvalidInput(
            f"{folder}: there is no image in it; images belong in CLIENT/LABEL/ below it"
        )
    return found


def _labelled(folder: Path, target: OneOf) -> Iterator[tuple[Path, int]]:
    """The images in LABEL/, and the number of their label."""
    names = target.names or tuple(map(str, range(target.classes)))
    for inner in _folders(folder, "label"):
        if inner.name not in names:
            raise InvalidInput(
                f"{inner}: {inner.name!r} is not among the classes {', '.join(names)}; rename the "
                "folder, or declare it in labels"
            )
        for file in _images(inner):
            yield file, names.index(inner.name)


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        said = "is a file" if folder.exists() else "there is no such folder"
        raise InvalidInput(f"{folder}: {said}; give the folder that holds the images")
    return folder


def _entries(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be read: {error.strerror}") from None
    return [one for one in entries if not one.name.startswith(".") and one.name not in _SKIPPED]


def _folders(folder: Path, what: str) -> list[Path]:
    for entry in _entries(folder):
        if not entry.is_dir():
            raise InvalidInput(
                f"{entry}: is a file where a folder for each {what} was expected; images belong in "
                "CLIENT/LABEL/ (public test images in LABEL/)"
            )
    return _entries(folder)


def _images(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry.is_dir():
            raise InvalidInput(f"{entry}: is a folder where images were expected; move them up")
        yield entry


# --- pixels ---------------------------------------------------------------------------------------


def pixels(files: Sequence[Path], size: tuple[int, int, int]) -> Features:
    """(images, channels, height, width), between 0 and 1."""
    pillow = _pillow()
    found = np.empty((len(files), *size), dtype=np.float32)
    for n, file in enumerate(files):
        found[n] = _one(pillow, file, size)
    return found


def _one(pillow: ModuleType, file: Path, size: tuple[int, int, int]) -> Features:
    channels, height, width = size
    try:
        with warnings.catch_warnings(), pillow.open(file) as image:
            warnings.simplefilter("ignore")
            mode = image.mode
            if mode in _PLAIN:
                plain = image.convert(_MODES[channels])
                if plain.size != (width, height):
                    plain = plain.resize((width, height), pillow.Resampling.BILINEAR)
                values: Features = np.asarray(plain, dtype=np.float32) / np.float32(255)
                return values.reshape(height, width, channels).transpose(2, 0, 1)
    except OSError as error:
        why = f"cannot be read: {error.strerror}" if error.strerror else "is no image that is whole"
        raise InvalidInput(f"{file}: {why}; correct it or take it out") from None
    except (ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        said = (str(error).splitlines() or ["damaged"])[0]
        raise InvalidInput(f"{file}: cannot be read as an image ({said}); take it out") from None
    raise InvalidInput(
        f"{file}: its pixels are of kind {mode!r}; save it with 8 bits a channel, grey or colour"
    )


def _pillow() -> ModuleType:
    try:
        from PIL import Image as pillow
    except ModuleNotFoundError:
        raise InvalidInput(
            "images are read by Pillow, which is missing; pip install 'fedspend[images]'"
        ) from None
    return pillow
