"""When a run began and when its report was written.

Guarantee: dates come from the ledger's entries and the clock, never from a file's time stamp, which
changes when a folder is copied. A run that no ledger here dates is said to be undated. With
SOURCE_DATE_EPOCH set, the same run gives the same page on any day.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspend.errors import FedspendError
from fedspend.ledger import Ledger
from fedspend.ledger.account import locate
from fedspend.ledger.storage import holds_ledger, is_url


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
    """When the ledger admitted the run in `folder`; None if no ledger on this machine says so."""
    try:
        named = json.loads((folder / "run.json").read_text(encoding="utf-8"))["ledger"]
        location = locate(str(named["location"]), folder)
        if is_url(location) or not holds_ledger(location):
            return None
        with Ledger.open(location) as ledger:
            when = datetime.datetime.fromisoformat(ledger.run(str(named["run"])).about["time"])
    except (OSError, ValueError, KeyError, TypeError, FedspendError):
        return None  # a report about a run whose account is damaged is still a report
    return when.strftime("%Y-%m-%d %H:%M UTC")
