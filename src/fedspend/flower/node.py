"""One client on its own machine: its config, its rows, its randomness, and its replies.

Guarantee: rows, randomness, model and id come from the node's own config and from nowhere else; a
message cannot change them. A message gets a contribution, an introduction or one of a few fixed
words; whatever goes wrong here, its text stays in the node's own log, since it may quote rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import RecordDict

import fedspend
from fedspend.approval.node_config import account_of, client_of, own_account, state_folder
from fedspend.client.answering import Answered, OwnAccount, ServersAccount, answer
from fedspend.client.contribution import Contribution, Reply
from fedspend.client.declining import Declined
from fedspend.client.row_digests import digests
from fedspend.client.state import FolderStates, States
from fedspend.client.task import ClientTask
from fedspend.configuration.config import Config, any_config
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.model_inputs import build_model, check_fits, integers_of
from fedspend.configuration.task_inputs import configured_task
from fedspend.data.dataset import Rows, check_rows
from fedspend.data.loading import OWN
from fedspend.engines.base import Engine, Workload
from fedspend.engines.flower.wire import (
    Condition,
    Hello,
    Introduction,
    Look,
    Refusal,
    greeting_content,
    read_greeting,
    read_task,
    sent_content,
)
from fedspend.engines.local import local
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger.storage import may_hold_ledger
from fedspend.models import features as maps
from fedspend.models.flat import fingerprint, parameter_count
from fedspend.noise.randomness import Randomness

if TYPE_CHECKING:
    from fedspend.flower.silo import Silo

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
    loss: str
    model: str  # tells it apart from models of the same size
    silo: Silo | None = None  # if its records have budgets of their own
    ledger: str | None = None  # where its own account is
    meaning: str = ""  # what it declares of its rows (`data.meaning`)

    def hello(self, content: RecordDict) -> RecordDict:
        """Who this is, in reply to a server's first message."""
        return self._safely(self._hello, content)

    def look(self, content: RecordDict) -> RecordDict:
        """How this node is, for a server that checks the federation."""
        return self._safely(self._look, content)

    def task(self, content: RecordDict) -> RecordDict:
        """The contribution, in reply to a task."""
        return self._safely(self._task, content)

    def _hello(self, content: RecordDict) -> RecordDict:
        said = read_greeting(Hello, content)
        if said.simulation and not self.simulation:
            raise Declined(
                "simulation", "a server whose randomness is seeded asked for this node's real rows"
            )
        certificate = self._certificate(said)
        self.account.join(said.plan)
        return greeting_content(
            Introduction(
                self.client,
                fedspend.__version__,
                self.simulation,
                self.parameters,
                self.loss,
                self.model,
                certificate,
                self.meaning,
            )
        )

    def _look(self, content: RecordDict) -> RecordDict:
        read_greeting(Look, content)
        return greeting_content(
            Condition(
                client=self.client,
                version=fedspend.__version__,
                flwr=version("flwr"),
                torch=str(torch.__version__),
                simulation=self.simulation,
                unit="client" if self.silo is None else "record",
                parameters=self.parameters,
                ledger=self.ledger is not None and may_hold_ledger(self.ledger),
                clock=time.time(),
                meaning=self.meaning,
            )
        )

    def _certificate(self, said: Hello) -> str:
        """What a silo hands in; empty for a node that is protected as a whole."""
        if (self.silo is not None) != bool(said.silo_offer or said.silo_plan):
            raise Declined(
                "records",
                "the server protects whole clients, but this node its records (node.unit)"
                if self.silo is not None
                else "the server offers terms for records, but node.unit is 'client' here",
            )
        if self.silo is None:
            return ""
        return (
            self.silo.hand_in(said.silo_offer)
            if said.silo_offer
            else self.silo.bind(said.silo_plan)
        )

    def _task(self, content: RecordDict) -> RecordDict:
        try:
            task = read_task(content)
        except InvalidInput as error:
            raise Declined("task", str(error)) from None
        if task.shared.parameters.size != self.parameters:
            raise Declined("task", "the task is for another model")
        if (task.records is None) != (self.silo is None):
            raise Declined("records", "a task came for another unit than node.unit says")
        bounded = task.clip_norm < np.inf or self.silo is not None
        if not self.simulation and not (bounded and task.shared.run and task.shared.plan):
            raise Declined("unprotected", "a task without a clip, a run or a plan came")
        if self.silo is not None and task.client == self.client:
            self.silo.check(task)
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
    client = client_of(settings)
    refuse_foreign_keys(settings)
    source = Source(settings)
    rows = own_rows(source, client)
    features = rows.features
    public = rows.public_features
    if settings.model.features != "none":
        features = maps.features(settings.model.features, features)
        public = None if public is None else maps.features(settings.model.features, public)
    shown = replace(rows, features=features, test_features=None)
    module, task = build_model(settings, shown), configured_task(settings)
    integers = integers_of(module, shown)
    by_record = settings.node.unit != "client"
    check_fits(module, task, shown, integers=integers, by_record=by_record)
    randomness = Randomness(settings.train.seed, "os" if is_real(settings) else "seeded")
    work = Workload(
        module=module,
        features=torch.from_numpy(features),
        labels=torch.from_numpy(rows.labels),
        shards={client: np.arange(len(rows.labels), dtype=np.int64)},
        randomness=randomness,
        public_rows=None if public is None else torch.from_numpy(public),
        task=task,
        integers=integers,
    )
    states = states or FolderStates(state_folder(settings))
    if settings.node.unit == "client":
        books = own_account(settings)
        if books is not None and source.name in OWN:  # as they were read, before fixed features
            held = [np.arange(len(rows.labels))]
            behind = digests(rows.features, rows.labels, held, [client])
            books = replace(books, rows=behind.get(client))
        made = node_of(client, work, local(work, workers=0), states, account or books)
        location = None if books is None else books.location
        return replace(made, ledger=location, meaning=source.meaning)
    from fedspend.configuration.silo_inputs import own_records  # other nodes do without
    from fedspend.flower.silo import Silo

    records = own_records(source, rows, client)
    silo = Silo(client, settings, records, account_of(settings))
    work = replace(work, shards={client: records.shards[0]})
    return replace(silo_node(silo, work, states), meaning=source.meaning)


