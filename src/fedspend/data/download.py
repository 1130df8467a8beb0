"""Fetching a public data set into the cache.

Guarantee: a file appears under its name only once it is complete and its checksum is right. It is
written to a temporary file, checked, and moved into place in one step, so an interrupted, truncated
or tampered download never counts; a second run fetches only what is missing.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from fedspend.basics.choices import choose
from fedspend.data.sources import BUNDLED, SOURCES, Source, SourceFile, cache_folder
from fedspend.errors import InvalidInput, OutsideFailed

# (file name, bytes so far, bytes in all or None)
OnDownload = Callable[[str, int, int | None], None]

_CHUNK = 1 << 18
_SLACK = 1 << 20  # gzip adds less than this
_TIMEOUT = 60.0  # seconds without a single byte


class DownloadFailed(OutsideFailed):
    """The files could not be downloaded; files that were complete before are untouched."""


def get(
    name: str,
    *,
    base_url: str | None = None,
    progress: OnDownload | None = None,
    sources: Mapping[str, Source] = SOURCES,
    timeout: float = _TIMEOUT,
) -> Path:
    """Download the missing files of `name`, and of the data sets it needs, into the cache; returns
    its folder.

    `base_url` replaces the usual address of the data set itself, not of the ones it needs.
    """
    if name in BUNDLED:
        raise InvalidInput(f"data set {name!r} needs no download: {BUNDLED[name][0]}")
    source = sources[choose("data set", name, sources)]
    url = source.base_url if base_url is None else base_url
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"url must begin with http:// or https://, got {url!r}")
    for need in source.needs:
        get(need, progress=progress, sources=sources, timeout=timeout)
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.files:
            target = folder / file.name
            if not (target.is_file() and mismatch(target, file) is None):
                _fetch(f"{url.rstrip('/')}/{file.name}", target, file, progress, timeout)
    except OSError as error:
        raise DownloadFailed(
            f"cannot write to {folder}: {error.strerror or error}; free some space or set "
            "FEDSPEND_CACHE"
        ) from None
    return folder


def mismatch(path: Path, file: SourceFile) -> str | None:
    """What is wrong with the content of `path`, or None. Stops reading once it is too long."""
    digest, length = hashlib.sha256(), 0
    try:
        with path.open("rb") as raw:
            packed = not file.archive and raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            while length <= file.length and (chunk := stream.read(_CHUNK)):
                digest.update(chunk)
                length += len(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return f"it is damaged ({error})"
    if length != file.length:
        return f"it is {'longer' if length > file.length else 'shorter'} than {file.length} bytes"
    return (
        None
        if digest.hexdigest() == file.sha256
        else f"its SHA-256 is {digest.hexdigest()} and should be {file.sha256}"
    )


def _fetch(
    url: str, target: Path, file: SourceFile, progress: OnDownload | None, timeout: float
) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            _receive(url, out, file, progress, timeout)
            out.flush()
            os.fsync(out.fileno())
        wrong = mismatch(part, file)
        if wrong is not None:
            raise DownloadFailed(
                f"{url} is not the expected file: {wrong}; nothing was kept, try another --url"
            )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _receive(
    url: str, out: BinaryIO, file: SourceFile, progress: OnDownload | None, timeout: float
) -> None:
    """Writes the body of `url` to `out`. Network errors become `DownloadFailed`; disk errors pass
    through.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "fedspend"})
    advice = "check the network, or give another address with --url"
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            stated = answer.headers.get("Content-Length")
            total = int(stated) if stated is not None and stated.isdecimal() else None
            received = 0
            while chunk := _read(answer, url, advice):
                received += len(chunk)
                if received > file.length + _SLACK:
                    raise DownloadFailed(
                        f"{url} is longer than the expected {file.length} bytes; nothing was kept"
                    )
                out.write(chunk)
                if progress is not None:
                    progress(file.name, received, total)
    except urllib.error.HTTPError as error:
        raise DownloadFailed(f"{url} answered {error.code} {error.reason}; {advice}") from None
    except urllib.error.URLError as error:
        raise DownloadFailed(f"{url} cannot be reached: {error.reason}; {advice}") from None
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DownloadFailed(
            f"{url} cannot be reached: {error or type(error).__name__}; {advice}"
        ) from None
    if total is not None and received != total:
        raise DownloadFailed(
            f"{url} broke off after {received} of {total} bytes; nothing was kept, run the command "
            "again"
        )


def _read(answer: http.client.HTTPResponse, url: str, advice: str) -> bytes:
    try:
        return answer.read(_CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise DownloadFailed(
            f"{url} broke off: {error or type(error).__name__}; {advice}"
        ) from None
