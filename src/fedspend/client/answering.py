"""A client's answer to a task, where the client is a machine of its own: the one way in.

Guarantee: nothing is trained for a task that is for somebody else, that the client's own account
does not allow, or that belongs to a round it has passed. A task that comes again is answered with
the bytes that were sent before: fresh noise on the same update would give some of the noise away.
What a model raises on rows is no failure: zeros are sent (`work`). If something else fails, the
round is over here, and the same task is not worked on again. What is sent was checked here too: its
length, that it is finite, and, where its norm says something, that it is within the clip.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedspend.basics.files import in_turn
from fedspend.basics.tensors import digest_of, pack, unpack
from fedspend.client.contribution import Contribution
from fedspend.client.declining import Declined
from fedspend.client.state import FolderStates, States
from fedspend.client.task import ClientTask
from fedspend.errors import InvalidInput

FORMAT, OLD_FORMAT = "fedspend answered 2", "fedspend answered 1"
_SLACK = 1 + 1e-9  # a norm that is computed again may differ in its last bits


class OwnAccount(Protocol):
    """What a client allows by its own books."""

    def join(self, plan: str) -> None:
        """A run of this plan is about to begin or go on: allow it, or raise `Declined`."""
        ...

    def admit(self, task: ClientTask) -> None:
        """Charge the task, or raise `Declined`. Called before training, and again for the same
        round only if nothing was sent in it.
        """
        ...

    def sent(self, task: ClientTask, body: bytes) -> None:
        """Note that this answer is about to be sent. Called each time it is."""
        ...


class ServersAccount:
    """A client that keeps no books of its own and relies on the server's ledger: a simulation."""

    def join(self, plan: str) -> None: ...

    def admit(self, task: ClientTask) -> None: ...

    def sent(self, task: ClientTask, body: bytes) -> None: ...


@dataclass(frozen=True)
class Answered:
    """The last answer of each run, kept by the client."""

    states: States

    def turn(self) -> AbstractContextManager[None]:
        """One task at a time: a task that comes again while it is being worked on waits for its
        answer, and does not draw noise of its own.
        """
        return (
            in_turn(self.states.folder) if isinstance(self.states, FolderStates) else nullcontext()
        )

    def before(self, task: ClientTask) -> bytes | None:
        """The answer that was sent to this very task, or None if its round has not been met."""
        run = task.shared.run
        body = self.states.read(run) if run else None
        if body is None:
            return None
        arrays, about = unpack(body, self.states.place(run), "restore it from a copy")
        round, digest, answer = about.get("round"), about.get("task"), arrays.get("answer")
        known = _DIGESTS.get(str(about.get("format")))
        sound = about.get("run") == run and answer is not None
        if known is None or not sound or type(round) is not int:
            raise InvalidInput(f"{self.states.place(run)} is damaged; restore it from a copy")
        if task.shared.round > round:
            return None
        if task.shared.round < round:
            raise Declined(
                "replayed",
                f"a task of round {task.shared.round + 1} came after round {round + 1}; the client "
                "does not go back",
            )
        if digest != known(task):
            raise Declined(
                "changed",
                f"another task came for round {round + 1}, which was answered already",
            )
        sent = bytes(np.asarray(answer, dtype=np.uint8).tobytes())
        if not sent:
            raise Declined("failed", f"the work of round {round + 1} has failed, so it is over")
        return sent

    def keep(self, task: ClientTask, answer: bytes) -> None:
        """Durable before it is sent. Runs without a name are simulations: nothing is kept."""
        if not task.shared.run:
            return
        about = {
            "format": FORMAT,
            "run": task.shared.run,
            "round": task.shared.round,
            "task": _digest(task),
        }
        body = {"answer": np.frombuffer(answer, dtype=np.uint8)}
        self.states.write(task.shared.run, pack(body, about))


def answer(
    task: ClientTask,
    client: str,
    account: OwnAccount,
    answered: Answered,
    work: Callable[[ClientTask], Contribution],
) -> bytes:
    """Check, train, shape, bound, add own noise (`work` does the last four), remember.

    Returns the contribution's bytes.
    """
    if task.client != client:
        raise Declined("client", f"a task for client {task.client!r} came to client {client!r}")
    with answered.turn():
        body = answered.before(task)
        if body is None:
            account.admit(task)
            try:
                contribution = work(task)
                check_outgoing(task, contribution)
                grid = task.shared.grid
                body = contribution.to_bytes(None if grid is None else grid.bits)
            except Exception:
                answered.keep(task, b"")  # it may have drawn noise, and must not draw any again
                raise
            answered.keep(task, body)
        account.sent(task, body)
        return body


def check_outgoing(task: ClientTask, contribution: Contribution) -> None:
    """A last look at what leaves the client; what fails here is a mistake in the code."""
    vector, shared = contribution.vector, task.shared
    if vector.shape != (shared.size,) or vector.dtype != np.float64:
        raise Declined("failed", f"the answer has shape {vector.shape}, not ({shared.size},)")
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(vector))
    # a norm that is finite is that of finite numbers; one that is not may have overflowed
    if not (math.isfinite(norm) or np.isfinite(vector).all()):
        raise Declined("failed", "the answer is not finite")
    if shared.own_deviation == 0 and task.clip_norm < np.inf:
        step = 1.0 if shared.grid is None else shared.grid.step
        if not norm * step <= task.clip_norm * _SLACK:
            raise Declined("failed", "the answer is longer than its clip")


def _digest(task: ClientTask) -> str:
    return digest_of(*task.parts())


def _old_digest(task: ClientTask) -> str:
    return hashlib.sha256(task.to_bytes()).hexdigest()


# how a kept answer names its task: one that an older version has kept is sent again, too
_DIGESTS = {FORMAT: _digest, OLD_FORMAT: _old_digest}
