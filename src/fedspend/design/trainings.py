"""The trainings of a search: running one, and the file that stores the finished ones.

Guarantee: a training is a pure function of its config, so a search that was killed and resumed ends
with the same numbers as one that was never interrupted; if a kill left a line incomplete, it is
trained again. `seconds` is a measurement and is kept separate from the results.
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar, cast

import numpy as np

from fedspend.basics.files import append_line, as_line, make_folder, read_lines, write_whole
from fedspend.configuration.config import Config
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.tasks.words import ACCURACY


class Line(TypedDict):
    """One training: its settings, and test loss and accuracy after every round; None for a loss
    that is not finite.
    """

    candidate: dict[str, Any]
    seed: int
    loss: list[float | None]
    accuracy: list[float]
    seconds: float  # per round, without evaluation


def train_one(config: Config) -> tuple[list[float | None], list[float], float]:
    """Loss and accuracy after every round, and seconds per round. Nothing is stored and no plan is
    certified: this protects nobody.
    """
    from fedspend.basics.threads import single_threaded
    from fedspend.client.state import MemoryStates
    from fedspend.runs.running import open_engine
    from fedspend.runs.setup import flat_parameters, from_config
    from fedspend.runs.stores import MemoryStore
    from fedspend.server.rounds import Statistics, TrainingState, begin, run_rounds
    from fedspend.stored.run import MetricsLine

    with warnings.catch_warnings():
        # The search has already made the plan and given its warnings.
        warnings.simplefilter("ignore", FedspendWarning)
        setup = from_config(config)
    if ACCURACY not in {metric.name for metric in setup.task.metrics}:
        raise InvalidInput(
            f"a search shows accuracy beside the loss, and loss {setup.task.name!r} has none here; "
            "add it to task.metrics, or choose a loss with classes"
        )
    engine = open_engine(replace(setup, workers=1), MemoryStates())
    evaluating = 0.0
    losses: list[float | None] = []
    accuracies: list[float] = []

    def observe(state: TrainingState, _statistics: Statistics) -> MetricsLine:
        nonlocal evaluating
        start = time.perf_counter()
        loss, found = setup.measured(state.model)
        losses.append(loss if np.isfinite(loss) else None)
        accuracies.append(found[ACCURACY])
        evaluating += time.perf_counter() - start
        return {}

    start = time.perf_counter()
    with single_threaded():  # the same numbers on every machine, and one core for every training
        state = begin(flat_parameters(setup.module), setup.method)
        for _ in run_rounds(
            state,
            setup.method,
            engine,
            setup.training.to_the_end,
            setup.randomness,
            MemoryStore(),
            observe,
        ):
            pass
    engine.close()
    return losses, accuracies, (time.perf_counter() - start - evaluating) / len(losses)


class AnyLine(Protocol):
    """What the line of any training has: which setting was trained, and with which seed."""

    def __getitem__(self, key: Any, /) -> Any: ...


L = TypeVar("L", bound=AnyLine)


class Trainings(Generic[L]):
    """The folder of a search: `search.json` has the settings that its trainings share,
    `trainings.jsonl` a line for each training, with the keys of `kind`.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], kind: type[L]) -> None:
        self.folder = folder
        self._file = folder / "trainings.jsonl"
        if (folder / "search.json").exists():
            _same_settings(folder, settings)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(
                f"{folder} is not empty and is not the folder of a search; choose another folder"
            )
        else:
            make_folder(folder)
            write_whole(
                folder / "search.json",
                (json.dumps({"settings": settings}, indent=1) + "\n").encode(),
            )
        lines = read_lines(self._file)
        self._done: dict[tuple[str, int], L] = {}
        for number, line in enumerate(lines, start=1):
            if not (isinstance(line, dict) and line.keys() == kind.__annotations__.keys()):
                raise InvalidInput(
                    f"{self._file}:{number}: not the record of a training; remove this line or "
                    "choose another folder"
                )
            self._remember(cast(L, line))
        # drops an incomplete last line, which a kill may have left
        write_whole(self._file, b"".join(map(as_line, lines)))

    def _remember(self, line: L) -> None:
        self._done[json.dumps(line["candidate"], sort_keys=True), line["seed"]] = line

    def add(self, line: L) -> None:
        append_line(self._file, as_line(cast(dict[str, Any], line)))
        self._remember(line)

    def get(self, key: str, seed: int) -> L | None:
        return self._done.get((key, seed))


def _same_settings(folder: Path, settings: dict[str, Any]) -> None:
    try:
        stored = json.loads((folder / "search.json").read_text(encoding="utf-8"))["settings"]
        stored.items()
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidInput(f"{folder}/search.json is damaged; choose another folder") from None
    for key in sorted(set(stored) | set(settings)):
        then, now = stored.get(key), settings.get(key)
        if then != now:
            raise InvalidInput(
                f"{folder} holds another search: {key} was {then!r} and is now {now!r}; choose "
                "another folder"
            )
