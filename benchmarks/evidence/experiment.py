"""What every experiment here shares: one run, a file of finished runs, tuning, paired intervals.

Guarantee: every setting that decides a result is in the settings of its run, stated and not left to
a default. Learning rate and clip are chosen for every arm alike, by the same search from the same
start, with a seed of its own and on training rows that are held out. The seeds of the results are
fixed beforehand, and each of their runs reads the test rows once, when all rounds are over.
A finished run is one line of the results file; a run whose line is there is not repeated.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from claims import shared
from in_memory import in_memory

from fedspend.basics.files import in_turn
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.runs.comparison import interval

if TYPE_CHECKING:
    from fedspend.runs.setup import Setup
    from fedspend.server.rounds import TrainingState

SEEDS = (1, 2, 3, 4, 5)
TUNING_SEED = 1000
HELD_OUT = 0.1  # share of the training rows that learning rate and clip are chosen on
TAIL = 8  # every run is read twice: its last iterate, and the mean of this many last ones
STEP = 2.0  # neighbours in the search for learning rate and clip differ by this factor
MOST_TRIES = 24
PAUSE = 5.0  # seconds between two lines on how long the rest may take

Settings = Mapping[str, Any]  # "section.key" -> value
Choice = tuple[float, float]  # learning rate, clip


@dataclass(frozen=True)
class Arm:
    """One way to train. `settings` are all settings but learning rate, clip, seed and hold-out;
    `readout` is which of the two readings of a run counts: "last" or "tail".
    """

    study: str
    label: tuple[str, ...]
    settings: Settings
    start: Choice
    readout: str = "last"
    seeds: tuple[int, ...] = SEEDS
    tries: int = MOST_TRIES  # 1: nothing is tuned, `start` is used
    clips: bool = True  # False: only the learning rate is tuned
    rates: bool = True  # False: only the clip is
    curve: bool = True  # whether test rows are read after every round too, once training is over
    like: Arm | None = None  # uses the learning rate and clip that were chosen for this arm
    clip_times: float = 1.0  # uses that clip times this
    among: tuple[Settings, ...] = ()  # changes, of which the best on held-out rows is made
    also_at: tuple[Arm, ...] = ()  # they are tried at the choices for these arms, too
    next_among: tuple[Settings, ...] = ()  # of these too, once that is chosen
    then: Settings = field(default_factory=dict)  # changes that are made once all is chosen
    tuning: tuple[int, ...] = (TUNING_SEED,)  # seeds whose mean on held-out rows decides
    over_lr: Settings = field(
        default_factory=dict
    )  # settings that are divided by the learning rate

    @property
    def name(self) -> str:
        return ", ".join((self.study, *self.label))

    @property
    def key(self) -> str:
        """A name for the settings of the arm, in whichever study it is."""
        return key_of(self.at(self.start, 0))

    def at(self, choice: Choice, seed: int, held_out: float = 0.0) -> dict[str, Any]:
        """Every setting of one run."""
        lr, clip = choice
        return {
            **self.settings,
            **{name: value / lr for name, value in self.over_lr.items()},
            "train.lr": lr,
            "privacy.clip": clip,
            "train.seed": seed,
            "data.validation": held_out,
        }


@dataclass
class Results:
    """The finished runs in a file, one JSON line each; other processes may add to it."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    also: tuple[Path, ...] = ()  # files whose runs are not repeated either

    @classmethod
    def read(cls, path: Path, also: Sequence[Path] = ()) -> Self:
        """What the files hold; one that does not exist yet holds nothing."""
        results = cls(path, also=tuple(also))
        results.read_again()
        return results

    def read_again(self) -> None:
        """What other processes have added since."""
        for one in (*self.also, self.path):
            self.found.update((line["key"], line) for line in lines_of(one))

    def add(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(self.path.parent), self.path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) and not _ends_whole(file):
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")
        self.found[line["key"]] = line

    def enter(
        self,
        key: str,
        study: str,
        label: Iterable[str],
        choice: Choice,
        seed: int,
        found: Mapping[str, Any],
        held_out: float = 0.0,
    ) -> dict[str, Any]:
        """Add what a run found; its line."""
        line = {
            "key": key,
            "study": study,
            "label": list(label),
            "lr": choice[0],
            "clip": choice[1],
            "seed": seed,
            "held_out": held_out,
            **found,
        }
        self.add(line)
        return line

    def of(self, arm: Arm, choice: Choice, seed: int, held_out: float = 0.0) -> dict[str, Any]:
        """The line of this run: from the file, or run now."""
        settings = arm.at(choice, seed, held_out)
        key = key_of(settings)
        if key not in self.found:
            found = measured(settings, arm.curve)
            line = self.enter(key, arm.study, arm.label, choice, seed, found, held_out)
            print(time.strftime("%H:%M:%S"), arm.name, _told(line), flush=True)
        return self.found[key]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; one that was cut off in the middle counts as not written."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _told(line: dict[str, Any]) -> str:
    said = f"lr {line['lr']:g}, clip {line['clip']:g}, seed {line['seed']}: "
    if "refused" in line:
        return said + line["refused"]
    return said + f"{line['last']:.4f} {line['tail']:.4f} in {line['seconds']:.1f} s"


