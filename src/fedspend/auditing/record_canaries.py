"""Records as canaries: rows and a starting model that give every record a chosen gradient.

The model is logistic regression with two classes, and starts out certain of the second one (a bias
of -1e6 on the first). A row `M e_j` labelled with the first class then has the gradient
`M (-e_j, e_j)` and a little bias, whatever happens to the weights: longer than any clip, and in its
own direction. A row of zeros with the second class has a gradient of exactly zero. So sampling,
gradients, clip, noise and steps are the run's own code, and no hook is needed.

Guarantee: the audit sees each client's own update and whether the client takes part, as the
observer does against whom a plan of records promises protection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedspend import models
from fedspend.auditing.meters import Tally
from fedspend.auditing.observations import Expected, Observations
from fedspend.auditing.playing import Stage, play_rounds
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.client.contribution import Reply
from fedspend.client.state import MemoryStates
from fedspend.client.task import ClientTask, RecordTerms
from fedspend.client.work import contribute
from fedspend.engines.base import Workload
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.norm_states import norm_budgets
from fedspend.runs.setup import Setup
from fedspend.server.methods.base import RoundTerms

ROOM = 1_000  # canaries in one run
CERTAIN = -1e6  # beyond any score that weights can reach
LENGTH = 10.0  # of a crafted gradient, in clips; at least this long, so that its bias is small
OBSERVER = "the public, other clients, and a server that sees every client's update"


def stage_of_records(setup: Setup, seed: int) -> Stage:
    plan = setup.plan
    assert plan is not None
    expected = expected_of_records(setup)
    taking_part = np.array([setup.method.terms(t, {}).sampling_rate for t in range(plan.rounds)])[
        :, plan.owner
    ]
    tally = Tally(*expected.rate.shape)
    return Stage(setup, seed, expected, ROOM, tally, play_records, taking_part, OBSERVER)


def expected_of_records(setup: Setup) -> Expected:
    """The expected signals by record, in rounds in which its client takes part."""
    plan = setup.plan
    assert plan is not None
    shape = plan.rounds, len(plan.names)
    rate, shift, steps = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    mine = [np.flatnonzero(plan.owner == number) for number in range(len(plan.clients))]
    paid = np.zeros(shape[1])
    for t in range(plan.rounds):
        terms = _records(setup.method.terms(t, {}))
        for number, units in enumerate(mine):
            own = terms(number)
            if units.size == 0:
                continue
            weight, noise = _weights(own, setup.training.local.momentum)
            rate[t, units], shift[t, units] = own.rate, weight / noise if noise > 0 else 0.0
            steps[t, units] = own.steps
            if own.by_norm and own.norm_budget is not None:
                # a gradient of full clip length pays 1 per step while enough is left
                left = np.floor(own.norm_budget + 1e-9) - paid[units]
                steps[t, units] = np.clip(left, 0, own.batch.size)
                paid[units] += steps[t, units]
    return Expected(rate, shift, steps)


def _records(terms: RoundTerms) -> Callable[[int], RecordTerms]:
    assert terms.records is not None
    return terms.records


def _weights(own: RecordTerms, momentum: float) -> tuple[float, float]:
    """The mean weight of one full gradient in the sum of a round's steps, and the noise there.

    Both are in units of clip times learning rate.
    """
    batch = own.batch[own.batch > 0]
    if batch.size == 0:
        return 0.0, 0.0
    later = np.arange(batch.size, 0, -1)  # how often a step's gradient counts, with momentum
    times = (1 - momentum**later) / (1 - momentum)
    each = times / batch
    return float(each.mean()), own.noise_multiplier * float(np.sqrt((each**2).sum()))


@dataclass(frozen=True, eq=False)
class Cast:
    """The roles in a run: each client's records and canaries' coins, and each record's row."""

    units: dict[str, IntArray]
    coins: dict[str, IntArray]
    rows: dict[str, IntArray]
    width: int  # number of directions: the most canaries of one client


def cast_of(plan: AnyPlan, units: IntArray, inside: BoolArray) -> Cast:
    owner = plan.owner[units]
    mine, coins, rows = {}, {}, {}
    row_of = np.zeros(len(plan.names), dtype=np.int64)  # 0 is the row of zeros
    for number, client in enumerate(plan.clients):
        coins[client] = np.flatnonzero(owner == number)
        directions = np.arange(coins[client].size)
        row_of[units[coins[client]]] = np.where(inside[coins[client]], directions + 1, 0)
        mine[client] = np.flatnonzero(plan.owner == number)
        rows[client] = row_of[mine[client]]
    return Cast(mine, coins, rows, max(2, int(np.bincount(owner).max())))


@dataclass(eq=False)
class RecordEngine:
    """Runs clients one by one, and keeps what their updates have in their canaries' directions."""

    work: Workload
    cast: Cast
    signals: FloatArray  # (rounds, coins) to be filled
    momentum: float
    tally: Tally
    name: str = "record canaries"
    outside: bool = False

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        for task in tasks:
            reply = contribute(task, self.work.rows(task.client), self.work.tools)
            self.tally.asked[task.shared.round, self.cast.units[task.client]] += 1
            self._look(task, reply.contribution.vector)
            yield reply

    def _look(self, task: ClientTask, update: FloatArray) -> None:
        own, coins, width = task.records, self.cast.coins[task.client], self.cast.width
        assert own is not None
        _, noise = _weights(own, self.momentum)
        if noise > 0:
            moved = (update[:width] - update[width : 2 * width])[: coins.size] / np.sqrt(2.0)
            scale = task.shared.lr * own.clip * noise
            self.signals[task.shared.round, coins] = moved / scale

    def close(self) -> None: ...


def play_records(stage: Stage, run: int, units: IntArray, inside: BoolArray) -> Observations:
    setup = stage.of_run(run)
    plan = setup.plan
    assert plan is not None
    cast = cast_of(plan, units, inside)
    setup = replace(setup, module=_certain_model(cast.width))
    states = MemoryStates()
    for budget in norm_budgets(setup, states):
        budget.enrol()
    features, labels = _rows(cast.width, plan.clip)
    work = Workload(setup.module, features, labels, cast.rows, setup.randomness, states=states)
    signals = np.full((plan.rounds, units.size), np.nan)
    momentum = setup.training.local.momentum
    play_rounds(setup, RecordEngine(work, cast, signals, momentum, stage.tally))
    return Observations(np.full(units.size, run), units, inside, signals.astype(np.float32))


def _certain_model(width: int) -> nn.Module:
    module = models.build("logistic", input_shape=(width,), classes=2, seed=0)
    head = next(part for part in module.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        head.bias.copy_(torch.tensor([CERTAIN, 0.0]))
    return module


def _rows(width: int, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Row 0 has gradient zero, row j + 1 a long one in direction j."""
    features = torch.zeros(width + 1, width)
    features[torch.arange(width) + 1, torch.arange(width)] = LENGTH * max(1.0, clip)
    labels = torch.zeros(width + 1, dtype=torch.int64)
    labels[0] = 1
    return features, labels
