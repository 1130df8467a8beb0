"""`--log FILE`: what a command does, line by line, with times.

Guarantee: only the owner may read the file, and no password of a database is written to it. It
tells what the terminal is told: rounds, notes, warnings, errors, how the command ended. A log that
can no longer be written never stops a run; the terminal is told once. How long a round took tells
how many clients took part: so from the first round of a real run on, lines bear the day alone, as
the entries of a real ledger do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedspend.basics.progress import OnProgress
from fedspend.errors import InvalidInput

LOG = logging.getLogger("fedspend.cli")
LOG.addHandler(logging.NullHandler())  # nothing is shown but what is printed


class LogFile(logging.Handler):
    """Appends to a file that is private to its owner."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if stat.S_ISREG(os.fstat(self._file).st_mode):  # one that was there, readable by others
            os.fchmod(self._file, 0o600)
        self._told = False
        self.days_only = False
        self.setFormatter(UTC("%(asctime)s %(levelname)-7s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        record.days_only = self.days_only
        line = " ".join(self.format(record).split()) + "\n"
        try:
            os.write(self._file, line.encode("utf-8", "replace"))
        except OSError as error:
            if not self._told:
                self._told = True
                print(f"warning: cannot write the log: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        os.close(self._file)
        super().close()


class UTC(logging.Formatter):
    """Times as the ledger has them."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        form = "%Y-%m-%d" if getattr(record, "days_only", False) else "%Y-%m-%dT%H:%M:%SZ"
        return time.strftime(datefmt or form, time.gmtime(record.created))


@contextlib.contextmanager
def logged(name: str | None, argv: Sequence[str]) -> Iterator[None]:
    """Logs to the file of this name while a command runs, if there is one."""
    if name is None:
        yield
        return
    path = Path(name)
    if path.is_dir():
        raise InvalidInput(f"--log {name!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InvalidInput(f"--log {name!r}: there is no directory {str(path.parent)!r}; make it")
    handler = LogFile(path)
    ours = logging.getLogger("fedspend")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    LOG.info("fedspend %s", " ".join(map(without_passwords, argv)))
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        handler.close()


def log_days_only() -> None:
    """From here on, lines bear the day alone."""
    for handler in logging.getLogger("fedspend").handlers:
        if isinstance(handler, LogFile):
            handler.days_only = True


def logging_progress(title: str, then: OnProgress | None) -> OnProgress | None:
    """Progress that is also logged, every tenth of the way, while there is a log."""
    if not LOG.isEnabledFor(logging.INFO):
        return then
    last = -1

    def progress(done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // max(1, total)
        if tenth != last:
            last = tenth
            LOG.info("%s: %d of %d", title, done, total)
        if then is not None:
            then(done, total)

    return progress


def without_passwords(argument: str) -> str:
    """An argument as it may be written down: addresses may hold passwords, in ways that only the
    driver of a database knows.

    >>> without_passwords("--ledger=postgresql://ann:secret@host/db"), without_passwords("a.toml")
    ('--ledger=postgresql://...', 'a.toml')
    >>> without_passwords("host=db.example password=secret")
    '...'
    """
    if "password" in argument.lower():
        return "..."
    scheme, address, _ = argument.partition("://")
    return f"{scheme}://..." if address else argument
