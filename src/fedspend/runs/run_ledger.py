"""The ledger of one run: opened at most once, and created only when its first round is charged.

Guarantee: until a run is charged, its ledger is only read and never created, so a refused run
leaves none behind. A run whose ledger vanished does not continue with an empty one, and a ledger
that changed under an open connection is noticed before anything is charged.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.errors import Refused
from fedspend.ledger import Ledger
from fedspend.runs.directory import RunDirectory
from fedspend.runs.recovery import goes_on
from fedspend.stored.run import StoredRun


class RunLedger:
    """Opens the ledger when it is first needed, and closes it once at the end.

    `asked` is the ledger that the caller named, if any. `known` is where one may exist before
    anything is charged: None for a new run with its own ledger, which does not exist yet.
    """

    def __init__(self, asked: str | None, known: str | None) -> None:
        self.asked, self._known = asked, known
        self._book: Ledger | None = None

    @classmethod
    def of_run(cls, folder: Path | None, asked: str | None, *, resume: bool) -> RunLedger:
        """The ledger of a new or resumed run; a resumed run must keep the ledger it charges."""
        if folder is None:
            return cls(asked, None)
        if goes_on(folder, resume):
            return cls(asked, RunDirectory(folder).ledger_location(asked))
        return cls(asked, asked)

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._book is not None:
            self._book.close()
            self._book = None

    def found(self) -> Ledger | None:
        """The ledger as it is now, if it exists; nothing is created."""
        if self._book is not None:
            self._book.look_again()
        elif self._known is not None:
            self._book = Ledger.find(self._known, write=True)
        return self._book

    def to_charge(self, location: str, run: StoredRun, *, simulation: bool) -> Ledger:
        """The ledger at `location`, created now if the run is the first to charge it."""
        if self._book is not None:
            self._book.look_again()
        elif not run.head_file.exists():
            self._book = Ledger.open_or_create(location, simulation=simulation)
        else:
            self._book = Ledger.find(location, write=True)
            if self._book is None:
                raise Refused(
                    f"the ledger {location} of the run in {run.folder} is gone; restore it, or "
                    "start a new run in another folder"
                )
        return self._book
