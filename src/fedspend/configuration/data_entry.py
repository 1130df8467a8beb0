"""Data sets from Python: which there are, fetching one, and how your own is read.

Guarantee: the command line (`fedspend data`) asks these same functions. What `check_data` says
comes from rows, so it is private, for the data holder only; it says which columns need a
declaration and never with which values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedspend.basics.door import public
from fedspend.basics.tables import Table, frame_of_rows
from fedspend.basics.words import counted
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.configuration.config import load_config
from fedspend.configuration.data_inputs import Source, joined
from fedspend.configuration.method_name import known_method
from fedspend.configuration.record_plans import budgets_of, record_federation
from fedspend.data import DATA_SETS, get, status
from fedspend.data.download import OnDownload
from fedspend.data.looking import Look, look, opened, summary
from fedspend.data.sources import Status
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import protects_records

PRIVATE = (
    "what follows comes from the rows: it is private, for the data holder only. Declare levels and "
    "bounds from what is publicly known, not from what you see here"
)
OWN = "your own"


@dataclass(frozen=True, repr=False)
class DataSets:
    """Known data sets: iterate over them, or ask for `.rows()`, `.frame()` or `.table()`."""

    lines: tuple[Status, ...]

    def __iter__(self) -> Iterator[Status]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each, as `fedspend data list --json` prints them."""
        return [
            {**vars(line), "where": None if line.where is None else str(line.where)}
            for line in self.lines
        ]

    def frame(self) -> Any:
        """`rows` as a pandas frame."""
        return frame_of_rows(self.rows())

    def table(self) -> Table:
        cells = [(one.name, one.about, one.licence, place(one)) for one in self.lines]
        return Table(("name", "what", "licence", "where"), cells)

    def __repr__(self) -> str:
        ready = [one.name for one in self.lines if one.ready]
        return f"<{counted(len(self), 'data set')}, of which here: {', '.join(ready) or 'none'}>"

    def _repr_html_(self) -> str:
        return self.table().html()


def place(line: Status) -> str:
    """Where a data set is, or how to get it."""
    if line.where:
        return str(line.where)
    if line.licence == OWN:
        return "registered"
    return "bundled" if line.ready else f"not found: {line.hint}"


@public
def data_sets() -> DataSets:
    """List the data sets that a config can name, and where their files are.

    Returns:
        `DataSets`, which a notebook shows as a table: each with `.name`, `.about`, `.ready`,
        `.where`, `.licence`, and a `.hint` how to get it where it is missing.

    >>> "digits" in [one.name for one in data_sets()]
    True
    """
    own = [Status(name, DATA_SETS[name].help, True, None, OWN, "") for name in DATA_SETS.own]
    return DataSets((*status(), *own))


@public
def get_data(name: str, *, url: str | None = None, on_file: OnDownload | None = None) -> Path:
    """Fetch a data set into the cache, and check its checksums.

    Arguments:
        name: a data set of `data_sets()`.
        url: an address to download the same files from. Default: the usual one.
        on_file: called with (file, bytes done, bytes in all or None) while it is fetched.

    Returns:
        The folder with its files.

    Raises:
        InvalidInput: there is no such data set, or it needs no download.
        OutsideFailed: it cannot be fetched, or is not what it should be.

    `fedspend.get_data("fashion-mnist")`
    """
    if not isinstance(url, str | None):
        raise InvalidInput(f"url must be an address, got {url!r}")
    return get(name, base_url=url, progress=on_file)


@dataclass(frozen=True, repr=False)
class DataCheck:
    """How data is read. It is private: it comes from rows.

    `about` says what was read; `columns`, for a file that no config describes, what each column
    holds and what to declare of it.
    """

    about: dict[str, Any]
    columns: tuple[Look, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """All of it, as `fedspend data check --json` prints it."""
        if not self.columns:
            return dict(self.about)
        return self.about | {"columns": [vars(one) for one in self.columns]}

    def table(self) -> Table:
        if not self.columns:
            return Table(("", "read"), list(shown(self.about).items()))
        rows = [
            (one.column, one.cells, one.missing, "; ".join(one.declare)) for one in self.columns
        ]
        return Table(("column", "cells", "missing", "to declare under [data]"), rows)

    def __repr__(self) -> str:
        told = "; ".join(f"{name}: {value}" for name, value in shown(self.about).items())
        columns = f"; {counted(len(self.columns), 'column')}" if self.columns else ""
        return f"<private, from rows: {told}{columns}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self).strip('<>'))}</p>" + self.table().html()


def shown(about: dict[str, Any]) -> dict[str, str]:
    """Facts as words."""

    def worded(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{name} {number:g}" for name, number in value.items())
        if isinstance(value, list):
            return " x ".join(map(str, value))
        return f"{value:,}" if isinstance(value, int) else str(value)

    return {name: worded(value) for name, value in about.items()}


@public
def check_data(data: str | Path) -> DataCheck:
    """Say how your own data is read, and what must be declared of it.

    What it says comes from the rows: it is private, for the data holder only. Declare levels and
    bounds from what is publicly known, not from what you see there.

    Arguments:
        data: a CSV or Parquet file; or a config (.toml) that names your data, to see what it reads,
            and whether a file of budgets has everyone.

    Returns:
        A `DataCheck`, which a notebook shows as a table: `.columns` with `.declare`, `.about`.

    Raises:
        InvalidInput: the file cannot be read, or not as the config says; file and line are named.

    `fedspend.check_data("patients.csv").columns[0].declare`
    """
    if str(data).endswith(".toml"):
        source = Source(load_config(data))
        return DataCheck({"data set": source.name} | summary(source.rows) | with_budgets(source))
    frame, recognised = opened(data)
    about = {"file": str(data), "recognised": recognised, "rows": len(frame)}
    return DataCheck(about, tuple(look(frame)))


def with_budgets(source: Source) -> dict[str, Any]:
    """How the rows fit the file of budgets that the config names; those in the rows who are not in
    the file are refused, as they are when the config is planned or trained.
    """
    config = source.config
    place = config.privacy.budgets
    if place is None or source.elsewhere or not source.natural:
        return {}
    if protects_records(known_method(config)):
        federation = record_federation(source)
        return {"budgets": {"records": len(budgets_of(config, federation)[0])}}
    listed = read_budgets_csv(place).clients
    joined(source, [one for one in listed if one not in source.left_out], listed, place)
    without = len(set(listed).difference(source.ids))
    return {"budgets": {"clients": len(listed), "without rows": without}}
