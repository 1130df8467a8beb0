"""Small tasks, replies and sums: what clients send is made by the real client code and added up by
the real server code.
"""

import numpy as np
import torch
from torch import nn

from fedspend.client.contribution import Contribution, Reply
from fedspend.client.state import MemoryStates
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.client.work import Tools, finished
from fedspend.engines.base import Workload
from fedspend.engines.reference import ReferenceEngine
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import gather
from fedspend.server.methods.record_level import RecordLevel

ONE_STEP = LocalTraining(batch_size=1, steps=1)


def round_task(size, **changes):
    """What all clients of a round are told; from a model of as many zeros as an update has numbers,
    unless told otherwise.
    """
    plain = {
        "round": 0,
        "parameters": np.zeros(size, dtype=np.float32),
        "training": ONE_STEP,
        "lr": 1.0,
        "size": size,
    }
    return RoundTask(**(plain | changes))


def client_task(size, clip=1.0, number=0, records=None, **shared):
    """The task of client `number`, whose id is its number."""
    return ClientTask(str(number), number, float(clip), round_task(size, **shared), records)


def tasks(clips, size, clients=None, **shared):
    """A task for each of `clients`: numbers in `clips`, which has the bound of everybody."""
    numbers = np.arange(len(clips)) if clients is None else np.asarray(clients)
    return [client_task(size, clips[number], number, **shared) for number in numbers.tolist()]


def replies(some, updates, randomness=None):
    """What leaves each client whose local training came to this update."""
    tools = Tools(nn.Identity(), randomness or Randomness(0))
    return [finished(task, update, 1, tools) for task, update in zip(some, updates, strict=True)]


def summed(updates, clips, clients=None, randomness=None, **shared):
    """These updates (k, size), bounded at the clients, noised there if the task says so, and added
    up by the server.
    """
    updates = torch.as_tensor(updates)
    some = tasks(clips, updates.shape[1], clients, **shared)
    return gather(some, replies(some, updates, randomness), updates.shape[1])


def answer(client, vector, round=0, bit=None):
    """A reply from elsewhere: without remarks, and with anything in it."""
    return Reply(Contribution(str(client), round, np.asarray(vector, dtype=np.float64), bit))


def record_engine(plan, module, rows, labels, randomness=None, states=None):
    """The engine that a record-level plan runs on; row n of the data is record n of the plan."""
    shards = {
        client: np.flatnonzero(plan.owner == number) for number, client in enumerate(plan.clients)
    }
    return ReferenceEngine(
        Workload(
            module,
            rows,
            labels,
            shards,
            randomness or Randomness(0),
            states=states or MemoryStates(),
        )
    )


def record_task(plan, size, round=0, number=0, **shared):
    """A client's task in a round of a record-level plan, from zero parameters."""
    terms = RecordLevel(plan).terms(round, {})
    told = round_task(size, round=round, plan=plan.hash, **shared)
    return ClientTask(
        plan.clients[number], number, float(terms.clip_norm[number]), told, terms.records(number)
    )
