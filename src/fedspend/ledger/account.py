"""Charges one run's rounds to a ledger."""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.rules import Proposal
from fedspend.ledger.state import Run
from fedspend.ledger.storage import holds_ledger, is_url, path_of

if TYPE_CHECKING:
    from fedspend.server.methods.base import Release

OWN = "ledger.db"  # in the run directory, if no other ledger was named
HEAD = "ledger_head.json"


class RunAccount:
    """Charges the rounds of one run.

    The run directory keeps the head of the ledger, so that a ledger that was cut off or replaced by
    an old copy is noticed.
    """

    def __init__(self, ledger: Ledger, run: str, folder: Path) -> None:
        self.ledger, self.id, self.folder = ledger, run, folder

    @property
    def run(self) -> Run:
        return self.ledger.run(self.id)

    @property
    def admitted(self) -> bool:
        return self.id in self.ledger.state.runs

    def check_head(self) -> None:
        """Refuse a ledger other than the one this run has seen."""
        path = self.folder / HEAD
        if path.exists():
            self.ledger.check_head(Head.load(path), str(path))

    def admit(self, proposal: Proposal, *, simulation: bool) -> None:
        """Open the run, or replace its plan if it is already open under another one."""
        if self.admitted and self.run.closed is None and self.run.about["plan"] != proposal.plan:
            self.ledger.replan(self.id, proposal)
        else:
            self.ledger.admit(
                self.id, proposal, simulation=simulation, folder=str(self.folder.resolve())
            )
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
        self.ledger.state.head.save(self.folder / HEAD)


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


def refuse_gone(location: str, folder: Path) -> None:
    """Refuse to continue a run whose ledger has vanished: an empty one must not replace it."""
    if (folder / HEAD).exists() and not holds_ledger(location):
        raise Refused(
            f"the ledger {location} of the run in {folder} is gone; restore it, or start a new run "
            "in another folder"
        )


def check_same(asked: str, stored: str, folder: Path) -> None:
    if stored_location(asked, folder) != stored:
        raise InvalidInput(
            f"the run in {folder} keeps its account in {stored}, not in "
            f"{stored_location(asked, folder)}; name the ledger that it uses, or none"
        )
