"""A run directory: everything a training run leaves behind, safe against a kill at any instant.

Guarantee: `metrics.jsonl`, the checkpoint and the model of a resumed seeded run are byte for byte
those of an uninterrupted one. A release is on disk before anything uses it. The ledger decides
which rounds were reserved and committed; a reserved round whose release is lost stays charged.
Every file is tied to the ledger by its digest, and a run goes on only from the files that the
ledger has seen last: not from a copy, not from older ones, and not without them.

`stored.files` lists the files and which of them may be published.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.files import (
    append_line,
    as_line,
    make_folder,
    one_at_a_time,
    remove_unfinished,
    write_whole,
)
from fedspend.basics.tensors import REMEDY, seal
from fedspend.configuration.sections import SECTIONS
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import (
    RunAccount,
    check_same,
    check_same_project,
    is_inside,
    locate,
    stored_location,
)
from fedspend.ledger.default import VARIABLE
from fedspend.ledger.participants import check_planned_on
from fedspend.ledger.storage import is_url
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.checkpoints import (
    StoredRelease,
    StoredState,
    pack_kept,
    pack_state,
    read_kept,
    read_state,
)
from fedspend.runs.standing import check_standing
from fedspend.server.mechanism import NO_MEMORY, Memory
from fedspend.server.rounds import Kept, TrainingState
from fedspend.stored.files import (
    CERTIFICATE,
    CHECKPOINT,
    FILES,
    HOLD_OUT,
    METRICS,
    MODEL,
    PLAN,
    RELEASE,
    RUN,
    RunFile,
)
from fedspend.stored.run import MetricsLine, StoredRun

if TYPE_CHECKING:
    from fedspend.runs.run_ledger import RunLedger


FIRST = (RUN, PLAN, CERTIFICATE)  # written before the first round, and not changed by rounds


# settings that runs on arrays did not name in 0.2.0, and may go on with
_ONCE_UNNAMED = {
    *(f"train.{key}" for key in ("local_steps", "local_epochs", "momentum", "tail_average")),
    *(f"train.{key}" for key in ("server_lr", "server_momentum")),
    *(f"privacy.{key}" for key in ("clipping", "noise", "bits", "randomness")),
    "engine.name",
}


class RunDirectory:
    """The store that `rounds.run_rounds` writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stored = folder, StoredRun(folder)
        # None while nothing is charged: without a plan, or before it is admitted
        self.account: RunAccount | None = None
        # digests of what was written last: metrics so far, checkpoint, model
        self._lines = hashlib.sha256()
        self._state: str | None = None
        self._model: str | None = None

    # --- opening ---

    @classmethod
    def create(
        cls, folder: Path, settings: dict[str, Any], secret: bytes | None = None
    ) -> RunDirectory:
        """Start a new run in an empty or new folder. The key of its hold-out, if it has one, comes
        first: a run that has begun must not be without it.
        """
        refuse_taken(folder)
        make_folder(folder, private=True)
        folder.chmod(0o700)  # it may have been there, empty
        made = cls(folder)
        if secret is not None:
            made._write(HOLD_OUT, secret)
        made._write(RUN, _json(settings))
        return made

    @classmethod
    def resume(cls, folder: Path, settings: dict[str, Any]) -> RunDirectory:
        """Open an interrupted run; it must have been started with the same settings."""
        found = cls(folder)
        facts = found.stored.facts()
        then, now = facts.settings, settings["settings"]
        # A replanned run continues under another plan. The accountant matters only while a plan is
        # made; its default is another one in older versions.
        free = {"plan", "privacy.accountant", "train.aggregation"}  # kept runs knew the mean alone
        if "train.momentum" not in then:  # a run on arrays of 0.2.0, which did not name them
            free |= _ONCE_UNNAMED - set(then)
        for key in sorted((set(then) | set(now)) - free):
            if then.get(key) != now.get(key) and not _is_all_rounds(key, then, now):
                raise InvalidInput(
                    f"{folder} holds another run: {key} was {then.get(key)!r} and is now "
                    f"{now.get(key)!r}; {_to_keep(key, then.get(key))}choose another folder"
                )
        if then.get("plan") != now.get("plan"):
            changed = facts.content | {"settings": then | {"plan": now["plan"]}}
            found._write(RUN, _json(changed))
        return found

    def _write(self, file: RunFile, body: bytes) -> None:
        write_whole(file.of(self.folder), body, private=file.private)

    # --- the account ---

    def ledger_location(self, asked: str | None) -> str | None:
        """The ledger that this run charges, and no other; None for a run without a plan."""
        named = self.stored.facts().ledger
        if named is None:
            return None
        if asked is not None:
            check_same(asked, named.location, self.folder)
        return asked or locate(named.location, self.folder)

    def ledger_as_given(self) -> str | None:
        """The ledger of this user, if the run charges it: with a password that is not stored here,
        if the environment has one.
        """
        named, given = self.stored.facts().ledger, os.environ.get(VARIABLE, "")
        if named is None or not is_url(given):
            return None
        return given if stored_location(given, self.folder) == named.location else None

    def ledger_project(self, asked: str) -> str:
        """The project whose accounts this run charges, and no other."""
        named = self.stored.facts().ledger
        if named is None:
            return asked
        check_same_project(asked, named.project, self.folder)
        return named.project

    @property
    def run_id(self) -> str:
        """The run's name in the ledger; empty for a run without a plan."""
        named = self.stored.facts().ledger
        return "" if named is None else named.run

    def account_in(self, book: Ledger, *, moved: bool = False) -> RunAccount:
        """This run's account in `book`, which must be the ledger that the run has seen before; and
        this must be the run's directory, as the ledger has seen it last. The user may say that it
        was `moved` here, which is not entered yet.
        """
        account = RunAccount(book, self.run_id, self.folder)
        account.check_head()
        if not moved:
            account.check_place()
        self.check_last(account)
        return account

    def check_last(self, account: RunAccount) -> None:
        """Refuse checkpoint and release that are not the last ones."""
        run = account.run if account.admitted else None
        check_standing(self.folder, run, self._stored_state(), self._stored_release())

    @property
    def keeps_ledger(self) -> bool:
        """Whether the run's ledger is in its own directory, and is copied with it."""
        named = self.stored.facts().ledger
        return named is not None and is_inside(named.location)

    @property
    def _sealed(self) -> bool:
        return self.stored.facts().sealed

    def _stored_state(self) -> StoredState | None:
        return read_state(self.folder, sealed=self._sealed)

    def _stored_release(self) -> StoredRelease | None:
        return read_kept(self.folder, sealed=self._sealed)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that do not change while rounds are played."""
        found = {}
        for file in FIRST:
            path = file.of(self.folder)
            try:
                found[file.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise InvalidInput(f"{path} cannot be read ({error.strerror}); {REMEDY}") from None
        return found

    def check_files(self, account: RunAccount) -> None:
        """Refuse files that are not those that the run was admitted with."""
        now = self.digests()
        for name, then in account.run.files.items():
            if now.get(name) != then:
                raise Refused(
                    f"{self.folder / name} was changed since the run was admitted; restore it from "
                    "a copy, or start a new run"
                )

    @contextmanager
    def charging(
        self, plan: AnyPlan | None, ledger: RunLedger, *, simulation: bool, stops: bool = False
    ) -> Iterator[None]:
        """Open the run's account, with the plan admitted, for as long as the rounds are played."""
        if plan is None:
            yield
            return
        location = self.ledger_location(ledger.asked)
        if location is None:
            raise Refused(
                f"{RUN.of(self.folder)} names no ledger, so its rounds cannot be charged; start a "
                "new run"
            )
        with one_at_a_time(self.folder):
            book = ledger.to_charge(location, self.stored, simulation=simulation)
            account = self.account_in(book)
            check_planned_on(book, plan)
            proposal = replace(plan.proposal(), stops=stops)
            account.admit(proposal, self.digests(), simulation=simulation)
            self.check_files(account)
            for file in FILES:
                remove_unfinished(file.of(self.folder))
            self.account = account
            try:
                yield
            finally:
                self.account = None

    def finish(self, *, stopped: bool = False) -> None:
        """All rounds are done, or the run's own rule has stopped it, and the model is written:
        close the run in the ledger.
        """
        if self.account is not None:
            left = {CHECKPOINT.name: self._state, MODEL.name: self._model}
            ending = {name: digest for name, digest in left.items() if digest is not None}
            self.account.finish(ending, stopped=stopped)

    # --- the store of the rounds ---

    def reserve(self, round: int) -> None:
        if self.account is not None:
            self.account.reserve(round, self._state)

    def was_reserved(self, round: int) -> bool:
        return self.account is not None and self.account.was_reserved(round)

    def keep(self, round: int, kept: Kept) -> None:
        """Write release and memory as one file, so a kill leaves both or neither."""
        body, digest = pack_kept(round, kept)
        self._write(RELEASE, body)
        if self.account is not None:
            self.account.commit(round, kept.release, digest)

    def kept(self, round: int) -> Kept | None:
        found = self._stored_release()
        if found is None or found.round != round:
            return None
        if self.account is not None:
            # a kill may have come between the release and its ledger entry
            self.account.commit(round, found.kept.release, found.digest)
        return found.kept

    def has_release(self, round: int) -> bool:
        """Whether the release of a round is stored, whether or not the ledger has heard of it."""
        found = self._stored_release()
        return found is not None and found.round == round

    def memory(self) -> Memory | None:
        """The memory after the last release; an older copy of the file is not accepted."""
        found = self._stored_release()
        if self._released_after(-1 if found is None else found.round):
            return None
        return NO_MEMORY if found is None else found.kept.memory

    def _released_after(self, round: int) -> bool:
        """Whether there was a release after that of `round`; lost rounds have no release."""
        if self.account is None:
            found = self._stored_state()
            return found is not None and found.state.done > round + 1
        return any(
            state == "committed" and number > round
            for number, state in self.account.run.rounds.items()
        )

    def lose(self, round: int) -> None:
        if self.account is not None:
            self.account.lose(round)

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None:  # noqa: ARG002
        text = as_line(line)
        append_line(METRICS.of(self.folder), text)
        self._lines.update(text)
        body, self._state = pack_state(state, self._lines.hexdigest())
        self._write(CHECKPOINT, body)

    def training_state(self) -> TrainingState | None:
        """The training state, or None if no round was committed."""
        found = self._stored_state()
        self._state = None if found is None else found.digest
        return None if found is None else found.state

    # --- what people read ---

    def metrics(self) -> list[MetricsLine]:
        return self.stored.metrics()

    def check_metrics(self, rounds: int) -> None:
        """Refuse lines that are not those of the checkpoint's rounds."""
        lines, found = self._lines_of(rounds), self._stored_state()
        told = [line["round"] for line in lines] == list(range(1, rounds + 1))
        known = None if found is None else found.metrics
        if not told or known not in (None, hashlib.sha256(_joined(lines)).hexdigest()):
            raise InvalidInput(
                f"{METRICS.of(self.folder)} is damaged: it does not tell the {rounds} rounds of "
                f"{CHECKPOINT}; {REMEDY}"
            )

    def keep_metrics(self, rounds: int) -> None:
        """Drop lines of rounds that were not committed: those rounds are repeated."""
        self.check_metrics(rounds)
        body = _joined(self._lines_of(rounds))
        self._lines = hashlib.sha256(body)
        self._write(METRICS, body)

    def _lines_of(self, rounds: int) -> list[MetricsLine]:
        return [line for line in self.metrics() if line["round"] <= rounds]

    def certified(self, plan_hash: str) -> bool:
        """Whether the plan with this hash was verified when the run began."""
        certificate = self.stored.certificate()
        return certificate is not None and certificate.get("plan_hash") == plan_hash

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None:
        plan.save(PLAN.of(self.folder))
        self._write(CERTIFICATE, _json(verdict))

    def write_model(
        self, tensors: dict[str, npt.NDArray[np.float32]], about: dict[str, Any]
    ) -> None:
        # the order of the parameters, so that the model can be compared with the checkpoint
        frozen = about.get("frozen", ())
        order = [name for name in tensors if name not in frozen]
        body, self._model = seal(tensors, about | {"parameters": order})
        self._write(MODEL, body)

    def drop_model(self) -> None:
        MODEL.of(self.folder).unlink(missing_ok=True)


