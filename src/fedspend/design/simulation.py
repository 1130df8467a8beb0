"""Trains candidates of `design choose` on public rows, and finds the best of them.

Guarantee: scores are read on training rows that are held out, never on the test set. A training is
a pure function of its candidate and seed, and a finished one is kept, so a search that was killed
goes on where it stopped and ends with the same numbers. How many candidates were tried is recorded:
the best of many looks better than it is.

The search goes axis by axis with one seed, moving as soon as a change helps (`climb`); the best few
then race with more seeds, half of them dropping out each time (`race`). Candidates share partition,
batches and the draws behind the noise, so differences between them are paired by seed.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from fedspend.basics.arrays import Float32Array
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import Config
from fedspend.design.choices import (
    OWN_POLICY,
    POLICY,
    TAIL,
    Axes,
    Candidate,
    changed,
    config_of_candidate,
    neighbours,
    split_word,
)
from fedspend.design.trainings import Trainings
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.planning.policies import POLICIES

HELD_OUT = 0.1  # share of the training rows, where the config holds none out
FINALISTS = 8
SCORES = ("accuracy", "loss")


class Line(TypedDict):
    """One training: accuracy and loss on held-out rows by tail, or why it was refused."""

    candidate: dict[str, Any]
    seed: int
    accuracy: dict[str, float]
    loss: dict[str, float | None]  # None: not finite
    refused: str | None
    seconds: float


@dataclass(eq=False)
class Simulation:
    """Trains candidates of a config, each with each seed at most once."""

    base: Config
    axes: Axes
    score: str = SCORES[0]
    kept: Trainings[Line] | None = None
    seconds: float = 0.0  # of the trainings that this process ran
    ran: int = 0
    lines: dict[tuple[str, int], Line] = field(default_factory=dict)

    @property
    def first_seed(self) -> int:
        return self.base.train.seed

    def seed(self, n: int) -> int:
        return self.first_seed + n

    def trained(self, candidate: Candidate, seed: int) -> Line:
        """The training that reads this candidate: run now, or earlier."""
        trained = as_trained(candidate)
        key = (trained.key, seed)
        if key not in self.lines:
            stored = None if self.kept is None else self.kept.get(trained.key, seed)
            self.lines[key] = stored or self._run(trained, seed)
        return self.lines[key]

    def _run(self, candidate: Candidate, seed: int) -> Line:
        began = time.process_time()
        try:
            config = simulated(self.base, candidate, seed)
            accuracy, loss = train_by_tail(config, self._tails(candidate))
            refused = None
        except (InvalidInput, Refused) as refusal:
            accuracy, loss, refused = {}, {}, str(refusal)
        seconds = time.process_time() - began
        line = Line(
            candidate=candidate.fields,
            seed=seed,
            accuracy=accuracy,
            loss=loss,
            refused=refused,
            seconds=round(seconds, 3),
        )
        self.seconds += seconds
        self.ran += 1
        if self.kept is not None:
            self.kept.add(line)
        return line

    def _tails(self, candidate: Candidate) -> tuple[int, ...]:
        own = candidate.fields.get(TAIL, self.base.train.tail_average)
        return tuple(self.axes[TAIL]) if own is None and TAIL in self.axes else (own or 1,)

    def value(self, candidate: Candidate, seed: int) -> float:
        """The score, higher is better; minus infinity for what was refused or diverged."""
        line = self.trained(candidate, seed)
        if line["refused"] is not None:
            return -math.inf
        tail = str(candidate.fields.get(TAIL, self.base.train.tail_average))
        if self.score == "loss":
            loss = line["loss"][tail]
            return -math.inf if loss is None else -loss
        return line["accuracy"][tail] if line["loss"][tail] is not None else -math.inf

    def values(self, candidate: Candidate, seeds: int) -> list[float]:
        return [self.value(candidate, self.seed(n)) for n in range(seeds)]

    def mean(self, candidate: Candidate, seeds: int) -> float:
        return float(np.mean(self.values(candidate, seeds)))

    def seeds_of(self, candidate: Candidate, most: int) -> int:
        """With how many seeds, of the first `most`, it was trained."""
        key = as_trained(candidate).key
        return sum((key, self.seed(n)) in self.lines for n in range(most))


def as_trained(candidate: Candidate) -> Candidate:
    """The training that reads a candidate: one serves all tails, unless its noise is planned for
    one of them.
    """
    fields = candidate.fields
    word = fields.get(POLICY)
    if TAIL not in fields or word in (None, OWN_POLICY):
        return candidate
    if POLICIES[split_word(word)[0]].foresees:
        return candidate
    return candidate.with_(TAIL, None)


def simulated(base: Config, candidate: Candidate, seed: int) -> Config:
    """The config of one training: seeded, and evaluated on held-out training rows."""
    fields = {axis: value for axis, value in candidate.values if value is not None}
    always = {
        "privacy.randomness": "seeded",
        "train.seed": seed,
        "data.validation": base.data.validation or HELD_OUT,
    }
    return changed(config_of_candidate(base, Candidate.of(fields)), always)


def train_by_tail(
    config: Config, tails: Sequence[int]
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Accuracy and loss on the held-out rows, for the mean of each number of last iterates.

    Nothing is stored and no plan is certified: this protects nobody.
    """
    import torch

    from fedspend.basics.threads import single_threaded
    from fedspend.client.state import MemoryStates
    from fedspend.models.evaluation import evaluate
    from fedspend.runs.running import open_engine
    from fedspend.runs.setup import flat_parameters, from_config
    from fedspend.runs.stores import MemoryStore
    from fedspend.server.rounds import begin, run_rounds

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        setup = from_config(config)
    rows = torch.from_numpy(setup.federation.dataset.test_features)
    labels = torch.from_numpy(setup.federation.dataset.test_labels)
    iterates: list[Float32Array] = []
    engine = open_engine(setup, MemoryStates())
    try:
        with single_threaded():
            state = begin(flat_parameters(setup.module), setup.method)
            for after, _ in run_rounds(
                state,
                setup.method,
                engine,
                setup.training.to_the_end,  # each tail is of the last rounds
                setup.randomness,
                MemoryStore(),
                lambda _, statistics: statistics,
            ):
                iterates = [*iterates, after.parameters][-max(tails) :]
    finally:
        engine.close()
    accuracy: dict[str, float] = {}
    loss: dict[str, float | None] = {}
    for tail in tails:
        model = np.mean(iterates[-tail:], axis=0, dtype=np.float64).astype(np.float32)
        found, share = evaluate(setup.module, torch.from_numpy(model), rows, labels)
        accuracy[str(tail)] = share
        loss[str(tail)] = found if math.isfinite(found) else None
    return accuracy, loss


