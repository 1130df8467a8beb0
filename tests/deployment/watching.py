"""What tests of a real federation look at while it runs, and afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fedspend.flower.loopback import Loopback, wait_for
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.stored.run import StoredRun

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
PATIENCE = 300.0  # seconds for whatever is waited for
_ASK = 30.0  # seconds between two questions how a run is: each starts a process


def changed(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path.write_text(text)


class NotThere(AssertionError):
    """What was waited for did not come in time."""


def wait_until(done: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise NotThere(f"{what} did not come")
        time.sleep(0.2)


def wait_for_rounds(made: Loopback, flower_run: str, run: Path, rounds: int) -> None:
    """Until so many rounds have been played. A run that ends before that says why."""
    end = time.monotonic() + PATIENCE
    while rounds_of(run) < rounds:
        with suppress(NotThere):
            wait_until(lambda: rounds_of(run) >= rounds, f"round {rounds}", _ASK)
            return
        over = made.status(flower_run).startswith("finished")
        told = wait_for(made, flower_run)[1] if over else ""
        played = rounds_of(run) >= rounds  # it may have been on its way
        assert played or not over, f"the run is over without round {rounds}\n{told}"
        assert time.monotonic() < end, f"round {rounds} did not come\n{logs(made.folder)}"


def rounds_of(run: Path) -> int:
    """How many rounds have been played."""
    return len(StoredRun(run).metrics()) if (run / "metrics.jsonl").exists() else 0


def entries_of(ledger: Path) -> list[dict[str, object]]:
    with Ledger.open(ledger) as book:
        return [json.loads(body) for _, body, _ in book.entries()]


def rounds_in(ledger: Path, kind: str) -> list[object]:
    """The rounds that a node has charged itself (reserve), or has answered (commit)."""
    return [entry["round"] for entry in entries_of(ledger) if entry["kind"] == kind]


def agree(server: Path, run: Path, nodes: Mapping[str, Path]) -> None:
    """Both sides' ledgers are whole and tell of one run: every node has charged all rounds up to
    the last in which it was asked, the server all of them, and nobody is over budget.
    """
    assert audit(str(server), runs=[str(run)]).ok
    with Ledger.open(server) as book:
        (entered,) = book.state.runs.values()
    for client, ledger in nodes.items():
        assert audit(str(ledger)).ok
        with Ledger.open(ledger) as book:
            (row,) = book.balances().rows()
        assert row["client"] == client
        assert row["spent"] + row["reserved"] <= row["budget"] + 1e-9
        assert {one["run"] for one in entries_of(ledger) if "run" in one} == {entered.id}
        charged, answered = rounds_in(ledger, "reserve"), rounds_in(ledger, "commit")
        assert charged == list(range(len(charged)))
        assert set(charged) <= set(entered.rounds)
        assert answered == sorted(set(answered))
        assert set(answered) <= set(charged)


def alive(pid: int) -> bool:
    """Whether a process is at work: one that ended and that nobody has asked about is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