def _joined(lines: list[MetricsLine]) -> bytes:
    return b"".join(map(as_line, lines))


def refuse_taken(folder: Path) -> None:
    """A new run begins in a new or empty folder."""
    if not folder.exists() or (folder.is_dir() and all(map(_leftover, folder.iterdir()))):
        return
    hint = (
        "use --resume to continue it, or choose another folder"
        if StoredRun(folder).begun
        else "choose another folder"
    )
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file, and a run needs a folder; choose another name")
    raise InvalidInput(f"{folder} is not empty; {hint}")


def _is_all_rounds(key: str, then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether it is a tail of all rounds, then and now: version 0.2.0 took longer ones, too."""
    rounds = now.get("train.rounds")
    return key == "train.tail_average" and now[key] == rounds and then.get(key, 1) > rounds


def _to_keep(key: str, then: Any) -> str:
    """How to pass what a setting was when the run began, if a command line can."""
    section, _, name = key.partition(".")
    if name not in SECTIONS.get(section, {}) or key == "votes.rows":  # of which a digest is kept
        return ""
    if then is None or isinstance(then, dict):
        return ""
    value = then if isinstance(then, str) else json.dumps(then)
    return f"add --set {shlex.quote(f'{key}={value}')} to go on with it, or "


def _leftover(path: Path) -> bool:
    """Whether a kill left this behind before the run began: a temporary file of `write_whole`, or
    the key of a hold-out.
    """
    return path.name.startswith((f".{RUN}.", f".{HOLD_OUT}.")) or (
        path.name == HOLD_OUT.name and not StoredRun(path.parent).begun
    )


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