def key_of(settings: Settings) -> str:
    """A name for exactly these settings.

    >>> key_of({"a.b": 1, "c.d": 2}) == key_of({"c.d": 2, "a.b": 1}) != key_of({"a.b": 1})
    True
    """
    body = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def by_section(settings: Settings) -> dict[str, dict[str, Any]]:
    """Settings as the tables of a config.

    >>> by_section({"train.lr": 0.1, "train.seed": 1, "data.name": "mnist"})
    {'train': {'lr': 0.1, 'seed': 1}, 'data': {'name': 'mnist'}}
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        section, key = name.split(".")
        tables.setdefault(section, {})[key] = value
    return tables


def measured(settings: Settings, curve: bool = True) -> dict[str, Any]:
    """Plan, verify and train once; accuracy of the last iterate and of the mean of the last ones,
    with the CPU seconds that it took; if nothing is held out and a `curve` is wanted, also after
    every round. What fedspend refuses is a result too.
    """
    began = time.process_time()
    try:
        found = _trained(settings, curve)
    except (InvalidInput, Refused) as refusal:
        found = {"refused": str(refusal)}
    return found | {"seconds": round(time.process_time() - began, 2)}


Play = Callable[["TrainingState | None"], Iterator["TrainingState"]]
_VERIFIED: set[str] = set()  # hashes of plans: learning rate, clip and seed are not in a plan


def prepared(settings: Settings) -> tuple[Setup, Play]:
    """The parts of a run whose plan is verified, and a function that plays its rounds from a state,
    or from the beginning, giving the state after each.
    """
    import torch

    from fedspend.client.state import MemoryStates
    from fedspend.configuration.config import any_config
    from fedspend.runs.certifying import examine
    from fedspend.runs.running import open_engine
    from fedspend.runs.setup import flat_parameters, from_config
    from fedspend.runs.stores import MemoryStore
    from fedspend.server.rounds import begin, run_rounds

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        # in this process alone: CPU seconds of workers would not be counted
        setup = from_config(any_config(by_section(in_memory({**settings, "engine.workers": 1}))))
    if setup.plan is not None and setup.plan.hash not in _VERIFIED:
        examine(setup, None)
        _VERIFIED.add(setup.plan.hash)

    def play(state: TrainingState | None) -> Iterator[TrainingState]:
        engine = open_engine(setup, MemoryStates())
        try:
            rounds = run_rounds(
                state or begin(flat_parameters(setup.module), setup.method),
                setup.method,
                engine,
                setup.training,
                setup.randomness,
                MemoryStore(),
                lambda _, statistics: statistics,
            )
            for after, _ in rounds:
                yield after
        finally:
            engine.close()

    return setup, play


def _trained(settings: Settings, curve: bool) -> dict[str, Any]:
    import torch

    from fedspend.models.evaluation import evaluate

    setup, play = prepared(settings)
    rows = torch.from_numpy(setup.federation.dataset.test_features)
    answers = torch.from_numpy(setup.federation.dataset.test_labels)
    iterates = [state.parameters for state in play(None)]

    def accuracy(model: np.ndarray[Any, Any]) -> float:
        _, share = evaluate(setup.module, torch.from_numpy(model.astype(np.float32)), rows, answers)
        return round(share, 5)

    found = {
        "last": accuracy(iterates[-1]),
        "tail": accuracy(np.mean(iterates[-TAIL:], axis=0)),
        "plan": None if setup.plan is None else setup.plan.hash.removeprefix("sha256:")[:16],
    }
    if curve and not settings["data.validation"]:
        found["curve"] = [accuracy(model) for model in iterates]
    return found


# --- tuning ---------------------------------------------------------------------------------------


def searched(
    score: Callable[[Choice], float],
    start: Choice,
    most: int = MOST_TRIES,
    clips: bool = True,
    rates: bool = True,
) -> tuple[Choice, int]:
    """The best learning rate and clip, and how many were tried.

    From `start`, both neighbours of the learning rate and of the clip are tried, a factor of two
    away; the search moves to the best of them until none is better, or `most` were tried.

    >>> searched(lambda choice: -abs(choice[0] - 0.4) - abs(choice[1] - 1), (0.1, 1.0))
    ((0.4, 1.0), 11)
    >>> searched(lambda choice: -abs(choice[0] - 0.4), (0.1, 1.0), clips=False)
    ((0.4, 1.0), 5)
    >>> searched(lambda choice: -abs(choice[1] - 0.5), (0.1, 1.0), rates=False)
    ((0.1, 0.5), 4)
    """
    scores: dict[Choice, float] = {}
    best = start
    while True:
        lr, clip = best
        around = [best]
        if rates:
            around += [(lr * STEP, clip), (lr / STEP, clip)]
        if clips:
            around += [(lr, clip * STEP), (lr, clip / STEP)]
        for choice in around:
            if choice not in scores and len(scores) < most:
                scores[choice] = score(choice)
        found = max((choice for choice in around if choice in scores), key=lambda one: scores[one])
        if not scores[found] > scores[best]:
            return best, len(scores)
        best = found


def tuned(results: Results, arm: Arm) -> tuple[Choice, int]:
    """Learning rate and clip with the best accuracy on held-out training rows."""
    if arm.like is not None:
        (lr, clip), tried = tuned(results, arm.like)
        return (lr, clip * arm.clip_times), tried
    if arm.tries == 1:
        return arm.start, 1

    def score(choice: Choice) -> float:
        return held_out_score(results, arm, choice)

    return searched(score, arm.start, arm.tries, arm.clips, arm.rates)


def held_out_score(results: Results, arm: Arm, choice: Choice) -> float:
    """Accuracy on held-out training rows, the mean of the arm's tuning seeds."""
    lines = [results.of(arm, choice, seed, HELD_OUT) for seed in arm.tuning]
    return float(np.mean([line.get(arm.readout, -np.inf) for line in lines]))


