"""The verdict of the independent verifier on the plan of a run.

Guarantee: nothing is trained, and nothing is written, under a plan that has not been verified.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedspend.errors import Refused
from fedspend.planning.plan import check_loaded
from fedspend.runs.directory import RunDirectory
from fedspend.runs.setup import Setup
from fedspend.verification.verify import verify


def examine(setup: Setup, folder: Path | None) -> dict[str, Any] | None:
    """The verdict to store with the plan, or None if it is stored. Refuses a plan that fails."""
    if setup.plan is None or (
        folder is not None and RunDirectory(folder).certified(setup.plan.hash)
    ):
        return None
    check_loaded(setup.plan.accountant)
    verdict = verify(setup.plan)
    if not verdict.ok:
        raise Refused(f"the plan failed verification, so nothing is trained: {verdict.failures[0]}")
    return verdict.to_dict() | {"randomness": setup.randomness.source}
