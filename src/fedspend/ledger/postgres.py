"""A PostgreSQL database shared by a team. Needs the `postgres` extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode, urlunsplit

from fedspend.errors import InvalidInput
from fedspend.ledger.chain import Damaged, Row
from fedspend.ledger.storage import BUSY_SECONDS, Unavailable, stated_version


class PostgreSQL:
    """A `Storage` on a server."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InvalidInput(
                "a ledger on PostgreSQL needs the driver: pip install 'fedspend[postgres]'"
            ) from None
        self.location = without_password(url)
        self._errors = psycopg.Error
        self._misfits = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)
        with self._plain_errors():
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=BUSY_SECONDS)
            # a writer must see what was written before it
            self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # A server may be set to confirm a commit before it is on disk; not for a ledger.
            self._connection.execute("SET synchronous_commit = on")
            self._connection.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, self._misfits):
                raise Damaged(f"the ledger {self.location} is damaged: {reason}") from None
            raise Unavailable(f"cannot use the ledger {self.location}: {reason}") from None

    def version(self) -> int:
        with self._plain_errors():
            found = self._connection.execute(
                "SELECT to_regclass('fedspend_schema') IS NOT NULL"
            ).fetchone()
            if found is None or not found[0]:
                return 0
            versions = self._connection.execute("SELECT version FROM fedspend_schema").fetchall()
        return stated_version(versions)

    def execute(self, *statements: str) -> None:
        with self._plain_errors():
            for statement in statements:
                self._connection.execute(statement.format(blob="BYTEA").encode())

    def rows_after(self, number: int) -> list[Row]:
        statement = (
            "SELECT number, body, hash FROM fedspend_entries WHERE number > %s ORDER BY number"
        )
        with self._plain_errors():
            return self._connection.execute(statement, (number,), binary=True).fetchall()

    def append(self, rows: list[Row]) -> None:
        with self._plain_errors(), self._connection.cursor() as cursor:
            cursor.executemany("INSERT INTO fedspend_entries VALUES (%s, %s, %s)", rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        # An advisory lock can be taken even before the tables exist. The number is arbitrary; it
        # only has to be the same everywhere.
        with self._plain_errors(), self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(7361940285523)")
            yield

    def check(self) -> str:
        return "the server checks its own pages"

    def close(self) -> None:
        self._connection.close()


_SHOWN = ("options", "service", "sslmode", "sslrootcert")  # besides user, host, port and database


def without_password(url: str) -> str:
    """The URL without its password, safe to show and store.

    The driver itself parses the URL, so whatever it takes for a password is left out. Later it
    finds the password in PGPASSWORD or ~/.pgpass.
    """
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except Error:
        parts = {"port": "unreadable"}
    if not parts.get("port", "0").replace(",", "").isdigit() or "@" in parts.get(
        "dbname", ""
    ) + parts.get("host", ""):
        raise InvalidInput(
            "the URL of the ledger cannot be read; write postgresql://user@host:port/database, "
            "with special characters as %XX, and put the password into PGPASSWORD"
        )
    user = quote(parts["user"], safe="") + "@" if "user" in parts else ""
    host = parts.get("host", "")
    place = "" if host.startswith("/") else host + (f":{parts['port']}" if "port" in parts else "")
    kept = (
        {"host": host} | ({"port": parts["port"]} if "port" in parts else {})
        if host.startswith("/")
        else {}
    )
    query = urlencode(kept | {name: parts[name] for name in _SHOWN if name in parts}, safe="/")
    return urlunsplit(("postgresql", user + place, quote("/" + parts.get("dbname", "")), query, ""))
