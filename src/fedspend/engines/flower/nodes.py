"""Which machine is which client.

Guarantee: a node stands for a client only if it said so itself and, where the roster has keys, if
Flower has authenticated it by that client's key. Nodes with unknown keys, two nodes for one client,
and nodes of another version, model or kind of randomness, or to which the numbers of a row mean
something else than to the server or to another node, stand for nobody, and the reason is given.
Node ids are Flower's and change; nothing is remembered by them longer than a node is connected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flwr.app import Message

import fedspend
from fedspend.basics.words import counted
from fedspend.data.meaning import Agreement
from fedspend.engines.flower.line import Line
from fedspend.engines.flower.wire import (
    HELLO,
    REASONS,
    Hello,
    Introduction,
    Refusal,
    greeting_content,
    read_introduction,
)
from fedspend.errors import InvalidInput

# Seconds: how long an introduction is waited for, and after how many a node is greeted again. One
# that was killed while it was asked comes back as the same node, and has forgotten the question.
_PATIENCE, _AGAIN = 120.0, 40.0
_POLL = 0.5


class Nodes:
    """The roster, and where on the grid each client is."""

    def __init__(
        self,
        line: Line,
        roster: Sequence[str],
        hello: Hello,
        keys: Mapping[str, str] | None,
        certificates: Mapping[str, str] | None = None,
        meaning: str = "",
    ) -> None:
        """`certificates` are those that silos have handed in already; `meaning` says what rows
        mean to the server.
        """
        self._meaning = Agreement(meaning)
        self._certificates = certificates
        self.handed_in: dict[str, str] = {}
        self._line, self._roster, self._hello = line, tuple(roster), hello
        self._owner = None if keys is None else {key: client for client, key in keys.items()}
        self._greeted: dict[int, float] = {}  # when
        self._sent: dict[str, int] = {}  # message -> node
        self._at: dict[str, int] = {}  # client -> node
        self._connected: dict[int, bytes] = {}
        self.problems: dict[int, str] = {}  # node -> why it stands for nobody
        self._differing: set[int] = set()  # of these, to whom rows mean something else

    def at(self, client: str) -> int | None:
        """The client's node, if it is connected and has introduced itself."""
        return self._at.get(client)

    @property
    def reachable(self) -> int:
        return len(self._at)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(client for client in self._roster if client not in self._at)

    @property
    def unsettled(self) -> bool:
        """Whether a client is missing, or a connected node has not said yet who it is."""
        return bool(self.missing or self._sent)

    def refresh(self) -> None:
        """See who is connected, greet new nodes, and read the introductions that have come."""
        self._connected = self._line.nodes()
        gone = [client for client, node in self._at.items() if node not in self._connected]
        for client in gone:
            del self._at[client]
            self._meaning.forget(client)
        if gone:  # who only differed from one of them is asked again
            self.problems = {
                node: why for node, why in self.problems.items() if node not in self._differing
            }
            self._differing.clear()
        for known in (self._greeted, self.problems):
            for node in [node for node in known if node not in self._connected]:
                del known[node]
        self._sent = {one: node for one, node in self._sent.items() if node in self._connected}
        self._greet()
        for reply in self._line.replies(list(self._sent)):
            self._introduced(reply)

    def wait_for(self, wanted: int, seconds: float) -> None:
        """Wait until so many clients are reachable, but not longer than this."""
        end = self._line.clock.now() + seconds
        self.refresh()
        while self.reachable < wanted and self._line.clock.now() < end:
            self._line.clock.sleep(_POLL)
            self.refresh()

    def wait_for_all(self, seconds: float) -> None:
        """Wait for the whole roster. Refuses to begin unless every client is there, once, and
        nobody else.
        """
        end = self._line.clock.now() + seconds
        self.refresh()
        while self.unsettled and not self.problems and self._line.clock.now() < end:
            self._line.clock.sleep(_POLL)
            self.refresh()
        for problem in self.problems.values():
            raise InvalidInput(f"{problem}; the run did not begin")
        if self.missing:
            raise InvalidInput(
                f"no node for client {self.missing[0]!r} ({counted(len(self.missing), 'client')} "
                f"missing) within {seconds:g} seconds; start it, or wait longer (engine.deadline); "
                "the run did not begin"
            )

    def _greet(self) -> None:
        now = self._line.clock.now()
        waiting = {*self._sent.values()}
        new = [
            node
            for node in self._connected
            if node not in self.problems
            and node not in self._at.values()
            and not (node in waiting and now < self._greeted[node] + _AGAIN)
        ]
        for node in [node for node in new if self._stranger(node)]:
            new.remove(node)
            self.problems[node] = (
                f"node {node} is connected with a key that is not in the file of keys "
                "(engine.keys); add it there, or disconnect the node"
            )
        content = greeting_content(self._hello)
        sent = self._line.send([(node, content) for node in new], HELLO, _PATIENCE)
        self._sent |= dict(zip(sent, new, strict=True))
        self._greeted |= dict.fromkeys(new, now)

    def _stranger(self, node: int) -> bool:
        return self._owner is not None and self._key(node) not in self._owner

    def _key(self, node: int) -> str:
        return self._connected[node].decode("ascii", "replace").strip()

    def _introduced(self, reply: Message) -> None:
        node = self._sent.pop(reply.metadata.reply_to_message_id, None)
        if node is None or node not in self._connected:
            return
        if reply.has_error():  # it may have been busy or restarted: it is greeted again
            return
        # A slow one was greeted more than once: its other introductions say nothing new.
        self._sent = {one: other for one, other in self._sent.items() if other != node}
        try:
            said = read_introduction(reply.content)
        except InvalidInput as error:
            self.problems[node] = f"node {node} did not introduce itself ({error})"
            return
        if isinstance(said, Refusal):
            self.problems[node] = f"node {node} takes no part: {REASONS[said.reason]}"
            return
        problem = self._problem(node, said)
        if problem:
            self.problems[node] = problem
        else:
            self._at[said.client] = node
            self.handed_in[said.client] = said.certificate
            self._meaning.heard(said.client, said.meaning)

    def _other_model(self, said: Introduction) -> str:
        """Why a node does not train what this run trains; empty if it does."""
        if said.parameters != self._hello.parameters:
            return (
                f"has a model of {said.parameters:,} numbers, and this run one of "
                f"{self._hello.parameters:,}; use the same model settings"
            )
        if said.model != self._hello.model:
            return (
                "has a model with other layers or other frozen weights; use the same model "
                "settings and files"
            )
        if said.loss != self._hello.loss:
            return (
                f"trains for loss {said.loss!r}, and this run for {self._hello.loss!r}; use the "
                "same task settings"
            )
        return ""

    def _problem(self, node: int, said: Introduction) -> str:
        who = f"node {node}, which says it is client {said.client!r},"
        if said.client not in self._roster:
            return f"{who} is not on the roster; correct its client, or give it a budget"
        if self._owner is not None and self._owner[self._key(node)] != said.client:
            return f"{who} has the key of client {self._owner[self._key(node)]!r}; correct one"
        if said.client in self._at:
            return f"{who} is there twice (the other is node {self._at[said.client]}); stop one"
        if said.version != fedspend.__version__:
            return (
                f"{who} has fedspend {said.version}, and this is {fedspend.__version__}; install "
                "the same version"
            )
        if self._certificates and self._certificates.get(said.client) != said.certificate:
            return f"{who} holds another certificate than the one in the plan; start another run"
        # before the model, whose size follows from it
        if other := self._meaning.difference(said.meaning):
            self._differing.add(node)
            return f"{who} {other}"
        # while terms are offered, nobody knows the model yet
        if not self._hello.silo_offer and (wrong := self._other_model(said)):
            return f"{who} {wrong}"
        if said.simulation and not self._hello.simulation:
            return (
                f"{who} draws from a seed, which protects nobody; set privacy.randomness = "
                '"os" at the node'
            )
        return ""
