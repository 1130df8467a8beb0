"""Checks of a run directory by its owner, who knows where its ledger is and names it."""

from __future__ import annotations

from pathlib import Path

import fedspend
from fedspend.errors import FedspendError
from fedspend.stored.run import StoredRun


def ledger_of(folder):
    """Where the run in `folder` says that its ledger is; None if it is inside, or it does not."""
    try:
        named = StoredRun(Path(folder)).facts().ledger
    except (FedspendError, OSError):
        return None
    inside = named is None or "/" not in named.location
    return None if inside else named.location


def verify_run(folder, **named):
    return fedspend.verify_run(folder, **({"ledger": ledger_of(folder)} | named))
