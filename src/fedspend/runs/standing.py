"""Whether a run directory is where the ledger says that its run is.

Guarantee: a run goes on only from the files that belong to its last ledger entries. An old copy, a
directory that another copy has overtaken, and a lost checkpoint or release are refused with one
line; nothing restarts from an untrained model while rounds are spent.

The rounds that have begun are in the ledger. At any instant at most one of them is not in the
checkpoint yet, because a round begins only after the checkpoint of the round before it was written.
And at most one release is not in the ledger yet: that of a round that is reserved.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.errors import Refused
from fedspend.ledger.account import digest
from fedspend.ledger.state import Run
from fedspend.runs.checkpoints import StoredRelease, StoredState
from fedspend.stored.files import CHECKPOINT, RELEASE


def check_standing(
    folder: Path, run: Run | None, state: StoredState | None, release: StoredRelease | None
) -> None:
    """Refuse a directory whose files are not the last ones; `run` is None if never admitted."""
    if run is None:
        if state is not None or release is not None:
            raise Refused(
                f"{folder} holds rounds of a run that its ledger does not know; restore the "
                "ledger, or start a new run in another folder"
            )
        return
    wrong = wrong_checkpoint(run, state) or wrong_release(run, release)
    if wrong is not None:
        raise Refused(
            f"{folder}: {wrong}; go on in the run's own directory, restore the file from a copy of "
            "it, or start a new run"
        )


def wrong_checkpoint(run: Run, state: StoredState | None) -> str | None:
    """A sentence if the checkpoint is not the last one."""
    begun, done = run.next_round, 0 if state is None else state.state.done
    if not begun - 1 <= done <= begun:
        what = "is missing" if state is None else f"is from after round {done}"
        return f"{CHECKPOINT} {what}, but the ledger has {begun} rounds of run {run.id}"
    found = None if state is None else state.digest
    # the checkpoint that the round under way started from, or that the run ended with
    wanted = run.states.get(done) if done < begun else run.ending.get(CHECKPOINT.name)
    if wanted is not None and found != wanted:
        return f"{CHECKPOINT} is not the one that the ledger has seen in run {run.id}"
    return None


def wrong_release(run: Run, release: StoredRelease | None) -> str | None:
    """A sentence if the release is not the last one."""
    last = max((t for t, state in run.rounds.items() if state == "committed"), default=-1)
    if release is None:
        if last < 0:
            return None
        return f"{RELEASE} is missing, but the ledger has a release of round {last + 1}"
    if release.round == last:
        same = digest(release.kept.release) == run.releases[last]
        if same and run.kept.get(last) in (None, release.digest):
            return None
        return f"{RELEASE} is not the release of round {last + 1} that the ledger has seen"
    if release.round > last and run.rounds.get(release.round) == "reserved":
        return None
    return (
        f"{RELEASE} is of round {release.round + 1}, but the last one of run {run.id} that the "
        f"ledger has is of round {last + 1}"
    )
