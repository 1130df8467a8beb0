"""The engine on Flower's grid: tasks go out as messages, and answers are taken as they come.

Guarantee: an answer counts for the client whose node was asked, whatever it says itself: nobody can
answer, or spoil an answer, in another's name. Answers are read one at a time and not held, except
in simulations, where they are added up in the order of the cohort, so that a seeded run ends with
the same bits as on one machine. A client that has not answered by the deadline is lost, and the
server tops up its noise. If Flower itself fails, the round stops; it stays charged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict

from fedspend.client.contribution import Contribution, Lost, Reply
from fedspend.client.task import ClientTask
from fedspend.engines.base import Elsewhere, Patience, Workload
from fedspend.engines.flower.line import Clock, Line
from fedspend.engines.flower.nodes import Nodes
from fedspend.engines.flower.wire import (
    REASONS,
    TASK,
    Hello,
    Refusal,
    arrays_of,
    read_answer,
    size_of,
    task_content,
)
from fedspend.engines.table import NO_GRID
from fedspend.errors import InvalidInput, Refused
from fedspend.models.checking import check_module
from fedspend.models.flat import fingerprint, parameter_count

LOG = logging.getLogger("fedspend.flower")
# Polling: soon after something came, less often when nothing does.
_SHORTEST, _LONGEST, _SLOWER = 0.05, 1.0, 1.5
_PAUSE = 5.0  # seconds before a node that failed or is not connected is asked again
# Seconds that a resumed run has for nodes beyond its quorum: machines that start together are not
# ready together, and a client that is missed in a round has paid for it.
_TOGETHER = 60.0


@dataclass
class Traffic:
    """What one round took. Bytes are those of the content, without Flower's own headers."""

    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    tasks: int = 0  # that were sent, again or not
    answers: int = 0  # that came


class FlowerEngine:
    name = "flower"
    outside = True

    def __init__(self, work: Workload, clock: Clock | None = None) -> None:
        """Finds the nodes of all clients. A run that is resumed looks for enough of them before
        each round, and one that is over asks nobody.
        """
        check_module(work.module)
        there = self._there = _elsewhere(work)
        self._simulation = work.randomness.simulation
        self._clients = tuple(work.shards)
        if there.keys is None and not self._simulation:
            raise InvalidInput(
                "a real run needs the nodes' public keys: name a file of keys with engine.keys"
            )
        parameters = parameter_count(work.module)
        if not (there.plan or there.silo_plan or self._simulation):
            raise InvalidInput(
                "a real run needs slices that its clients have approved: make them with fedspend "
                "flower slices, and name their folder with engine.slices"
            )
        hello = Hello(
            self._simulation,
            parameters,
            work.size or parameters,
            there.plan,
            work.task.terms,
            fingerprint(work.module),
            silo_plan=there.silo_plan,
        )
        self._line = Line(there.grid, there.patience.deadline, clock)
        self._nodes = Nodes(
            self._line, self._clients, hello, there.keys, there.certificates, there.meaning
        )
        self.traffic = Traffic()
        self._resumed = there.begun  # and no round has been played since
        if not there.begun:
            self._nodes.wait_for_all(there.patience.deadline)

    def reach(self) -> None:
        """Before a round is charged: enough of the roster must be connected."""
        patience = self._there.patience
        self._nodes.wait_for(self._wanted, patience.deadline)
        if self._resumed and self._nodes.reachable >= self._wanted:
            self._resumed = False
            self._nodes.wait_for(len(self._clients), min(_TOGETHER, patience.deadline))
        for problem in self._nodes.problems.values():
            LOG.warning("%s", problem)
        self._check_quorum()

    @property
    def _wanted(self) -> int:
        return math.ceil(self._there.patience.quorum * len(self._clients))

    def _check_quorum(self) -> None:
        """Counts who is connected, which says nothing about who is asked in a round."""
        there, wanted = self._nodes.reachable, self._wanted
        if there >= wanted:
            return
        found = f"{there} of {len(self._clients)} clients are connected, the quorum is {wanted}"
        if self._there.patience.without_quorum == "stop":
            raise Refused(
                f"{found}; start their nodes and resume the run, or lower engine.quorum; the next "
                "round was not begun"
            )
        LOG.warning("%s; going on without them", found)

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        exchange = _Exchange(tasks, self._line, self._nodes, self._there.patience)
        replies = exchange.replies()
        yield from in_order(tasks, replies) if self._simulation else replies
        if tasks and not exchange.heard:
            # Nobody answered: is the federation there? That does not depend on who was asked.
            self._nodes.refresh()
            self._check_quorum()
        self.traffic = exchange.traffic
        took = self.carried()
        LOG.info(
            "answers took %.1f seconds; %s bytes to a client, %s bytes back",
            *(took["answer_seconds"], f"{took['task_bytes']:,}", f"{took['answer_bytes']:,}"),
        )

    def carried(self) -> dict[str, float]:
        """Does not say how many were asked: that is the cohort's secret."""
        took = self.traffic
        return {
            "answer_seconds": round(took.seconds, 3),
            "task_bytes": took.sent // max(1, took.tasks),
            "answer_bytes": took.received // max(1, took.answers),
        }

    def close(self) -> None:
        """The grid belongs to whoever made it."""


def _elsewhere(work: Workload) -> Elsewhere:
    if work.elsewhere is None:
        raise InvalidInput(NO_GRID)
    return work.elsewhere


