"""Reading downloaded files: plain or gzip (told apart by content), and idx arrays (MNIST's format).

Guarantee: a truncated, damaged or unrelated file is refused with one line that names it; a partial
array is never returned.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.errors import InvalidInput

_GZIP = b"\x1f\x8b"
_ADVICE = "delete it and download it again"
# The third byte of an idx file. All numbers are big-endian.
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def locate(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`, compressed or not."""
    plain = name.removesuffix(".gz")
    return next(
        (
            path
            for path in (folder / name, folder / plain, folder / f"{plain}.gz")
            if path.is_file()
        ),
        None,
    )


def read_content(path: Path) -> bytes:
    """All bytes of a file, decompressed if it is gzip."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: damaged gzip file ({error}); {_ADVICE}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None


def read_idx(path: Path, dimensions: int) -> npt.NDArray[Any]:
    """The array in an idx file of `dimensions` dimensions."""
    content = read_content(path)
    if len(content) < 4:
        raise InvalidInput(f"{path}: not an idx file, it has only {len(content)} bytes; {_ADVICE}")
    zero, code, ndim = struct.unpack(">HBB", content[:4])
    if zero != 0 or code not in _IDX_TYPES:
        raise InvalidInput(
            f"{path}: not an idx file, it begins with {content[:4].hex()}; {_ADVICE}"
        )
    if ndim != dimensions:
        raise InvalidInput(
            f"{path}: has {ndim} dimensions, but {dimensions} are needed; is it another file under "
            "this name?"
        )
    start = 4 + 4 * ndim
    if len(content) < start:
        raise InvalidInput(f"{path}: ends inside its header; {_ADVICE}")
    shape = struct.unpack(f">{ndim}I", content[4:start])
    dtype = np.dtype(_IDX_TYPES[code])
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        raise InvalidInput(f"{path}: has no data, its shape is {shape}; {_ADVICE}")
    if len(content) - start != count * dtype.itemsize:
        raise InvalidInput(
            f"{path}: {len(content) - start} bytes of data, but shape {shape} needs "
            f"{count * dtype.itemsize}; {_ADVICE}"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
