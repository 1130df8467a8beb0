"""A run whose directory was moved goes on in its new place, and nowhere else.

Guarantee: the move is an entry in the run's ledger, after which the old place is refused. It is
entered only if the run goes on, after everything else that may be refused. If the ledger is itself
in the directory, the old place would not know of it: the move is refused as long as the run is
still there.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.basics.files import one_at_a_time
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import RunAccount, place_of
from fedspend.ledger.participants import check_planned_on
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.directory import RunDirectory
from fedspend.runs.recovery import goes_on
from fedspend.runs.result import OnNote
from fedspend.runs.run_ledger import RunLedger
from fedspend.stored.run import StoredRun


def check_moved(folder: Path | None, ledger: RunLedger, *, resume: bool) -> None:
    """Refuse, before anything else is looked at, what cannot go on in `folder`; only reads."""
    if folder is None or not goes_on(folder, resume):
        raise InvalidInput(
            "moved is for a run that goes on in another place: name its run directory, and resume"
        )
    directory, book = RunDirectory(folder), ledger.found()
    if book is None:
        raise Refused(f"the ledger of the run in {folder} is not there; restore it first")
    with one_at_a_time(folder):
        _account_to_move(directory, book)


def settle(folder: Path, ledger: RunLedger, plan: AnyPlan | None, on_note: OnNote) -> None:
    """The user says that the run directory was moved: from now on the run is in `folder`. Entered
    once everything else was checked, and before the run writes to its ledger.
    """
    directory, book = RunDirectory(folder), ledger.found()
    if book is None:
        return  # whoever charges the run says so
    with one_at_a_time(folder):
        account = _account_to_move(directory, book)
        if account is None:
            on_note("the run was not moved, or is over: its place stays as it is")
            return
        if plan is not None:
            check_planned_on(book, plan)
            if account.run.about["plan"] == plan.hash:  # else its new files are entered with it
                directory.check_files(account)
        account.moved(place_of(folder))
    on_note(f"the run is in {place_of(folder).folder} now, and begins no round anywhere else")


def _account_to_move(directory: RunDirectory, book: Ledger) -> RunAccount | None:
    """That of a run which is to go on in this directory, and was elsewhere; None if it was not, or
    is over.
    """
    account = directory.account_in(book, moved=True)
    if not account.goes_on or account.run.place == account.place:
        return None
    if account.run.place is not None and directory.keeps_ledger:
        _refuse_copy(Path(account.run.place.folder), directory.folder, account.id)
    return account


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