def changed(arm: Arm, changes: Settings) -> Arm:
    """The arm with other settings; one that it divides by the learning rate stays divided."""
    over_lr = {name: changes.get(name, value) for name, value in arm.over_lr.items()}
    others = {name: value for name, value in changes.items() if name not in over_lr}
    return replace(arm, settings={**arm.settings, **others}, over_lr=over_lr)


def settled(results: Results, arm: Arm) -> tuple[Arm, Choice, int]:
    """The arm as it is run in the end, with its learning rate and clip, and how many settings were
    tried: with the best, on held-out training rows, of the changes that it is to choose among, at
    its own learning rate and clip and at those of other arms, if it names some; the first one, if
    others are only as good. At the choice of another arm, what the search has met counts again.
    """
    choice, tried = tuned(results, arm)
    best, seen = arm, {key_of(arm.at(choice, 0))}  # the search has tried that one
    choices = dict.fromkeys([choice, *(tuned(results, one)[0] for one in arm.also_at)])
    for changes in filter(None, (arm.among, arm.next_among)):
        made = [(changed(best, one), at) for at in choices for one in changes]
        best, choice = max(made, key=lambda one: held_out_score(results, *one))
        seen |= {key_of(one.at(at, 0)) for one, at in made}
        choices = {choice: None}
    return changed(best, arm.then), choice, tried + len(seen) - 1


