"""Whether the rows of a real run are still those that its accounts were charged for before.

Guarantee: a run with changed rows is refused before anything is written, and the rows of a run are
sealed (`ledger.row_seals`) before its first round is charged.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.client.state import folder_beside
from fedspend.ledger import Ledger
from fedspend.ledger.row_seals import RowSeals, file_beside, file_elsewhere, refuse_changed
from fedspend.ledger.rules import account_numbers
from fedspend.ledger.storage import is_url
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.setup import Setup

_OWN = "rows.json"  # of a run with a ledger of its own, among the states of its clients


def refuse_other_rows(setup: Setup, folder: Path | None, ledger: RunLedger) -> None:
    """Refuse rows that are not those that were sealed; only reads."""
    book = None if setup.behind is None else ledger.found()
    if book is None or setup.plan is None or setup.behind is None:
        return
    accounts = book.accounts(setup.plan.unit)
    known = {
        name: digest
        for name, digest in setup.behind.items()
        if name in accounts.number  # the others have no account yet, or an old spelling
    }
    seals = RowSeals(seals_file(book, folder))
    changed, _ = seals.changed(accounts, book.group(setup.plan.unit), known)
    refuse_changed(setup.plan.unit, changed, book.location, book.project)


def seal_rows(setup: Setup, folder: Path | None, ledger: RunLedger) -> None:
    """Seal the rows that are not sealed yet; the run is admitted, and no round is charged yet."""
    book = None if setup.behind is None else ledger.found()
    if book is None or setup.plan is None or setup.behind is None:
        return
    names = book.accounts(setup.plan.unit).names
    who = account_numbers(book.state, setup.plan.unit, list(setup.behind))
    digests = {names[n]: one for n, one in zip(who, setup.behind.values(), strict=True)}
    book.seal_rows(setup.plan.unit, digests, RowSeals(seals_file(book, folder)))


def seals_file(book: Ledger, folder: Path | None) -> Path:
    """Where the rows' HMACs are kept: with the data holder, never in a run directory."""
    elsewhere = file_elsewhere(book.state.id, needed=is_url(book.location))
    if elsewhere is not None:
        return elsewhere
    path = Path(book.location).resolve()
    if folder is not None and path.parent == folder.resolve():
        return folder_beside(folder) / _OWN
    return file_beside(path)
