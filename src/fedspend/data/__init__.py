"""Data sets, where their files are, and how rows are dealt to clients. Works without torch."""

from __future__ import annotations

from fedspend.data.dataset import Dataset, Rows, from_arrays, rows, sample
from fedspend.data.download import DownloadFailed, get
from fedspend.data.loading import DATA_SETS, load, options_of
from fedspend.data.partition import (
    PARTITIONS,
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
from fedspend.data.sequences import next_tokens, padded
from fedspend.data.sources import SOURCES, Source, SourceFile, Status, find, status

__all__ = [
    "DATA_SETS",
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "DownloadFailed",
    "Federation",
    "Rows",
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
    "next_tokens",
    "of_named",
    "options_of",
    "padded",
    "partition",
    "rows",
    "sample",
    "set_aside",
    "statistics",
    "status",
]