def finish(results: Results, arm: Arm) -> None:
    """Tune an arm, then run all its seeds; what is in the file already is not run again."""
    one, choice, _ = settled(results, arm)
    for seed in arm.seeds:
        results.of(one, choice, seed)


# --- reading --------------------------------------------------------------------------------------


class Unfinished(LookupError):
    """A run that a table needs is not in the results file."""


@dataclass
class Finished(Results):
    """Results as they are: nothing is run, a run that is missing is an `Unfinished`."""

    def of(self, arm: Arm, choice: Choice, seed: int, held_out: float = 0.0) -> dict[str, Any]:
        key = key_of(arm.at(choice, seed, held_out))
        if key not in self.found:
            raise Unfinished(arm.name)
        return self.found[key]


@dataclass(frozen=True)
class Outcome:
    """The results of one arm, by seed; `tried` is the size of its search."""

    arm: Arm
    choice: Choice
    tried: int
    lines: tuple[dict[str, Any], ...]

    @property
    def refused(self) -> str | None:
        return next((line["refused"] for line in self.lines if "refused" in line), None)

    def percent(self, readout: str | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        return 100 * np.array([line[readout or self.arm.readout] for line in self.lines])

    @property
    def seconds(self) -> float:
        return float(sum(line["seconds"] for line in self.lines))


def outcome(results: Results, arm: Arm) -> Outcome | None:
    """What the file says of an arm; None if a part of it has not been run."""
    try:
        one, choice, tried = settled(results, arm)
        lines = tuple(results.of(one, choice, seed) for seed in arm.seeds)
    except Unfinished:
        return None
    return Outcome(one, choice, tried, lines)


def difference(ours: Outcome, base: Outcome) -> tuple[float, float | None]:
    """Mean of the differences by seed, in points, and half the width of its 95% interval; over the
    seeds that both have.
    """
    one, other = (dict(zip(arm.arm.seeds, arm.percent(), strict=True)) for arm in (ours, base))
    return interval(np.array([one[seed] - other[seed] for seed in one if seed in other]))


def compared(ours: Outcome | None, base: Outcome | None) -> tuple[float, float | None] | None:
    """Their difference; None if one of them is not finished or was refused."""
    if ours is None or base is None or ours.refused or base.refused:
        return None
    return difference(ours, base)


def run_arms(results: Results, arms: Sequence[Arm]) -> None:
    """Finish every arm that is not, in this order, but for those that another process is at; after
    each, but not all the time, say how long the rest may take.
    """
    seen = Finished(results.path, results.found)
    missing = [arm for arm in arms if outcome(seen, arm) is None]
    began = time.monotonic()
    told = -math.inf

    def one(arm: Arm) -> None:
        nonlocal told
        results.read_again()
        if outcome(seen, arm) is None:
            finish(results, arm)
        if time.monotonic() < told + PAUSE:
            return
        told = time.monotonic()
        left = sum(outcome(seen, other) is None for other in missing)
        done = len(missing) - left
        rest = (time.monotonic() - began) / max(done, 1) * left
        print(f"{done} of {len(missing)} arms; {_minutes(rest)}", flush=True)

    shared(results.path.parent, missing, lambda arm: chosen_with(arm).key, one)


def chosen_with(arm: Arm) -> Arm:
    """The arm whose search gives this one its learning rate and clip: itself, or another."""
    return arm if arm.like is None else chosen_with(arm.like)


def _minutes(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds >= 30 else "less than a minute left"


def cpu_hours(lines: Iterable[Mapping[str, Any]]) -> float:
    return sum(line["seconds"] for line in lines) / 3600
