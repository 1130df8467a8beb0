"""When a run began and when its report was written.

Guarantee: a date is the one that the run recorded when it began, never a file's time stamp, which
changes when a folder is copied. A run without one (of version 0.1) is called undated. With
SOURCE_DATE_EPOCH set, the same run gives the same page on any day.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspend.errors import FedspendError
from fedspend.stored.run import StoredRun


@dataclass(frozen=True)
class Dates:
    """The day of the report, and the moment when each run was admitted, by the run's name."""

    written: str
    begun: Mapping[str, str] = field(default_factory=dict)


def dates_of(folders: Sequence[Path], names: Sequence[str]) -> Dates:
    found = {name: begun(folder) for folder, name in zip(folders, names, strict=True)}
    return Dates(today(), {name: when for name, when in found.items() if when is not None})


def today() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        if epoch.isdigit()
        else datetime.datetime.now(datetime.UTC)
    )
    return now.strftime("%Y-%m-%d")


def begun(folder: Path) -> str | None:
    """When the run in `folder` began; None if that was not recorded."""
    try:
        when = datetime.datetime.fromisoformat(StoredRun(folder).facts().began or "")
    except (OSError, ValueError, FedspendError):
        return None  # a report about a damaged run is still a report
    return when.strftime("%Y-%m-%d %H:%M UTC")
