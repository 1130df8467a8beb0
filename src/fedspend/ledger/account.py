"""Charges one run's rounds to a ledger.

Guarantee: the last entry that a run has seen is kept in its run directory, so a ledger that was cut
off or replaced is noticed. The ledger knows the place of the run directory, so a copy of it is
noticed too.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.rules import Proposal, refuse_elsewhere
from fedspend.ledger.spending import spent_by_members
from fedspend.ledger.state import FINISHED, Place, Run
from fedspend.ledger.storage import is_url, path_of
from fedspend.stored.files import SEEN_HEAD

if TYPE_CHECKING:
    from fedspend.server.methods.base import Release


class RunAccount:
    """Charges the rounds of one run.

    The run directory keeps the head of the ledger, so that a ledger that was cut off or replaced by
    an old copy is noticed. A run without a directory cannot be resumed, and keeps no head.
    """

    def __init__(self, ledger: Ledger, run: str, folder: Path | None) -> None:
        self.ledger, self.id, self.folder = ledger, run, folder
        self.place = None if folder is None else place_of(folder)

    @property
    def run(self) -> Run:
        return self.ledger.run(self.id)

    @property
    def admitted(self) -> bool:
        return self.id in self.ledger.state.runs

    def check_head(self) -> None:
        """Refuse a ledger that is not the one this run has seen."""
        path = None if self.folder is None else SEEN_HEAD.of(self.folder)
        if path is not None and path.exists():
            self.ledger.check_head(Head.load(path), str(path))

    @property
    def goes_on(self) -> bool:
        """Whether the run was admitted and is not closed."""
        return self.admitted and self.run.closed is None

    def check_place(self) -> None:
        """Refuse a copy of the run's directory. A closed run begins no round anywhere."""
        if self.goes_on:
            refuse_elsewhere(self.run, self.place)

    def moved(self, place: Place) -> None:
        """The run goes on in `place`, and no longer where it was."""
        self.ledger.move(self.id, place)
        self._keep_head()

    def admit(
        self, proposal: Proposal, files: Mapping[str, str] | None = None, *, simulation: bool
    ) -> None:
        """Open the run, or replace its plan if it is already open under another one."""
        if self.goes_on and self.run.about["plan"] != proposal.plan:
            self.ledger.replan(self.id, proposal, files=files)
        else:
            if proposal.own and not self.admitted:
                self._open_accounts(proposal)
            self.ledger.admit(
                self.id, proposal, simulation=simulation, place=self.place, files=files
            )
        if self.goes_on and self.run.place is None and self.place is not None:
            self.ledger.move(self.id, self.place)  # begun by version 0.1: from now on it has one
        self._keep_head()

    def _open_accounts(self, proposal: Proposal) -> None:
        """The accounts of a run that has its own; a run that was killed here has them already."""
        known = self.ledger.accounts(proposal.unit).number
        new = [n for n, name in enumerate(proposal.names) if name not in known]
        if new:
            self.ledger.register_for(proposal, new)

    def reserve(self, round: int, start: str | None = None) -> None:
        self.ledger.reserve(self.id, round, place=self.place, start=start)

    def was_reserved(self, round: int) -> bool:
        self.ledger.read()
        return self.admitted and round in self.run.rounds

    def commit(self, round: int, release: Release, file: str | None = None) -> None:
        self.ledger.commit(self.id, round, digest(release), place=self.place, file=file)
        self._keep_head()

    def lose(self, round: int) -> None:
        self.ledger.lose(self.id, round, place=self.place)
        self._keep_head()

    def spent(self, *, over: bool = False, quick: bool = False) -> FloatArray:
        """What each member's account has spent in all runs (`spending.spent_by_members`)."""
        return spent_by_members(self.ledger.state, self.id, over=over, quick=quick)

    def close(self, reason: str, ending: Mapping[str, str] | None = None) -> None:
        if self.run.closed is None:
            self.ledger.close_run(self.id, reason=reason, place=self.place, ending=ending)
            self._keep_head()

    def finish(self, ending: Mapping[str, str] | None = None, *, stopped: bool = False) -> None:
        """The run has played all of its rounds, or was `stopped` by its own rule."""
        if not stopped or self.run.next_round == self.run.planned:
            self.close(FINISHED, ending)
        elif self.run.closed is None:
            self.ledger.stop_run(self.id, place=self.place, ending=ending)
            self._keep_head()

    def _keep_head(self) -> None:
        if self.folder is not None:
            self.ledger.state.head.save(SEEN_HEAD.of(self.folder))


def digest(release: Release) -> str:
    """SHA-256 of a release, in 43 characters."""
    content = release.update.astype("<f4").tobytes() + repr(release.bit).encode()
    if release.metric is not None:
        content += repr(("metric", release.metric)).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def place_of(folder: Path) -> Place:
    """Where a run directory is."""
    whole = folder.resolve()
    return Place(str(whole), whole.stat().st_ino)


def new_run_id() -> str:
    return secrets.token_hex(6)


def stored_location(location: str, folder: Path) -> str:
    """How a run directory names its ledger: without a password, relative if it is inside."""
    if is_url(location):
        from fedspend.ledger.postgres import without_password

        return without_password(location)
    path = Path(path_of(location)).resolve()
    return path.name if path.parent == folder.resolve() else str(path)


def locate(stored: str, folder: Path) -> str:
    """The location that a run directory names."""
    return str(folder / stored) if is_inside(stored) else stored


def is_inside(stored: str) -> bool:
    """Whether the location that a run directory names is inside it."""
    return not (is_url(stored) or Path(stored).is_absolute())


def check_same_project(asked: str, stored: str, folder: Path) -> None:
    if asked not in ("", stored):
        kept = f"under project {stored!r}" if stored else "under no project"
        raise InvalidInput(
            f"the run in {folder} keeps its account {kept}, not under {asked!r}; drop --project"
        )


def check_same(asked: str, stored: str, folder: Path) -> None:
    if stored_location(asked, folder) != stored:
        raise InvalidInput(
            f"the run in {folder} keeps its account in {stored}, not in "
            f"{stored_location(asked, folder)}; name the ledger that it uses, or none"
        )
