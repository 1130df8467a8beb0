"""A run whose directory was moved goes on in its new place, and nowhere else.

Guarantee: the move is an entry in the run's ledger, after which the old place is refused. If the
ledger is itself in the directory, the old place would not know of it: the move is refused as long
as the run is still there.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.basics.files import one_at_a_time
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.ledger.account import RunAccount, place_of
from fedspend.runs.directory import RunDirectory
from fedspend.runs.recovery import goes_on
from fedspend.runs.result import OnNote
from fedspend.runs.run_ledger import RunLedger
from fedspend.stored.run import StoredRun


def settle(folder: Path | None, ledger: RunLedger, *, resume: bool, on_note: OnNote) -> None:
    """The user says that the run directory was moved: from now on the run is in `folder`."""
    if folder is None or not goes_on(folder, resume):
        raise InvalidInput(
            "moved is for a run that goes on in another place: name its run directory, and resume"
        )
    directory, book = RunDirectory(folder), ledger.found()
    if book is None:
        raise Refused(f"the ledger of the run in {folder} is not there; restore it first")
    with one_at_a_time(folder):
        account, place = RunAccount(book, directory.run_id, folder), place_of(folder)
        account.check_head()
        if not account.goes_on or account.run.place == place:
            on_note("the run was not moved, or is over: its place stays as it is")
            return
        directory.check_last(account)
        if account.run.place is not None and directory.keeps_ledger:
            _refuse_copy(Path(account.run.place.folder), folder, account.id)
        account.moved(place)
    on_note(f"the run is in {place.folder} now, and begins no round anywhere else")


def _refuse_copy(old: Path, new: Path, run: str) -> None:
    """Two directories with a ledger in each would both go on, and neither would know."""
    try:
        named = StoredRun(old).facts().ledger
        there = named is not None and named.run == run and place_of(old) != place_of(new)
    except (FedspendError, OSError):
        there = False
    if there:
        raise Refused(
            f"run {run} is still in {old}, with a ledger of its own, and could go on there; go on "
            f"there, or remove {old} first"
        )
