"""One client on its own machine: its config, its rows, its randomness, and its replies.

Guarantee: rows, randomness, model and id come from the node's own config and from nowhere else; a
message cannot change them. A message gets a contribution, an introduction or one of a few fixed
words; whatever goes wrong here, its text stays in the node's own log, since it may quote rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

import fedspend
from fedspend import models
from fedspend.budgets.identity import read_ids
from fedspend.client.answering import Answered, Declined, OwnAccount, ServersAccount, answer
from fedspend.client.contribution import Contribution, Reply
from fedspend.client.state import FolderStates, States
from fedspend.client.task import ClientTask
from fedspend.configuration.config import Config, any_config, needed
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.data.dataset import Rows, check_rows
from fedspend.engines.base import Engine, Workload
from fedspend.engines.flower.wire import (
    Hello,
    Introduction,
    Refusal,
    greeting_content,
    read_greeting,
    read_task,
    sent_content,
)
from fedspend.engines.local import local
from fedspend.errors import FedspendError, InvalidInput
from fedspend.models import features as maps
from fedspend.models.flat import parameter_count
from fedspend.noise.randomness import Randomness
from fedspend.runs.setup import model_options

LOG = logging.getLogger("fedspend.node")


@dataclass(frozen=True, eq=False)
class Node:
    """A client, ready for messages."""

    client: str
    work: Callable[[ClientTask], Contribution]
    parameters: int  # of its model
    simulation: bool
    answered: Answered
    account: OwnAccount

    def hello(self, content: RecordDict) -> RecordDict:
        """Who this is, in reply to a server's first message."""
        return self._safely(self._hello, content)

    def task(self, content: RecordDict) -> RecordDict:
        """The contribution, in reply to a task."""
        return self._safely(self._task, content)

    def _hello(self, content: RecordDict) -> RecordDict:
        said = read_greeting(Hello, content)
        if said.simulation and not self.simulation:
            raise Declined(
                "simulation", "a server whose randomness is seeded asked for this node's real rows"
            )
        me = Introduction(self.client, fedspend.__version__, self.simulation, self.parameters)
        return greeting_content(me)

    def _task(self, content: RecordDict) -> RecordDict:
        try:
            task = read_task(content)
        except InvalidInput as error:
            raise Declined("task", str(error)) from None
        if task.records is not None or task.shared.parameters.size != self.parameters:
            raise Declined("task", "the task is for another model, or for records")
        if not self.simulation and not (
            task.clip_norm < np.inf and task.shared.run and task.shared.plan
        ):
            raise Declined("unprotected", "a task without a clip, a run or a plan came")
        return sent_content(answer(task, self.client, self.account, self.answered, self.work))

    def _safely(self, reply: Callable[[RecordDict], RecordDict], content: RecordDict) -> RecordDict:
        try:
            return reply(content)
        except Declined as error:
            LOG.error("client %s declined: %s", self.client, error)
            return greeting_content(Refusal(error.reason))
        except Exception as error:
            return failed(error)


def failed(error: Exception) -> RecordDict:
    """The reply of a node whose work failed; why is logged here and not sent."""
    if isinstance(error, FedspendError):
        LOG.error("%s", error)
    else:
        LOG.exception("the client's work failed")
    return greeting_content(Refusal("failed"))


def open_node(
    config: str | Path | Mapping[str, Any],
    *,
    states: States | None = None,
    account: OwnAccount | None = None,
) -> Node:
    """The node that a config describes: [node] says who it is, [data] where its rows are, [model]
    what it trains; privacy.randomness and train.seed are the node's own.
    """
    settings = any_config(config)
    name = needed(settings.node.client, "node.client")
    (client,) = read_ids([name], what="node.client")
    refuse_foreign_keys(settings)
    source = Source(settings)
    rows = own_rows(source, client)
    features = rows.features
    public = rows.public_features
    if settings.model.features != "none":
        features = maps.features(settings.model.features, features)
        public = None if public is None else maps.features(settings.model.features, public)
    module = models.build(
        needed(settings.model.name, "model.name"),
        input_shape=features.shape[1:],
        classes=rows.classes,
        seed=settings.train.seed,
        **model_options(settings),
    )
    randomness = Randomness(settings.train.seed, "os" if is_real(settings) else "seeded")
    work = Workload(
        module=module,
        features=torch.from_numpy(features),
        labels=torch.from_numpy(rows.labels),
        shards={client: np.arange(len(rows.labels), dtype=np.int64)},
        randomness=randomness,
        public_rows=None if public is None else torch.from_numpy(public),
    )
    states = states or FolderStates(state_folder(settings))
    return node_of(client, work, local(work, workers=0), states, account)


def node_of(
    client: str,
    work: Workload,
    engine: Engine,
    states: States,
    account: OwnAccount | None = None,
) -> Node:
    """A node that trains on the rows of `client` in `work`. `engine` is the local one on this
    work, so that the answer has the same bits as on one machine.
    """

    def contribution(task: ClientTask) -> Contribution:
        if task.shared.metric is not None and work.held_out is None:
            raise Declined("task", "the task asks how good the model is on rows that are held out")
        (reply,) = engine.run([task])
        assert isinstance(reply, Reply)
        return reply.contribution

    return Node(
        client=client,
        work=contribution,
        parameters=parameter_count(work.module),
        simulation=work.randomness.simulation,
        answered=Answered(states),
        account=account or ServersAccount(),
    )


def own_rows(source: Source, client: str) -> Rows:
    """The node's rows; a row of anybody else is refused."""
    rows = source.rows
    stranger = next((name for name in rows.clients or () if name != client), None)
    if stranger is not None:
        raise InvalidInput(
            f"the node's data has rows of client {stranger!r}, but the node is client "
            f"{client!r} (node.client); give each node a file of its own"
        )
    check_rows("features", rows.features, "labels", rows.labels, rows.classes)
    return rows


def refuse_foreign_keys(config: Config) -> None:
    """Refuse what a server decides, or what would choose among the rows of this node."""
    for key in ("data.validation", "data.share", "data.leave_out", "data.partition"):
        if config.given(key):
            raise InvalidInput(
                f"{config.where(key)}: a node uses all rows of its file; drop "
                f"{key.partition('.')[2]}, and choose rows when you make the file"
            )
    if config.given("engine.name"):
        raise InvalidInput(
            f"{config.where('engine.name')}: a node trains on its own machine; drop engine.name"
        )


def state_folder(config: Config) -> Path:
    """Where the node remembers its answers: beside its config, unless that says otherwise."""
    if config.node.state is not None:
        return Path(config.node.state)
    if config.path is None:
        raise InvalidInput("node.state is missing: say where the node keeps its answers")
    return config.path.resolve().parent / "state"
