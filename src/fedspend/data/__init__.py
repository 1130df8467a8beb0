"""Data sets, where their files are, and how rows are dealt to clients. Works without torch."""

from __future__ import annotations

from fedspend.data.dataset import Dataset, from_arrays, sample
from fedspend.data.download import DownloadFailed, get
from fedspend.data.loading import NAMES, load, options_of
from fedspend.data.partition import (
    KINDS,
    Federation,
    Statistics,
    by_id,
    choose_among,
    from_clients,
    of_named,
    partition,
    statistics,
)
from fedspend.data.public_rows import set_aside
from fedspend.data.sources import SOURCES, Source, SourceFile, Status, find, status

__all__ = [
    "KINDS",
    "NAMES",
    "SOURCES",
    "Dataset",
    "DownloadFailed",
    "Federation",
    "Source",
    "SourceFile",
    "Statistics",
    "Status",
    "by_id",
    "choose_among",
    "find",
    "from_arrays",
    "from_clients",
    "get",
    "load",
    "of_named",
    "options_of",
    "partition",
    "sample",
    "set_aside",
    "statistics",
    "status",
]
