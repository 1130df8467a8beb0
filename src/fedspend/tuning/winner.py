"""The directory of a private tune: its plan beforehand, and in the end the winner, as a run.

Guarantee: before the first trial there are the plan and the head of the ledger; after the last, the
files of the winner, written at once. Neither their names nor their number nor their times depend on
how many trials there were, and nothing of any other trial is ever written.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fedspend.basics.files import as_line, write_whole
from fedspend.basics.tensors import seal
from fedspend.errors import InvalidInput
from fedspend.ledger.account import stored_location
from fedspend.runs.beginning import facts_of
from fedspend.runs.directory import refuse_taken
from fedspend.runs.hold_out_key import HOLD_OUT_DIGEST
from fedspend.runs.setup import Setup
from fedspend.stored.files import CERTIFICATE, LEDGER, METRICS, MODEL, PLAN, RUN, TUNE, RunFile
from fedspend.tuning.plan import TunePlan, summary
from fedspend.tuning.trial import Outcome

TUNED = "tuned"  # in run.json and in the certificate
ENDING = (RUN, PLAN, CERTIFICATE, METRICS)  # whose digests the ledger gets with that of the model


def refuse_used(folder: Path) -> None:
    """A tune begins in a new or empty folder, and no tune goes on."""
    if TUNE.of(folder).exists():
        what = "a finished tune" if RUN.of(folder).exists() else "a tune that was interrupted"
        raise InvalidInput(
            f"{folder} holds {what}, which stays charged and cannot go on; choose another folder"
        )
    refuse_taken(folder)


def begin(folder: Path, plan: TunePlan) -> dict[str, str]:
    """Write the first file; returns its digest, for the ledger."""
    plan.save(TUNE.of(folder))
    return {TUNE.name: digest(TUNE.of(folder))}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_winner(
    folder: Path,
    plan: TunePlan,
    best: Outcome,
    setup: Setup,
    verdict: dict[str, Any],
    charged: dict[str, str],
) -> dict[str, str]:
    """Write the winner as a run directory; returns the digests of its files."""
    trial = plan.plans[best.setting]
    told = summary(plan) | {
        "setting": list(plan.settings[best.setting]),
        "score": best.score if best.metrics else None,
    }
    facts = facts_of(setup) | {"ledger": charged, TUNED: told}
    facts.pop(HOLD_OUT_DIGEST, None)  # nothing goes on, so nobody needs the key
    if not setup.randomness.simulation:
        # to the day: from the hour, and that of the files, anyone could guess the number of trials
        facts["began"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    about = {
        "randomness": setup.randomness.source,
        "plan": trial.hash,
        "parameters": list(best.model),
    }
    model, sealed = seal(best.model, about)
    trial.save(PLAN.of(folder))
    _write(CERTIFICATE, folder, _json(verdict | {TUNED: told}))
    _write(METRICS, folder, b"".join(map(as_line, best.metrics)))
    _write(MODEL, folder, model)
    _write(RUN, folder, _json(facts))  # last: with it, the folder is a run
    return {file.name: digest(file.of(folder)) for file in ENDING} | {MODEL.name: sealed}


def hide_times(folder: Path) -> None:
    """Give the folder and all of its files one time, the midnight (UTC) before.

    The times at which files were written tell how long the trials took, and so how many there were.
    """
    day = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        os.utime(path, (day.timestamp(), day.timestamp()), follow_symlinks=False)


def charge_of(location: str | None, folder: Path, run: str, project: str) -> dict[str, str]:
    """How run.json names the ledger."""
    stored = stored_location(location or str(LEDGER.of(folder)), folder)
    return {"location": stored, "run": run} | ({"project": project} if project else {})


def _write(file: RunFile, folder: Path, body: bytes) -> None:
    write_whole(file.of(folder), body, private=file.private)


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
