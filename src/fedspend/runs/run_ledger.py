"""The ledger of one run: opened at most once, and created only when its first round is charged.

Guarantee: a real run is charged to a ledger that outlives it: the one that was named, or else the
one of this user, under a project that the user names. A simulation without a named ledger has one
in its run directory, or, without a directory, none. Until a run is charged, its ledger is only read
and never created, so a refused run leaves none behind. A run whose ledger vanished does not
continue with an empty one, and a ledger that changed under an open connection is noticed before
anything is charged.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.default import default_ledger, is_default, make_folder
from fedspend.ledger.rules import project_name
from fedspend.ledger.storage import is_url
from fedspend.runs.directory import RunDirectory
from fedspend.runs.recovery import goes_on
from fedspend.stored.run import StoredRun


class RunLedger:
    """Opens the ledger when it is first needed, and closes it once at the end.

    `asked` is the ledger that outlives the run, if there is one: named by the caller, or that of
    this user. `known` is where one may exist before anything is charged: None for a new run with
    its own ledger, which does not exist yet.
    """

    def __init__(self, asked: str | None, known: str | None, project: str = "") -> None:
        self.asked, self._known, self.project = asked, known, project
        self._book: Ledger | None = None

    @classmethod
    def of_run(
        cls,
        folder: Path | None,
        asked: str | None,
        *,
        resume: bool,
        project: str | None = None,
        charged: bool = False,
    ) -> RunLedger:
        """The ledger of a new or resumed run; a resumed run must keep the ledger it charges.

        `charged` says that the run is real and has a plan, so that it must have a ledger that
        outlives it.
        """
        named = project_name(project or "")
        if folder is not None and goes_on(folder, resume):
            directory = RunDirectory(folder)
            asked = asked or directory.ledger_as_given()
            own = directory.ledger_location(asked)
            return cls(asked, own, directory.ledger_project(named))
        if asked is None and charged:
            asked = default_ledger()
            if not named:
                raise InvalidInput(
                    f"this run is charged to the ledger of this user, {shown(asked)}, which other "
                    "projects may use, too; say which one it is: --project NAME (project= in "
                    "Python, ledger.project in the config), or name a ledger of its own with "
                    "--ledger"
                )
        return cls(asked, asked, named)

    @property
    def new_project(self) -> bool:
        """Whether the ledger, as it is now, does not know the project."""
        book = self.found()
        return book is None or self.project not in book.state.by_project

    @property
    def location(self) -> str | None:
        """Where the run is charged, without a password; None before it is, and if it never is."""
        return None if self._book is None else self._book.location

    @property
    def connects_to(self) -> str | None:
        """The same, to open it again: with the password that was given."""
        return self._known or self.location

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
            self._book = Ledger.find(self._known, write=True, project=self.project)
        return self._book

    def to_charge(self, location: str, run: StoredRun | None, *, simulation: bool) -> Ledger:
        """The ledger at `location`, created now if the run is the first to charge it.

        `run` is None for a run without a directory.
        """
        if self._book is not None:
            self._book.look_again()
        elif run is None or not run.head_file.exists():
            if is_default(location):
                make_folder(location)
            self._book = Ledger.open_or_create(
                location, simulation=simulation, project=self.project
            )
        else:
            self._book = Ledger.find(location, write=True, project=self.project)
            if self._book is None:
                raise Refused(
                    f"the ledger {location} of the run in {run.folder} is gone; restore it, or "
                    "start a new run in another folder"
                )
        return self._book


def shown(location: str) -> str:
    """A ledger's location, as it may be shown."""
    if not is_url(location):
        return location
    from fedspend.ledger.postgres import without_password

    return without_password(location)