# --- the search -----------------------------------------------------------------------------------


def climb(
    axes: Axes,
    start: Candidate,
    value: Callable[[Candidate], float],
    most: int,
    progress: OnProgress | None = None,
    *,
    near: bool = True,
) -> list[Candidate]:
    """Candidates that were tried, in order, going axis by axis from `start`.

    An axis is left at its best value before the next one is tried; the climb ends when a pass over
    all axes changes nothing, or when `most` were tried.
    """
    tried = {start: value(start)}
    best = start
    while True:
        before = best
        for axis in axes:
            around = best
            for other in neighbours(axes, around, axis, near=near):
                if other not in tried:
                    if len(tried) >= most:
                        return list(tried)
                    tried[other] = value(other)
                    if progress is not None:
                        progress(len(tried), most)
                if tried[other] > tried[best]:
                    best = other
        if best == before:
            return list(tried)


def race(
    finalists: Iterable[Candidate], mean: Callable[[Candidate, int], float], seeds: int
) -> list[Candidate]:
    """The finalists, best first: the worse half drops out each time that the seeds double."""
    left, out, n = list(finalists), list[Candidate](), 1
    while n < seeds and len(left) > 1:
        n = min(2 * n, seeds)
        left.sort(key=lambda one: mean(one, n), reverse=True)
        half = max(1, len(left) // 2)
        left, out = left[:half], left[half:] + out
    return left + out


def folder_of_trainings(folder: str | Path, base: Config, axes: Axes) -> Trainings[Line]:
    """The trainings in a folder, which must be of this config and these tails."""
    values = {
        f"{section}.{key}": value
        for section, table in base.values.items()
        for key, value in table.items()
        if section != "design"
    }
    settings = {"kind": "choose", "held_out": base.data.validation or HELD_OUT, **values}
    settings["tails"] = list(axes.get(TAIL, ()))
    return Trainings(Path(folder), json.loads(json.dumps(settings)), Line)
