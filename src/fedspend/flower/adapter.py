"""A fedspend plan and ledger for a Flower app that exists already: wrap its strategy, and leave its
clients as they are.

    from fedspend.flower.adapter import Private

    plan = fedspend.plan({"north": 4.0, "south": 8.0}, delta=1e-3, rounds=20, rate=0.8)
    strategy = Private(FedAdam(...), plan, keys="keys.csv", ledger="accounts.db")
    result = strategy.start(grid, initial_arrays)

Guarantee: every round is charged to every account before anyone is drawn; who is asked is drawn
here, by the planned rates; every answer is clipped here to its client's own bound, added up with
the same weight, and noised with the planned noise; the release is recorded before the wrapped
strategy sees it, and the mean that it then sees is all it ever sees. An answer that is not finite,
has other arrays, or comes from somebody who was not asked does not count. What clients report
beside their arrays is dropped, and they are not asked to evaluate: both would be releases that no
plan covers. The server is trusted, as under central noise everywhere
(docs/explanation/threat-model.md).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedspend.basics.arrays import FloatArray
from fedspend.budgets.population import numbered
from fedspend.client.bounding import bounded
from fedspend.client.contribution import Contribution, Reply
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.configuration.noise_kind import noise_for
from fedspend.engines.flower.keys import check_covers, read_keys
from fedspend.engines.flower.line import Clock, Line
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import new_run_id
from fedspend.ledger.participants import plan_fits
from fedspend.ledger.rules import check_kind
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan, check_loaded
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.arrays import plan_of_updates
from fedspend.runs.run_ledger import RunLedger, shown
from fedspend.runs.setup import noise_terms
from fedspend.runs.stores import MemoryStore
from fedspend.server.answers import Tally
from fedspend.server.mechanism import NO_MEMORY, Gaussian, Sum
from fedspend.server.methods.base import Release, RoundTerms
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import Kept, Server, Training, begin, prepared, tasks_of
from fedspend.server.sampling import draw_cohort
from fedspend.verification.verify import verify

LOG = logging.getLogger("fedspend.flower")
_POLL = 1.0
_METRICS = "metrics"


class Private(Strategy):
    """Your strategy, under a plan. It gets one noised mean a round, in place of clients' answers.

    `keys` is a CSV file with the public key of each client's node (client, key), as for
    `engine.keys`. `ledger` and `project` say what is charged, as for `fedspend.train`. `run` is the
    run's name there: an app that was stopped goes on under the same name and plan, with the round
    after the last one that was begun. A round begins when the share `quorum` of all clients is
    connected, and is refused if that takes longer than `wait` seconds.

    `seed` makes it a simulation, which protects nobody: nodes then need no keys, and stand for the
    plan's clients in the order of their ids.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: AnyPlan,
        *,
        keys: str | Path | Mapping[str, str] | None = None,
        ledger: str | Path | None = None,
        project: str | None = None,
        run: str | None = None,
        quorum: float = 0.5,
        wait: float = 60.0,
        seed: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.strategy, self.plan = strategy, checked(plan)
        self._randomness = Randomness(seed or 0, "os" if seed is None else "seeded")
        self._owner = owners(keys, self.plan, simulation=self._randomness.simulation)
        if not 0 <= quorum <= 1:
            raise InvalidInput(f"quorum must be a number from 0 to 1, got {quorum!r}")
        self._quorum, self._wait, self._clock = quorum, wait, clock or Clock()
        self._named = run is not None
        self._ledger = RunLedger.of_run(
            None,
            None if ledger is None else str(ledger),
            resume=False,
            project=project,
            charged=not self._randomness.simulation,
        )
        self._store = MemoryStore("" if self._ledger.asked is None else run or new_run_id())
        self._method = held_to(self.plan, Planned(self.plan, "flower"))
        self._stack = ExitStack()
        self._training: Training | None = None
        self._at: dict[str, int] = {}  # client -> node
        self._done = 0  # rounds that have begun
        self._open: _Round | None = None

    # --- what an app calls ------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As `Strategy.start`; without `num_rounds`, all rounds of the plan that are left.

        `evaluate_fn` is for public rows.
        """
        with self:
            self._begin(_Layout.of(initial_arrays).size)
            left = self.plan.rounds - self._done
            if num_rounds is not None and not 0 < num_rounds <= left:
                raise InvalidInput(
                    f"num_rounds must be from 1 to {left}, the rounds that the plan has left, got "
                    f"{num_rounds}; drop it, or make a plan with more rounds"
                )
            return super().start(
                grid,
                initial_arrays,
                num_rounds or left,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )

    def __enter__(self) -> Private:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the ledger. What the run has not spent stays held, unless all rounds were played
        or none was.
        """
        self._stack.__exit__(kind, error, trace)
        self._stack, self._training = ExitStack(), None

    @property
    def spent(self) -> dict[str, float]:
        """Epsilon that each client has spent in this run, whether its rounds had releases or
        not.
        """
        if self._done == 0:
            return dict.fromkeys(self.plan.clients, 0.0)
        spent = self.plan.spent_by_schedule()[self._done - 1][self.plan.schedules.of_client]
        return dict(zip(self.plan.clients, spent.tolist(), strict=True))

    # --- what Flower calls ------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charge the round, draw the cohort by the plan, and ask it what your strategy asks."""
        layout = _Layout.of(arrays)
        training = self._begin(layout.size)
        if self._open is not None:
            LOG.warning("round %d was not finished; it stays charged", self._open.number + 1)
            self._store.lose(self._open.number)
            self._open = None
        if self._done >= self.plan.rounds:
            raise Refused(
                f"all {self.plan.rounds} rounds of the plan are spent; make a plan for more"
            )
        self._reach(grid)
        content = self._content(server_round, arrays, config)
        vector = layout.vector(arrays)
        if vector is None:
            raise InvalidInput("the model has values that are not finite; the round did not begin")
        state = replace(begin(vector.astype(np.float32), self._method), done=self._done)
        terms, shared = prepared(state, self._method, training)  # refuses before it is charged
        self._store.reserve(self._done)
        self._done += 1
        cohort = draw_cohort(terms.sampling_rate, self._randomness, shared.round)
        tasks = tasks_of(cohort, terms, self.plan.clients, shared)
        self._open = _Round(layout, vector, terms, shared, tasks, self._at, self._randomness)
        asked = [self._at[task.client] for task in tasks if task.client in self._at]
        return [Message(content, node, "train") for node in asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, add up, noise and record; then hand your strategy the one mean."""
        now, self._open = self._open, None
        if now is None:
            raise InvalidInput("no round has begun: call configure_train first")
        for reply in replies:
            now.add(reply)
        update = now.released()
        self._store.keep(now.number, Kept(Release(update.astype(np.float32)), {}, NO_MEMORY))
        for who, why in now.odd.items():
            LOG.warning("round %d, %s: %s", now.number + 1, who, why)
        if self._done == self.plan.rounds:
            self._store.finish()
        arrays, _ = self.strategy.aggregate_train(
            server_round, [self._mean(now.layout.record(now.start + update))]
        )
        spent = sorted(self.spent.values())
        LOG.info(
            "round %d of %d: epsilon spent so far %.3f to %.3f",
            *(self._done, self.plan.rounds, spent[0], spent[-1]),
        )
        return arrays, MetricRecord({"smallest-epsilon": spent[0], "largest-epsilon": spent[-1]})

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Nobody is asked: what clients measure on their rows would be released without noise."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        budgets = self.plan.budget
        LOG.info(
            "plan of %d rounds for %d clients with budgets from %g to %g (delta %g); %s",
            *(self.plan.rounds, len(self.plan.clients), budgets.min(), budgets.max()),
            *(self.plan.delta, self._where()),
        )
        self.strategy.summary()

    # --- inside -----------------------------------------------------------------------------------

    def _where(self) -> str:
        asked = self._ledger.asked
        return "charged to no ledger" if asked is None else f"charged to {shown(asked)}"

    def _begin(self, size: int) -> Training:
        """Open the account, once, and say how rounds run. Refuses what must not begin."""
        if self._training is not None:
            return self._training
        simulation = self._randomness.simulation
        _, bits, steps = noise_terms(noise_for(self.plan), 32, self.plan, size, real=not simulation)
        book = self._ledger.found()
        if book is not None and not self._goes_on(book):
            check_kind(book.state, simulation, book.location)
            plan_fits(book, self.plan)
        self._stack.enter_context(self._ledger)
        self._stack.enter_context(
            self._store.charging(self.plan, self._ledger, simulation=simulation)
        )
        while self._done < self.plan.rounds and self._store.was_reserved(self._done):
            self._done += 1
        self._training = Training(
            server=Server(self.plan.rounds),
            clients=self.plan.clients,
            local=LocalTraining(batch_size=1, steps=1),  # not used: clients train as they did
            client_lr=lambda _: 0.0,
            bits=bits,
            grid_steps=steps,
            run=self._store.run_id,
            plan=self.plan.hash,
        )
        return self._training

    def _goes_on(self, book: Ledger) -> bool:
        """Whether the run has begun before. Refuses a name that is another run's."""
        if not self._named or self._store.run_id not in book.state.runs:
            return False
        begun = book.run(self._store.run_id)
        if begun.about["plan"] != self.plan.hash:
            raise InvalidInput(
                f"run {begun.id!r} of the ledger has another plan; give the plan that it began "
                "with, or this one another name"
            )
        if begun.closed is not None:
            raise Refused(f"run {begun.id!r} is closed ({begun.closed}); give this one a new name")
        return True

    def _reach(self, grid: Grid) -> None:
        """Find the clients' nodes. Refuses, before anything is charged, if too few are there."""
        line = Line(grid, self._wait, self._clock)
        wanted = math.ceil(self._quorum * len(self.plan.clients))
        end = self._clock.now() + self._wait
        while True:
            self._at = self._found(line.nodes())
            if len(self._at) >= wanted:
                return
            if not self._clock.now() < end:
                raise Refused(
                    f"{len(self._at)} of {len(self.plan.clients)} clients are connected, the "
                    f"quorum is {wanted}; start their nodes; the next round was not begun"
                )
            self._clock.sleep(_POLL)

    def _found(self, nodes: Mapping[int, bytes]) -> dict[str, int]:
        """Who is connected. Two nodes with one key stand for nobody."""
        if self._owner is None:
            known = {client: node for client, node in self._at.items() if node in nodes}
            new = sorted(node for node in nodes if node not in known.values())
            free = [client for client in self.plan.clients if client not in known]
            return known | dict(zip(free, new, strict=False))
        at: dict[str, list[int]] = {}
        for node, key in nodes.items():
            client = self._owner.get(key.decode("ascii", "replace").strip())
            if client is not None:
                at.setdefault(client, []).append(node)
        return {client: found[0] for client, found in at.items() if len(found) == 1}

    def _content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """What your strategy would ask of any node. Whom it would ask does not matter."""
        anyone = cast(Grid, _Anyone(self.strategy))
        messages = list(self.strategy.configure_train(server_round, arrays, config, anyone))
        if not messages:
            raise InvalidInput(
                "your strategy asks nobody to train (fraction_train is 0?); the round did not begin"
            )
        found: RecordDict = messages[0].content
        return found

    def _mean(self, arrays: ArrayRecord) -> Message:
        """The noised mean, as the one answer that your strategy sees."""
        weight = getattr(self.strategy, "weighted_by_key", "num-examples")
        key = getattr(self.strategy, "arrayrecord_key", "arrays")
        content = RecordDict({key: arrays, _METRICS: MetricRecord({weight: 1.0})})
        return Message(content, 0, "train")


def checked(plan: AnyPlan) -> Plan:
    """A plan of clients who send updates, after the independent verifier has looked at it."""
    found = plan_of_updates(plan)
    if found.bit_noise is not None:
        raise InvalidInput(
            "the plan is for adaptive clipping, which asks clients for a bit that an app of your "
            "own does not send; make a plan for another method"
        )
    check_loaded(found.accountant)
    verdict = verify(found)
    if not verdict.ok:
        raise Refused(f"the plan failed verification, so nothing is trained: {verdict.failures[0]}")
    return found


def owners(
    keys: str | Path | Mapping[str, str] | None, plan: Plan, *, simulation: bool
) -> dict[str, str] | None:
    """Public key -> client; None in simulations, where nodes are believed."""
    if not simulation and plan.clients == numbered(len(plan.clients)):
        raise InvalidInput(
            "a real run is charged to a ledger that outlives it, which needs named clients; make "
            "the plan from a dict of id: epsilon"
        )
    if keys is None:
        if not simulation:
            raise InvalidInput(
                "a real run needs the nodes' public keys: name a CSV file with the columns client "
                "and key (keys=), or simulate with seed=, which protects nobody"
            )
        return None
    where = "keys" if isinstance(keys, Mapping) else str(keys)
    found = dict(keys) if isinstance(keys, Mapping) else read_keys(keys)
    check_covers(found, plan.clients, where)
    owner = {key.strip(): client for client, key in found.items()}
    if len(owner) != len(found):
        raise InvalidInput(f"{where}: two clients have the same key; give each its own")
    return owner


class _Anyone:
    """A grid on which as many nodes are connected as a strategy asks for, and nothing is sent."""

    def __init__(self, strategy: Strategy) -> None:
        least = (getattr(strategy, name, 1) for name in ("min_available_nodes", "min_train_nodes"))
        self._nodes = range(max(1, *least))

    def get_node_ids(self) -> Sequence[int]:
        return list(self._nodes)


@dataclass(frozen=True)
class _Layout:
    """Names, shapes and types of a model's arrays, and their place in one vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> _Layout:
        found = {str(name): array.numpy() for name, array in record.items()}
        for name, values in found.items():
            if values.dtype not in (np.float32, np.float64):
                raise InvalidInput(
                    f"array {name!r} of the model is {values.dtype}, and noise needs float32 or "
                    "float64; leave it out of what is trained together"
                )
        if not sum(values.size for values in found.values()):
            raise InvalidInput("the model has no numbers; give the arrays to train from")
        return cls(
            tuple(found),
            tuple(values.shape for values in found.values()),
            tuple(values.dtype.name for values in found.values()),
        )

    @property
    def size(self) -> int:
        return sum(map(math.prod, self.shapes))

    def vector(self, record: ArrayRecord) -> FloatArray | None:
        """The arrays as one vector; None if they are others, or not finite."""
        try:
            if set(record) != set(self.names):
                return None
            arrays = [record[name].numpy() for name in self.names]
        except Exception:  # what cannot be read is no answer, whatever numpy says of it
            return None
        alike = zip(arrays, self.shapes, self.dtypes, strict=True)
        if not all(one.shape == shape and one.dtype.name == kind for one, shape, kind in alike):
            return None
        flat: FloatArray = np.concatenate([one.reshape(-1).astype(np.float64) for one in arrays])
        return flat if bool(np.isfinite(flat).all()) else None

    def record(self, vector: FloatArray) -> ArrayRecord:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        pieces = np.split(vector, ends)
        kinds = zip(self.names, pieces, self.shapes, self.dtypes, strict=True)
        return ArrayRecord(
            {name: Array(one.reshape(shape).astype(kind)) for name, one, shape, kind in kinds}
        )


class _Round:
    """One round: whom it asked, and the sum of what came back."""

    def __init__(
        self,
        layout: _Layout,
        start: FloatArray,
        terms: RoundTerms,
        shared: RoundTask,
        tasks: Sequence[ClientTask],
        at: Mapping[str, int],
        randomness: Randomness,
    ) -> None:
        self.layout, self.start, self.number = layout, start, shared.round
        self.odd: dict[str, str] = {}  # for the operator only
        self._terms, self._shared, self._randomness = terms, shared, randomness
        self._task_of = {at[task.client]: task for task in tasks if task.client in at}
        self._tally = Tally(tasks, layout.size, checked=True)

    def add(self, message: Message) -> None:
        """Clip one answer and add it to the sum."""
        node = message.metadata.src_node_id
        task = self._task_of.get(node)
        if task is None:
            self.odd[f"node {node}"] = "it answered without being asked"
        elif message.has_error():
            self._tally.discard(task.client, f"Flower reports error {message.error.code}")
        else:
            records = list(message.content.array_records.values())
            vector = self.layout.vector(records[0]) if len(records) == 1 else None
            self._count(task, vector)

    def _count(self, task: ClientTask, vector: FloatArray | None) -> None:
        if vector is None:
            self._tally.discard(task.client, "its arrays are not the model's, or not finite")
            return
        with np.errstate(over="ignore"):
            update = torch.from_numpy(vector - self.start)
        own = bounded(update, task, self._randomness)
        if not own.finite:
            self._tally.discard(task.client, "its update is not finite")
            return
        sent = Contribution(task.client, self.number, own.vector, run=self._shared.run)
        self._tally.add(Reply(sent))

    def released(self) -> FloatArray:
        """The noised mean of the updates: planned noise, planned denominator."""
        answers, terms = self._tally.answers(), self._terms
        self.odd |= {
            f"client {client!r}": why
            for client, why in {**answers.discarded, **answers.reports}.items()
        }
        total = Sum(
            self.number,
            answers.total,
            answers.received_variance,
            terms.deviation,
            terms.denominator,
            self._shared.grid,
        )
        noised, _ = Gaussian(self._randomness).release(total, NO_MEMORY)
        return noised.update
