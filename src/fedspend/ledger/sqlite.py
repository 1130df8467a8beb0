"""A ledger in one file, private to its owner: write-ahead mode, every commit synced to disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from fedspend.basics.files import sync_folder
from fedspend.errors import InvalidInput, unreadable
from fedspend.ledger.chain import Damaged, Row
from fedspend.ledger.storage import BUSY_SECONDS, Unavailable, stated_version

COPIES = 100  # how often a file that is written to meanwhile is copied again


class SQLite:
    """A `Storage` in a file."""

    def __init__(self, path: str, *, write: bool, create: bool) -> None:
        self.location, self.path = path, Path(path)
        if self.path.is_dir():
            check_place(self.path)
        if not self.path.exists():
            if not create:
                raise InvalidInput(
                    f"there is no ledger {path!r}; make one with: fedspend ledger init --ledger "
                    f"{path}"
                )
            make_private(self.path)
        self._create = create
        with self._plain_errors():
            self._open(write)
        self._file = self._identity()

    def _open(self, write: bool) -> None:
        # A reader also opens the file for writing if it can, but sets query_only: only then does
        # SQLite clean up after it. A file that cannot be written to, and that nobody has open, is
        # read as it is.
        writable = os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        fixed = "" if writable or Path(f"{self.path}-wal").exists() else "&immutable=1"
        mode = "rw" if write or writable else "ro"
        options = f"mode={mode}" if write else f"mode={mode}{fixed}"
        uri = f"file:{quote(str(self.path.absolute()))}?{options}"
        self._connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        # Invalid text must not stop the reader before it can say where it is.
        self._connection.text_factory = bytes
        if write and self._ours():
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        elif not write:
            self._connection.execute("PRAGMA query_only = ON")

    def _ours(self) -> bool:
        """Whether there is a ledger here or one is to be made: nothing is changed in somebody
        else's database.
        """
        try:
            return self.version() != 0 or self._create
        except BaseException:
            self.close()
            raise

    def _identity(self) -> tuple[int, int] | None:
        """Which file is at the path; None if there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.InternalError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
                raise Damaged(f"the ledger {self.location} is damaged: {error}") from None
            raise Unavailable(
                f"cannot use the ledger {self.location}: {error}; nothing was changed"
            ) from None
        except (
            sqlite3.Error,
            UnicodeDecodeError,
            OverflowError,
            MemoryError,
            SystemError,
        ) as error:
            raise Damaged(
                f"the ledger {self.location} is damaged or not a ledger: {error}"
            ) from None

    def version(self) -> int:
        with self._plain_errors():
            tables = self._connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'fedspend_schema'"
            ).fetchone()
            if not tables[0]:
                empty = (
                    self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                    == 0
                )
                if not empty:
                    raise Damaged(
                        f"{self.location} is a database, but it holds no ledger or a damaged one"
                    )
                return 0
            versions = self._connection.execute("SELECT version FROM fedspend_schema").fetchall()
        return stated_version(versions)

    def execute(self, *statements: str) -> None:
        with self._plain_errors():
            for statement in statements:
                self._connection.execute(statement.format(blob="BLOB"))

    def rows_after(self, number: int) -> list[Row]:
        statement = (
            "SELECT number, body, hash FROM fedspend_entries WHERE number > ? ORDER BY number"
        )
        with self._plain_errors():
            return self._connection.execute(statement, (number,)).fetchall()

    def append(self, rows: list[Row]) -> None:
        with self._plain_errors():
            self._connection.executemany("INSERT INTO fedspend_entries VALUES (?, ?, ?)", rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        if self._identity() != self._file:  # what is written to a file without a name is lost
            raise Unavailable(
                f"cannot use the ledger {self.location}: its file was moved, removed or replaced "
                "since it was opened; nothing was changed"
            )
        with self._plain_errors():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._plain_errors():
                self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a failed COMMIT may have undone it already
                self._connection.execute("ROLLBACK")
            raise

    def check(self) -> str:
        with self._plain_errors():
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchall()
        if found != [(b"ok",)]:
            raise Damaged(
                f"the ledger {self.location} is damaged: "
                f"{bytes(found[0][0]).decode(errors='replace')}"
            )
        with self._plain_errors():
            strange = (
                "SELECT name FROM sqlite_master WHERE tbl_name NOT LIKE 'fedspend%' OR type NOT IN "
                "('table', 'index')"
            )
            if self._connection.execute(strange).fetchone() is not None:
                raise Damaged(
                    f"the ledger {self.location} holds tables or triggers that do not belong to it"
                )
        return "SQLite finds every page of the file sound"

    def close(self) -> None:
        self._connection.close()


class SQLiteCopy(SQLite):
    """A ledger in a file, read from a copy in memory. The file, its folder and what lies beside it
    stay as they are: SQLite itself would make files beside a ledger that is only read, or empty the
    write-ahead file of a run that was killed.
    """

    def __init__(self, path: str) -> None:
        self.location, self.path = path, Path(path)
        try:
            with TemporaryDirectory() as folder, self._plain_errors():
                copy = Path(folder) / "ledger"
                self._copy_to(copy)
                self._connection = sqlite3.connect(":memory:", isolation_level=None)
                with closing(sqlite3.connect(copy)) as whole:
                    whole.backup(self._connection)
                self._connection.text_factory = bytes
                self._connection.execute("PRAGMA query_only = ON")
        except OSError as error:
            raise unreadable(self.path, error) from None
        self._file = self._identity()

    def _copy_to(self, copy: Path) -> None:
        """Copy the file with its write-ahead file, as they are at one moment."""
        real = self.path.resolve()
        for _ in range(COPIES):
            pairs = [(Path(f"{real}{end}"), Path(f"{copy}{end}")) for end in ("", "-wal")]
            before = [_standing(one) for one, _ in pairs]
            for (one, other), there in zip(pairs, before, strict=True):
                other.unlink(missing_ok=True)
                if there is not None:
                    _copy_regular(one, other)
            if before == [_standing(one) for one, _ in pairs]:
                return
            time.sleep(0.05)
        raise Unavailable(
            f"cannot use the ledger {self.location}: it is written to all the time; try again later"
        )


def _standing(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written to; None if there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _copy_regular(path: Path, copy: Path) -> None:
    """Copy a file that is neither a link, which may lead anywhere, nor a pipe, which may block."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as source, copy.open("wb") as target:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file")
        shutil.copyfileobj(source, target)


def check_place(path: Path) -> None:
    """Refuse a place for a new ledger that is a folder, or whose folder does not exist or cannot be
    written to.
    """
    if path.is_dir():
        raise InvalidInput(f"ledger {str(path)!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InvalidInput(
            f"ledger {str(path)!r}: there is no directory {str(path.parent)!r}; make it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(
            f"ledger {str(path)!r}: directory {str(path.parent)!r} cannot be written to; choose "
            "another"
        )


def make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, and that survives a power cut."""
    check_place(path)
    with suppress(FileExistsError):  # another process was faster
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    sync_folder(path.parent)
