"""A grid in this process whose nodes run a Flower ClientApp of any kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flower.in_process import SERVER, travelled
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Answer = Callable[[Message], Message | None]  # None: it does not come


def running(
    app: ClientApp, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Answer:
    """A node that runs an app."""
    context = Context(0, 0, dict(node_config), RecordDict(), dict(run_config))
    return lambda message: app(message, context)


@dataclass
class AppGrid(Grid):
    """`nodes` are functions from a message to its reply, by node id, and `keys` their public
    keys.
    """

    nodes: dict[int, Answer]
    keys: Mapping[int, bytes] = field(default_factory=dict)
    packed: bool = True  # as between machines
    asked: list[int] = field(default_factory=list)
    carried: int = 0  # bytes, if messages are packed

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 0, SERVER
        self._ids = (f"message-{n}" for n in itertools.count())

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:
        return None

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Iterable[Message]:
        return list(self._replies(messages))

    def _replies(self, messages: Iterable[Message]) -> Iterable[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            message.metadata.__dict__["_message_id"] = next(self._ids)
            arrived = travelled(message, self._weigh) if self.packed else message
            reply = self.nodes[node](arrived)
            if reply is None:
                continue
            reply.metadata.__dict__["_message_id"] = next(self._ids)
            yield travelled(reply, self._weigh) if self.packed else reply

    def _weigh(self, size: int) -> None:
        self.carried += size
