"""A grid in this process: nodes are functions, time is a number, and every fault can be ordered.

Unless told otherwise, messages go through Flower's own packing both ways, so what arrives is what a
SuperLink would bring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedspend.client.answering import ServersAccount
from fedspend.client.contribution import Contribution
from fedspend.client.state import MemoryStates, States
from fedspend.engines.base import Elsewhere, Patience, Workload
from fedspend.engines.flower.engine import FlowerEngine
from fedspend.engines.flower.line import Clock
from fedspend.engines.flower.wire import HELLO, LOOK, TASK, read_answer, read_task, sent_content
from fedspend.engines.local import local
from fedspend.flower.node import Node, node_of

SERVER = 1


class Stopwatch(Clock):
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(seconds, 1e-3)


@dataclass(frozen=True)
class Fault:
    """What happens to a client's answers. `times` is how often, from its first task on."""

    drop: bool = False
    delay: float = 0.0
    twice: bool = False
    error: bool = False  # Flower's own error reply
    change: Callable[[RecordDict], RecordDict] | None = None
    times: float = np.inf
    rounds: tuple[int, ...] | None = None  # counted from 0; None: all


def edited(change: Callable[[Contribution], Contribution], bits: int | None = None) -> Fault:
    """A node that sends another contribution than it should."""

    def changed(content: RecordDict) -> RecordDict:
        return sent_content(change(read_answer(content)).to_bytes(bits))

    return Fault(change=changed)


def cut(content: RecordDict) -> RecordDict:
    """The last number of the vector is lost on the way."""
    array = next(iter(content["fedspend.arrays"].values()))
    object.__setattr__(array, "data", array.data[:-3])
    return content


@dataclass
class Place:
    """A connected node."""

    node: Node
    key: bytes = b""
    tasks: int = 0


def travelled(message: Message, weighed: Callable[[int], None] = lambda _: None) -> Message:
    """The message as it comes out at the other end of Flower's packing; `weighed` is told how many
    bytes that took.
    """
    with no_object_id_recompute():
        objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        weighed(sum(map(len, objects.values())))
        arrived = inflate_object_from_contents(message.object_id, objects)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


@dataclass
class InProcessGrid(Grid):
    """`faults` are by client. `before_pull` is called each time replies are asked for."""

    places: dict[int, Place]
    clock: Stopwatch = field(default_factory=Stopwatch)
    faults: Mapping[str, Fault] = field(default_factory=dict)
    broken: Callable[[str], None] = lambda _method: None  # may raise
    extra: list[Message] = field(default_factory=list)  # delivered without being asked for
    packed: bool = True  # as between machines; not where there are very many
    sent: list[tuple[str, int, str]] = field(default_factory=list)  # kind, node, message
    slow: Mapping[str, float] = field(default_factory=dict)  # seconds to an introduction, by client
    most_held: int = 0
    carried: int = 0  # bytes, if messages are packed

    def __post_init__(self) -> None:
        # what Flower sets in the process of an app
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 0, SERVER
        self._ids = (f"message-{n}" for n in itertools.count())
        self._waiting: dict[str, tuple[Message, float]] = {}

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:
        return None

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: object, **__: object) -> Iterable[Message]:
        raise AssertionError("send_and_receive sleeps for three seconds at a time")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.places)

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.broken("get_nodes")
        return [NodeInfo(node_id=node, public_key=place.key) for node, place in self.places.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.broken("push_messages")
        ids = []
        for message in messages:
            name = next(self._ids)
            message.metadata.__dict__["_message_id"] = name
            self._waiting[name] = (message, self.clock.now())
            self.sent.append((message.metadata.message_type, message.metadata.dst_node_id, name))
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.broken("pull_messages")
        found, self.extra = self.extra, []
        for name in message_ids:
            if name in self._waiting and self.clock.now() >= self._waiting[name][1]:
                found += self._answered(name)
        self.most_held = max(self.most_held, len(found))
        return found

    def _answered(self, name: str) -> list[Message]:
        """The replies to a message that has reached its node by now."""
        asked, due = self._waiting[name]
        place = self.places.get(asked.metadata.dst_node_id)
        if place is None:  # its node is gone
            return []
        asked = travelled(asked, self._weigh) if self.packed else asked
        if asked.metadata.message_type == HELLO:
            if self.clock.now() < due + self.slow.get(place.node.client, 0.0):
                return []
            del self._waiting[name]
            return [self._reply(asked, place.node.hello(asked.content))]
        if asked.metadata.message_type == LOOK:
            del self._waiting[name]
            return [self._reply(asked, place.node.look(asked.content))]
        assert asked.metadata.message_type == TASK
        fault = self._fault(place, asked.content)
        if fault.delay and self.clock.now() < due + fault.delay:
            return []
        del self._waiting[name]
        place.tasks += 1
        content = place.node.task(asked.content)
        if fault.drop:
            return []
        if fault.error:
            return [Message(Error(1, "a fault"), reply_to=asked)]
        content = fault.change(content) if fault.change else content
        reply = self._reply(asked, content)
        return [reply, reply] if fault.twice else [reply]

    def _fault(self, place: Place, content: RecordDict) -> Fault:
        found = self.faults.get(place.node.client)
        if found is None:
            return Fault()
        off = place.tasks >= found.times or (
            found.rounds and read_task(content).shared.round not in found.rounds
        )
        return Fault() if off else found

    def _reply(self, asked: Message, content: RecordDict) -> Message:
        reply = Message(content, reply_to=asked)
        reply.metadata.__dict__["_message_id"] = next(self._ids)
        return travelled(reply, self._weigh) if self.packed else reply

    def _weigh(self, size: int) -> None:
        self.carried += size


def unasked(node: int, content: RecordDict, reply_to: str = "nobody") -> Message:
    """A message that nobody waits for."""
    about = Metadata(
        run_id=0,
        message_id="unasked",
        src_node_id=node,
        dst_node_id=SERVER,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=0.0,
        ttl=1e9,
        message_type=TASK,
    )
    return make_message(metadata=about, content=content)


def nodes_of(work: Workload, states: Callable[[], States] = MemoryStates) -> dict[int, Place]:
    """A node for every client, with its own rows and states; ids as if by chance. One engine does
    everybody's work, as it can: it does not mix clients. They keep no accounts (`test_approval`
    has nodes that do).
    """
    engine = local(work, workers=0)
    return {
        int(number): Place(node_of(client, work, engine, states(), ServersAccount()))
        for number, client in zip(
            np.random.default_rng(4).permutation(10**6)[: len(work.shards)] + 100,
            work.shards,
            strict=True,
        )
    }


class Forgetful(MemoryStates):
    """For tests that ask for the same round again."""

    def read(self, client: str) -> None:  # noqa: ARG002
        return None


def grid_of(
    work: Workload, states: Callable[[], States] = MemoryStates, **settings: object
) -> InProcessGrid:
    return InProcessGrid(nodes_of(work, states), **settings)


def engine_on(work: Workload, grid: InProcessGrid, **patience: object) -> FlowerEngine:
    there = Elsewhere(grid, Patience(**patience))
    return FlowerEngine(replace(work, elsewhere=there), grid.clock)
