"""One trial of a private tune: a run that leaves nothing but what it returns.

Guarantee: a trial writes no file, charges no account and shows nothing, not even a warning; what it
returns is a function of its releases and of public rows. Its score was measured on public rows, or
was released and paid for by its plan.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from fedspend.basics.arrays import Float32Array
from fedspend.client.state import MemoryStates
from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import PUBLIC_ROWS
from fedspend.configuration.evaluation import Evaluation
from fedspend.configuration.sections import PRIVATE
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.ledger import Ledger
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.runs.metrics import Observer
from fedspend.runs.running import load_parameters, named_arrays, open_engine
from fedspend.runs.setup import Setup, flat_parameters, from_config
from fedspend.runs.stores import MemoryStore
from fedspend.server.rounds import begin, run_rounds
from fedspend.stored.run import MetricsLine

WORST = -math.inf  # the score of a trial that has none


@dataclass(frozen=True, eq=False)
class Outcome:
    """All that a trial gives: the whole of it may be released if the trial wins."""

    setting: int
    score: float
    metrics: list[MetricsLine]
    model: dict[str, Float32Array]


def prepared(
    config: Config, plan: Plan, secret: bytes | None, ledger: Ledger | None = None
) -> Setup:
    """The parts of a trial; what could be refused is refused here, before anything is charged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        setup = from_config(config, ledger, plan, begun=False, secret=secret)
    check_score(setup.evaluation)
    if setup.training.server.stop is not None:
        raise InvalidInput(
            "stop.patience would make some trials of a private tune shorter than others, and how "
            "long they take must tell nothing; drop it"
        )
    return setup


def check_score(evaluation: Evaluation) -> None:
    """Refuse a score that nobody has paid for."""
    if evaluation.mode == PRIVATE or (evaluation.exact and evaluation.rows == PUBLIC_ROWS):
        return
    raise InvalidInput(
        "a private tune needs a score that may be seen: give public rows (data.test_path, and no "
        'data.validation), or let each trial pay for one (evaluation.mode = "private" with '
        "data.validation)"
    )


def play(setup: Setup, setting: int, seed: int, run: str) -> Outcome:
    """Run the trial. `seed` is for simulations: trials must not share their noise."""
    randomness = setup.randomness
    if randomness.simulation:
        randomness = Randomness(seed, "seeded")
    setup = replace(setup, randomness=randomness, training=replace(setup.training, run=run))
    store, observer = MemoryStore(), Observer.of(setup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how often something happens would tell of the trials
        engine = open_engine(setup, MemoryStates())
        try:
            state = begin(flat_parameters(setup.module), setup.method)
            for after, _ in run_rounds(
                state,
                setup.method,
                engine,
                setup.training,
                setup.randomness,
                store,
                observer.line,
            ):
                state = after
        finally:
            engine.close()
    load_parameters(setup.module, state)
    lines = store.metrics()
    return Outcome(setting, _score(setup, lines), lines, named_arrays(setup.module))


def _score(setup: Setup, lines: list[MetricsLine]) -> float:
    """Accuracy: of the handed-out model on public rows, or the last one that was paid for."""
    key = "private_accuracy" if setup.evaluation.mode == PRIVATE else "accuracy"
    found = lines[-1].get(key)
    value = WORST if found is None else float(found)
    return value if np.isfinite(value) else WORST
