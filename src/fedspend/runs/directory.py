"""A run directory: everything a training run leaves behind, safe against a kill at any instant.

Guarantee: `metrics.jsonl`, the checkpoint and the model of a resumed seeded run are byte for byte
those of an uninterrupted one. A release is on disk before anything uses it. Which rounds were
reserved and committed is for the ledger to say; a round that was reserved and whose release is lost
stays charged.

| file | content | may be published |
|---|---|---|
| `run.json` | settings, seed, randomness, environment, ledger | no: budgets and places |
| `plan.json`, `certificate.json` | the plan and its verification | no: budgets |
| `model.safetensors` | the final model | yes: it is made of releases |
| `checkpoint.safetensors` | the state after the last round | yes: made of releases |
| `release.safetensors` | the last release, for recovery; the mechanism's memory | never |
| `ledger.db`, `ledger.db.head` | the account, unless another ledger is charged | no: budgets |
| `ledger_head.json` | the last entry of the ledger that this run has seen | yes |
| `metrics.jsonl`, `report.html` | accuracy, spending; simulation: statistics | see the report |

What clients have to remember (filter by norms: what is left of each record's budget) is theirs and
not here: on one machine it is in a folder beside the run directory, `RUN.clients`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.files import append_line, one_at_a_time, read_lines, write_whole
from fedspend.basics.tensors import pack, unpack
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import RunAccount, check_same, locate, refuse_gone
from fedspend.ledger.participants import check_planned_on
from fedspend.planning.protocol import AnyPlan, load_any_plan
from fedspend.server.mechanism import NO_MEMORY, Memory
from fedspend.server.methods.base import Release
from fedspend.server.rounds import Kept, MetricsLine, TrainingState

_MEMORY = "memory."  # names of the mechanism's memory in the file of a release


class RunDirectory:
    """The store that `rounds.run_rounds` writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # None as long as nothing is charged: without a plan, or before it is admitted
        self.account: RunAccount | None = None

    # --- opening ---

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any]) -> RunDirectory:
        """Start a new run in an empty or new folder."""
        if folder.exists() and (
            not folder.is_dir() or any(not _leftover(path) for path in folder.iterdir())
        ):
            hint = (
                "use --resume to go on with it, or choose another folder"
                if (folder / "run.json").exists()
                else "choose another folder"
            )
            raise InvalidInput(f"{folder} is not empty; {hint}")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "run.json", _json(settings))
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path, settings: dict[str, Any]) -> RunDirectory:
        """Open a run that was interrupted; it must have been started with the same settings."""
        stored = read_run(folder)
        for key in sorted(
            (set(stored["settings"]) | set(settings["settings"])) - {"plan"}
        ):  # what rounds were planned anew changes
            then, now = stored["settings"].get(key), settings["settings"].get(key)
            if then != now:
                raise InvalidInput(
                    f"{folder} holds another run: {key} was {then!r} and is now {now!r}; choose "
                    "another folder"
                )
        if stored["settings"].get("plan") != settings["settings"].get("plan"):
            stored["settings"]["plan"] = settings["settings"]["plan"]
            write_whole(folder / "run.json", _json(stored))
        return cls(folder)

    # --- the account ---

    def ledger_location(self, asked: str | None) -> str | None:
        """The ledger that this run charges; refuses another one. None for a run without a plan."""
        named = read_run(self.folder).get("ledger")
        if named is None:
            return None
        if asked is not None:
            check_same(asked, named["location"], self.folder)
        return asked or locate(named["location"], self.folder)

    @property
    def run_id(self) -> str:
        """The run's name in the ledger; empty for a run without a plan."""
        return str((read_run(self.folder).get("ledger") or {}).get("run", ""))

    def account_in(self, book: Ledger) -> RunAccount:
        """This run's line to `book`, which must be the ledger that it has seen."""
        account = RunAccount(book, read_run(self.folder)["ledger"]["run"], self.folder)
        account.check_head()
        return account

    @contextmanager
    def charging(
        self, plan: AnyPlan | None, ledger: str | None, *, simulation: bool
    ) -> Iterator[None]:
        """Open the run's account, with the plan admitted, for as long as the rounds are played."""
        if plan is None:
            yield
            return
        location = self.ledger_location(ledger)
        if location is None:
            raise Refused(
                f"{self.folder}/run.json names no ledger, so its rounds cannot be charged; start a "
                "new run"
            )
        refuse_gone(location, self.folder)
        with (
            one_at_a_time(self.folder),
            Ledger.open_or_create(location, simulation=simulation) as book,
        ):
            account = self.account_in(book)
            check_planned_on(book, plan)
            account.admit(plan.proposal(), simulation=simulation)
            self.account = account
            try:
                yield
            finally:
                self.account = None

    def finish(self) -> None:
        """All rounds are done: close the run in the ledger."""
        if self.account is not None:
            self.account.close("finished")

    def recovery(self, done: int, simulation: bool) -> str:
        """What a resumed run found, in a sentence."""
        told = "1 round is committed" if done == 1 else f"{done} rounds are committed"
        if self.account is None or not self.account.was_reserved(done):
            return told + "; no round was under way"
        if self.kept(done) is not None:
            return (
                told
                + f"; round {done + 1} was under way and its release is stored: it is used again"
            )
        if simulation:
            return (
                told + f"; round {done + 1} was under way: the simulation repeats it, charged once"
            )
        return told + (
            f"; round {done + 1} was under way and its release is lost: its budget stays spent "
            "and it is skipped"
        )

    # --- the store of the rounds ---

    def reserve(self, round: int) -> None:
        if self.account is not None:
            self.account.reserve(round)

    def was_reserved(self, round: int) -> bool:
        return self.account is not None and self.account.was_reserved(round)

    def keep(self, round: int, kept: Kept) -> None:
        """Release and memory are one file: a kill leaves both or neither."""
        about = {"round": round, "bit": kept.release.bit, "statistics": kept.statistics}
        arrays = {"update": kept.release.update} | {
            f"{_MEMORY}{name}": array for name, array in kept.memory.items()
        }
        write_whole(self.folder / "release.safetensors", pack(arrays, about))
        if self.account is not None:
            self.account.commit(round, kept.release)

    def kept(self, round: int) -> Kept | None:
        found = self._last_kept()
        if found is None or found[0] != round:
            return None
        if self.account is not None:
            # the kill may have come between the release and its entry
            self.account.commit(round, found[1].release)
        return found[1]

    def memory(self) -> Memory | None:
        """An older copy of the file is no better than none: it is not the memory of the last
        release.
        """
        found = self._last_kept()
        if self._released_after(-1 if found is None else found[0]):
            return None
        return NO_MEMORY if found is None else found[1].memory

    def _released_after(self, round: int) -> bool:
        """Whether there was a release after that of `round`; lost rounds have none."""
        if self.account is None:
            state = self.training_state()
            return state is not None and state.done > round + 1
        return any(
            state == "committed" and number > round
            for number, state in self.account.run.rounds.items()
        )

    def _last_kept(self) -> tuple[int, Kept] | None:
        """The round whose release is on disk, and the release."""
        path = self.folder / "release.safetensors"
        if not path.exists():
            return None
        arrays, about = read_tensors(path)
        memory = {
            name.removeprefix(_MEMORY): array
            for name, array in arrays.items()
            if name.startswith(_MEMORY)
        }
        return about["round"], Kept(
            Release(arrays["update"], about["bit"]), about["statistics"], memory
        )

    def lose(self, round: int) -> None:
        if self.account is not None:
            self.account.lose(round)

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None:  # noqa: ARG002
        append_line(self.folder / "metrics.jsonl", line)
        write_whole(self.folder / "checkpoint.safetensors", _checkpoint(state))

    def training_state(self) -> TrainingState | None:
        """Where the run stands, or None if no round was committed."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        arrays, about = read_tensors(path)
        return TrainingState(
            done=about["done"],
            parameters=arrays["parameters"],
            velocity=arrays["velocity"],
            tail_sum=arrays["tail_sum"],
            tail_count=about["tail_count"],
            method=about["method"],
            **({"votes": arrays["votes"]} if "votes" in arrays else {}),
        )

    # --- what people read ---

    def metrics(self) -> list[MetricsLine]:
        return read_lines(self.folder / "metrics.jsonl")

    def keep_metrics(self, rounds: int) -> None:
        """Forget lines of rounds that were not committed: they are played again."""
        lines = [line for line in self.metrics() if line["round"] <= rounds]
        body = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        write_whole(self.folder / "metrics.jsonl", body.encode())

    def certified(self, plan_hash: str) -> bool:
        """Whether the plan with this hash was verified when the run began."""
        path = self.folder / "certificate.json"
        return path.exists() and json.loads(path.read_text()).get("plan_hash") == plan_hash

    def stored_plan(self) -> AnyPlan | None:
        """The plan that this run was verified and begun with."""
        path = self.folder / "plan.json"
        return load_any_plan(path) if path.exists() else None

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None:
        plan.save(self.folder / "plan.json")
        write_whole(self.folder / "certificate.json", _json(verdict))

    def write_model(
        self, tensors: dict[str, npt.NDArray[np.float32]], about: dict[str, Any]
    ) -> None:
        write_whole(self.folder / "model.safetensors", pack(tensors, about))


def _leftover(path: Path) -> bool:
    """A temporary file of `write_whole` that a kill left behind."""
    return path.name.startswith(".run.json.")


def read_run(folder: Path) -> dict[str, Any]:
    """The settings of the run in `folder`."""
    try:
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        content["settings"].items()
    except FileNotFoundError:
        raise InvalidInput(f"{folder} holds no run: there is no run.json in it") from None
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        raise InvalidInput(f"{folder}/run.json is damaged; it is not the record of a run") from None
    found: dict[str, Any] = content
    return found


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    remedy = "restore it from a copy or start the run anew"
    try:
        body = path.read_bytes()
    except OSError:
        raise InvalidInput(f"{path} is damaged; {remedy}") from None
    return unpack(body, str(path), remedy)


def _checkpoint(state: TrainingState) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {
        "parameters": np.ascontiguousarray(state.parameters),
        "velocity": np.ascontiguousarray(state.velocity),
        "tail_sum": np.ascontiguousarray(state.tail_sum),
    }
    if state.votes.size:
        arrays["votes"] = np.ascontiguousarray(state.votes)
    return pack(
        arrays,
        {"done": state.done, "tail_count": state.tail_count, "method": state.method},
    )


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