def silo_node(silo: Silo, work: Workload, states: States) -> Node:
    """A node that plans its own records. They are trained by the reference engine, as on one
    machine.
    """
    engine = ReferenceEngine(work)
    made = node_of(silo.client, work, engine, states, silo)

    def contribution(task: ClientTask) -> Contribution:
        return made.work(silo.own_task(task))

    return replace(made, work=contribution, silo=silo, ledger=silo.books.location)


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
        if reply.remarks is not None and reply.remarks.problem:
            LOG.warning("client %s: %s", task.client, reply.remarks.problem)
        return reply.contribution

    if account is None and not work.randomness.simulation:
        raise InvalidInput("a node whose rows are real needs an account of its own")
    return Node(
        client=client,
        work=contribution,
        parameters=parameter_count(work.module),
        simulation=work.randomness.simulation,
        answered=Answered(states),
        account=account or ServersAccount(),
        loss=work.task.terms,
        model=fingerprint(work.module),
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
    check_rows("features", rows.features, "labels", rows.labels, rows.classes, rows.kind)
    return rows


def refuse_foreign_keys(config: Config) -> None:
    """Refuse what a server decides, or what would choose among the rows of this node."""
    for key in ("data.validation", "data.share", "data.leave_out", "data.partition"):
        if config.given(key):
            raise InvalidInput(
                f"{config.where(key)}: a node uses all rows of its file; drop "
                f"{key.partition('.')[2]}, and choose rows when you make the file"
            )
    if config.node.unit == "client":
        for key in ("node.batch", "node.sampling"):
            if config.given(key):
                raise InvalidInput(
                    f'{config.where(key)}: {key} is for a node with node.unit = "record"; drop it'
                )
    else:
        for key in ("node.budget", "node.delta"):
            if config.given(key):
                raise InvalidInput(
                    f"{config.where(key)}: records have budgets of their own; drop {key}"
                )
    if config.given("engine.name"):
        raise InvalidInput(
            f"{config.where('engine.name')}: a node trains on its own machine; drop engine.name"
        )
