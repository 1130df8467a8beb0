"""What the suites of engines share: data, models, engines by name, and one round written short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from fedspend.client.contribution import Contribution, Lost, Remarks, Reply
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.dense import DenseEngine
from fedspend.engines.local import local
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import InvalidInput
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import Answers, gather

# none, one, fewer than a batch, exactly one batch, one more, several batches
SIZES = (0, 1, 3, 8, 9, 40, 25, 0, 16, 5, 31)
COHORT = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 10])
RANDOMNESS = Randomness(11)


class Data:
    def __init__(
        self, shape: tuple[int, ...] = (12,), sizes: Sequence[int] = SIZES, classes: int = 3
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        total = sum(sizes) + 7  # some rows belong to nobody
        self.features = torch.randn(total, *shape, generator=generator)
        self.labels = torch.randint(0, classes, (total,), generator=generator)
        rows = np.random.default_rng(2).permutation(total)
        self.shards = np.split(rows[: sum(sizes)], np.cumsum(sizes)[:-1])
        self.public = torch.randn(6, *shape, generator=generator)

    def work(self, module: nn.Module, randomness: Randomness = RANDOMNESS) -> Workload:
        shards = {str(n): shard for n, shard in enumerate(self.shards)}
        return Workload(module, self.features, self.labels, shards, randomness, self.public)


class Branches(nn.Module):
    """Nothing that a chain of layers could express, and a parameter that the loss never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.skip = nn.Conv2d(2, 4, 1, bias=False)
        self.head = nn.Linear(4 * 4 * 4, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((3,), 0.1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.conv(x)) + self.skip(x)
        return self.head(hidden.flatten(1)) + self.frozen


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 10),
        nn.ReLU(),
        nn.Linear(10, 7, bias=False),
        nn.Linear(7, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "logistic": (logistic, (3, 4)),
    "mlp": (mlp, (12,)),
    "conv": (Branches, (2, 4, 4)),
}


class Lossy:
    """A transport at its worst that still delivers: every answer crosses the wire as bytes, in
    another order, some twice, among answers of the round before and of strangers. `drop` and
    `corrupt` name clients whose answers do not come, or come damaged.
    """

    name = "lossy"
    outside = True

    def __init__(
        self, work: Workload, drop: Sequence[str] = (), corrupt: Sequence[str] = ()
    ) -> None:
        self._inner, self._drop, self._corrupt = ReferenceEngine(work), drop, corrupt

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        if not tasks:
            return
        grid = tasks[0].shared.grid
        received = [ClientTask.from_bytes(task.to_bytes()) for task in tasks]
        sent = [
            reply.contribution.to_bytes(None if grid is None else grid.bits)
            for reply in self._inner.run(received)
        ]
        remarks = {reply.contribution.client: reply.remarks for reply in self._inner.run(received)}
        order = np.random.default_rng(tasks[0].shared.round).permutation(len(sent))
        late = Contribution(
            tasks[0].client, tasks[0].shared.round - 1, np.ones(tasks[0].shared.size)
        )
        yield Reply(
            Contribution("a stranger", tasks[0].shared.round, np.ones(tasks[0].shared.size))
        )
        for position in order:
            client = tasks[position].client
            if client in self._drop:
                continue
            body = sent[position]
            if client in self._corrupt:
                body = body[:40] + bytes(reversed(body[40:]))
            try:
                reply = Reply(Contribution.from_bytes(body), remarks[client])
            except InvalidInput as error:
                yield Lost(client, str(error))
                continue
            yield reply
            if position % 3 == 0:
                yield reply
        if late.client not in (*self._drop, *self._corrupt):
            yield Reply(late)

    def close(self) -> None:
        self._inner.close()


class OnAGrid:
    """Clients as nodes of a Flower grid in this process. Remarks do not travel: they are taken from
    another engine, for the suites that look at them.
    """

    name = "flower"
    outside = True

    def __init__(self, work: Workload) -> None:
        from flower.in_process import Forgetful, engine_on, grid_of

        self._engine, self._twin = (
            engine_on(work, grid_of(work, Forgetful, packed=False)),
            local(work, 0),
        )

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | Lost]:
        remarks = {reply.contribution.client: reply.remarks for reply in self._twin.run(tasks)}
        for reply in self._engine.run(tasks):
            assert isinstance(reply, Lost) or reply.remarks is None
            yield (
                reply
                if isinstance(reply, Lost)
                else replace(reply, remarks=remarks[reply.contribution.client])
            )

    def close(self) -> None:
        self._engine.close()
        self._twin.close()


ENGINES: dict[str, Callable[[Workload], Engine]] = {
    "reference": ReferenceEngine,
    "dense": DenseEngine,
    "clientwise": ClientwiseEngine,
    "clientwise-2": lambda work: ClientwiseEngine(work, workers=2),
    "lossy": Lossy,
    **({} if find_spec("flwr") is None else {"flower": OnAGrid}),
}
# Two workers give the bits of one (`test_engines.test_workers_change_no_bit`), and starting them
# takes longer than what they do: one model is enough in what every engine is tried with.
LEFT_OUT = {
    ("dense", "conv"),
    ("clientwise-2", "logistic"),
    ("clientwise-2", "conv"),
    ("flower", "mlp"),
    ("flower", "conv"),
}
PAIRS = [
    (engine, model) for engine in ENGINES for model in MODELS if (engine, model) not in LEFT_OUT
]


def tasks_for(
    start: torch.Tensor,
    cohort: Sequence[int] | np.ndarray,
    training: LocalTraining,
    *,
    round: int = 0,
    lr: float = 0.1,
    clips: np.ndarray | None = None,
    **shared: Any,
) -> list[ClientTask]:
    """Tasks for these client numbers; `clips` has one bound for every client of the federation."""
    terms = RoundTask(round, start.numpy(), training, lr, **({"size": start.numel()} | shared))
    clips = np.full(1000, np.inf) if clips is None else clips
    return [ClientTask(str(n), int(n), float(clips[n]), terms) for n in cohort]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A round's answers, with what clients remarked in the order of the cohort."""

    answers: Answers
    contributions: dict[str, Contribution]
    norms: np.ndarray
    clipped: np.ndarray
    discarded: np.ndarray  # not finite at the client

    @property
    def total(self) -> np.ndarray:
        return self.answers.total


def outcome(engine: Engine, tasks: list[ClientTask]) -> Outcome:
    """All replies kept, and their sum."""
    size = tasks[0].shared.size if tasks else 0
    replies = [reply if isinstance(reply, Lost) else kept(reply) for reply in engine.run(tasks)]
    first: dict[str, Reply] = {}
    for reply in replies:
        if isinstance(reply, Reply):
            first.setdefault(reply.contribution.client, reply)
    remarks = [
        first[task.client].remarks or Remarks(0.0, False) for task in tasks if task.client in first
    ]
    return Outcome(
        gather(tasks, replies, size, checked=engine.outside),
        {client: reply.contribution for client, reply in first.items()},
        np.array([one.norm for one in remarks]),
        np.array([one.clipped for one in remarks], dtype=bool),
        np.array([bool(one.problem) for one in remarks], dtype=bool),
    )


def kept(reply: Reply) -> Reply:
    """A reply whose vector lasts: an engine may use its memory again."""
    return replace(
        reply, contribution=replace(reply.contribution, vector=reply.contribution.vector.copy())
    )
