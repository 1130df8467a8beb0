"""Charges one run's rounds to a ledger.

Guarantee: the last entry that a run has seen is kept in its run directory, so a ledger that was cut
off or replaced is noticed.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.rules import Proposal
from fedspend.ledger.state import Run
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

    def admit(self, proposal: Proposal, *, simulation: bool) -> None:
        """Open the run, or replace its plan if it is already open under another one."""
        if self.admitted and self.run.closed is None and self.run.about["plan"] != proposal.plan:
            self.ledger.replan(self.id, proposal)
        else:
            folder = "" if self.folder is None else str(self.folder.resolve())
            self.ledger.admit(self.id, proposal, simulation=simulation, folder=folder)
        self._keep_head()

    def reserve(self, round: int) -> None:
        self.ledger.reserve(self.id, round)

    def was_reserved(self, round: int) -> bool:
        self.ledger.read()
        return self.admitted and round in self.run.rounds

    def commit(self, round: int, release: Release) -> None:
        self.ledger.commit(self.id, round, digest(release))
        self._keep_head()

    def lose(self, round: int) -> None:
        self.ledger.lose(self.id, round)
        self._keep_head()

    def close(self, reason: str) -> None:
        if self.run.closed is None:
            self.ledger.close_run(self.id, reason=reason)
            self._keep_head()

    def _keep_head(self) -> None:
        if self.folder is not None:
            self.ledger.state.head.save(SEEN_HEAD.of(self.folder))


def digest(release: Release) -> str:
    """SHA-256 of a release, in 43 characters."""
    content = release.update.astype("<f4").tobytes() + repr(release.bit).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


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
    return stored if is_url(stored) or Path(stored).is_absolute() else str(folder / stored)


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