def in_order(
    tasks: Sequence[ClientTask], replies: Iterable[Reply | Lost]
) -> Iterator[Reply | Lost]:
    """The same replies, in the order of the tasks: one that comes early waits for those before it.
    Further replies of the same client follow its first one; those of strangers pass at once.
    """
    turns, held = [task.client for task in tasks], dict[str, list[Reply | Lost]]()
    to_come, passed = set(turns), 0
    for reply in replies:
        client = reply.client if isinstance(reply, Lost) else reply.contribution.client
        if client not in to_come:
            yield reply
            continue
        held.setdefault(client, []).append(reply)
        while passed < len(turns) and turns[passed] in held:
            to_come.remove(turns[passed])
            yield from held.pop(turns[passed])
            passed += 1
    for client in turns[passed:]:
        yield from held.pop(client, ())


@dataclass
class _Asked:
    """Where a client stands in this round."""

    attempts: int = 0
    again: float = 0.0  # when it is asked next
    why: str = "its node is not connected"


class _Exchange:
    """One round's messages."""

    def __init__(
        self, tasks: Sequence[ClientTask], line: Line, nodes: Nodes, patience: Patience
    ) -> None:
        self._tasks = {task.client: task for task in tasks}
        self._line, self._nodes, self._patience = line, nodes, patience
        self._begun = line.clock.now()
        self._end = self._begun + patience.deadline
        self._asked = {client: _Asked() for client in self._tasks}  # who has not answered
        self._sent: dict[str, tuple[str, int]] = {}  # message -> client, node
        self._open: dict[str, None] = {}  # messages without a reply
        self._arrays = arrays_of(tasks[0]) if tasks else None
        self.heard = False
        self.traffic = Traffic()

    def replies(self) -> Iterator[Reply | Lost]:
        """Everything that comes until all have answered or the deadline is over."""
        pause, clock = _SHORTEST, self._line.clock
        while self._asked and clock.now() < self._end:
            yield from self._ask()
            pause = min(pause * _SLOWER, _LONGEST)
            numbers = next(iter(self._tasks.values())).shared.size
            for message in self._line.replies(list(self._open), numbers):
                pause = _SHORTEST
                yield from self._received(message)
            if self._asked:
                clock.sleep(max(0.0, min(pause, self._end - clock.now())))
        for client, state in self._asked.items():
            late = f"it did not answer within {self._patience.deadline:g} seconds"
            yield Lost(client, state.why or late)
        self.traffic.seconds = clock.now() - self._begun

    def _ask(self) -> Iterator[Lost]:
        """Send the task to everyone whose turn it is; give up those who had all their turns."""
        now = self._line.clock.now()
        due = [client for client, state in self._asked.items() if now >= state.again]
        if not due:
            return
        if any(self._asked[client].attempts for client in due):
            self._nodes.refresh()  # a node that was restarted may be another one
        window = self._patience.deadline / (self._patience.retries + 1)
        sending: list[tuple[str, int]] = []
        for client in due:
            state, node = self._asked[client], self._nodes.at(client)
            if state.attempts > self._patience.retries:
                yield Lost(client, state.why or f"it did not answer in {state.attempts} attempts")
                del self._asked[client]
                continue
            state.attempts += 1
            state.again = now + (window if node is not None else min(window, _PAUSE))
            if node is not None:
                state.why = ""
                sending.append((client, node))
        contents = [(node, self._content(client)) for client, node in sending]
        ids = self._line.send(contents, TASK, max(1.0, self._end - now))
        self._sent |= dict(zip(ids, sending, strict=True))
        self._open |= dict.fromkeys(ids)

    def _content(self, client: str) -> RecordDict:
        content = task_content(self._tasks[client], self._arrays)
        self.traffic.sent += size_of(content)
        self.traffic.tasks += 1
        return content

    def _received(self, message: Message) -> Iterator[Reply | Lost]:
        about = message.metadata
        client, node = self._sent.get(about.reply_to_message_id, ("", None))
        if node is None or (message.has_content() and about.src_node_id != node):
            yield _unasked(about.src_node_id, self._tasks.values())
            return
        self._open.pop(about.reply_to_message_id, None)
        if message.has_error():
            self._failed(client, f"Flower reports error {message.error.code} from its node")
            return
        self.traffic.received += size_of(message.content)
        self.traffic.answers += 1
        try:
            answer = read_answer(message.content)
        except InvalidInput as error:
            self._failed(client, str(error))
            return
        self.heard = True
        if isinstance(answer, Refusal):
            self._asked.pop(client, None)
            yield Lost(client, f"it refused: {REASONS[answer.reason]}")
        elif answer.client != client:
            self._asked.pop(client, None)
            yield Lost(client, f"its node answered as {answer.client!r}")
        else:
            task = self._tasks[client].shared
            if (answer.run, answer.round) == (task.run, task.round):
                self._asked.pop(client, None)
            else:
                self._failed(client, "it sent an answer for another round")
            yield Reply(answer)

    def _failed(self, client: str, why: str) -> None:
        """Ask again soon: nothing that can be used has come."""
        state = self._asked.get(client)
        if state is not None:
            state.why = why
            state.again = min(state.again, self._line.clock.now() + _PAUSE)


def _unasked(node: int, tasks: Iterable[ClientTask]) -> Reply:
    """A reply that counts for nobody, so that it is reported."""
    round = next((task.shared.round for task in tasks), 0)
    return Reply(Contribution(f"node {node}", round, np.zeros(0)))
