"""Where the chain is kept: one table of entries, in SQLite or PostgreSQL, behind one interface.

Guarantee: what was appended is on disk before `writing` ends, all of it or nothing, and two
writers never interleave. Rows are only ever added.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from fedspend.errors import InvalidInput, OutsideFailed
from fedspend.ledger.chain import Damaged, Row

# Statements that lead from one version of the tables to the next: the first item makes version 1.
# To change the tables, add an item; an older ledger is brought up to date when it is next opened
# for writing. {blob} is the type for bytes.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE fedspend_schema (version INTEGER NOT NULL)",
        "INSERT INTO fedspend_schema VALUES (1)",
        "CREATE TABLE fedspend_entries (number BIGINT PRIMARY KEY, body {blob} NOT NULL, hash "
        "{blob} NOT NULL)",
    ),
]
BUSY_SECONDS = 60  # how long a writer waits for another


class Unavailable(OutsideFailed):
    """The database cannot be reached or written to, or is full. Nothing was changed."""


class Storage(Protocol):
    """A database that holds one chain."""

    location: str  # as it is shown to people; never with a password

    def version(self) -> int:
        """Version of the tables; 0 if there are none."""
        ...

    def execute(self, *statements: str) -> None: ...

    def rows_after(self, number: int) -> list[Row]: ...

    def append(self, rows: list[Row]) -> None:
        """Add rows, inside `writing`."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """A transaction for one writer only; committed durably at its end, undone if it raises."""
        ...

    def check(self) -> str:
        """Raise `Damaged` if the database finds itself damaged; otherwise say what was checked."""
        ...

    def close(self) -> None: ...


def stated_version(rows: list[Any]) -> int:
    """The version in the rows of `fedspend_schema`; -1 if there is no sensible one."""
    stated = rows[0][0] if len(rows) == 1 else None
    return stated if isinstance(stated, int) and stated > 0 else -1


def migrate(storage: Storage) -> None:
    """Bring the tables to the newest version, inside `writing`."""
    for number, statements in enumerate(MIGRATIONS[storage.version() :], storage.version() + 1):
        storage.execute(*statements)
        if number > 1:
            storage.execute(f"UPDATE fedspend_schema SET version = {number}")


def check_version(storage: Storage) -> None:
    """Refuse a location without a ledger, and tables of an unknown version."""
    version = storage.version()
    if version == 0:
        raise InvalidInput(
            f"{storage.location} holds no ledger; make one with: fedspend ledger init --ledger "
            f"{storage.location}"
        )
    if not 1 <= version <= len(MIGRATIONS):
        raise Damaged(
            f"the tables of the ledger {storage.location} have version {version}, but this "
            f"program knows only up to {len(MIGRATIONS)}; use a newer fedspend, or restore the "
            "ledger if it is damaged"
        )


def connect(location: str, *, write: bool, create: bool = False, copied: bool = False) -> Storage:
    """The database that `location` names: a path, `sqlite:PATH`, or `postgresql://...`. With
    `copied`, a file is only read, from a copy.
    """
    if is_url(location):
        from fedspend.ledger.postgres import PostgreSQL

        return PostgreSQL(location)
    from fedspend.ledger.sqlite import SQLite, SQLiteCopy

    if copied:
        return SQLiteCopy(path_of(location))
    return SQLite(path_of(location), write=write, create=create)


def may_hold_ledger(location: str) -> bool:
    """Whether it is worth connecting to look for a ledger: not where there is no file, or one in
    which nothing was stored yet.
    """
    if is_url(location):
        return True
    path = Path(path_of(location))
    return path.is_file() and path.stat().st_size > 0


def is_url(location: str) -> bool:
    return location.startswith(("postgresql://", "postgres://"))


def path_of(location: str) -> str:
    """The path in a location that is not the URL of a server."""
    scheme, separator, rest = location.partition(":")
    if scheme == "sqlite" and separator:
        location = rest[2:] if rest.startswith("///") else rest.removeprefix("//")
    elif "://" in location:
        raise InvalidInput(
            f"ledger {location!r}: {scheme}:// is not supported; give a path, or "
            "postgresql://user@host/database"
        )
    if re.search(r"(^|\s)(host|hostaddr|port|user|password|dbname|service)\s*=", location):
        raise InvalidInput(
            "a ledger on PostgreSQL is named by a URL, postgresql://user@host/database, not by "
            "key=value words"
        )
    if not location.strip() or "\0" in location:
        raise InvalidInput(
            f"ledger {location!r} is not a path; give one, or postgresql://user@host/database"
        )
    return location
