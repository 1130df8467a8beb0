"""The verdict of the independent verifier on the plan of a run.

Guarantee: nothing is trained under a plan that does not verify, and nothing is written before it
has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedspend.errors import Refused
from fedspend.runs.directory import RunDirectory
from fedspend.runs.setup import Setup
from fedspend.verification.verify import verify


def examine(setup: Setup, folder: Path | None) -> dict[str, Any] | None:
    """The verdict to keep beside the plan, None if it is there. Refuses a plan that does not
    verify, before anything is written.
    """
    if setup.plan is None or (
        folder is not None and RunDirectory(folder).certified(setup.plan.hash)
    ):
        return None
    verdict = verify(setup.plan)
    if not verdict.ok:
        raise Refused(f"the plan does not verify, so nothing is trained: {verdict.failures[0]}")
    return verdict.to_dict() | {"randomness": setup.randomness.source}
