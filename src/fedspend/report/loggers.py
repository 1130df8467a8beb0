"""Where else the numbers of a run go: TensorBoard, MLflow, Weights & Biases, or your own.

A logger has two methods: `log(round, numbers)` after every round, and `close()`.

Guarantee: of a real run a logger gets what is planned, released or measured on public rows, by
name (`TOLD`), and epsilon by group; no epsilon of a single client, no cohort size, and no exact
metric of clients' rows. How long a round took tells how many clients were sampled: so TensorBoard
and MLflow get one time for all rounds of a real run, and Weights & Biases, which notes times
itself, gets them all at the end. What is written on this machine only its owner may read. A logger
that fails is left out from then on, with a warning: it never stops a run.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedspend.basics.choices import choose
from fedspend.basics.extras import missing, need
from fedspend.configuration.sections import LOGGERS, MLFLOW, TENSORBOARD, WANDB
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.report.groups import Grouping
from fedspend.stored.files import LOGS
from fedspend.stored.run import MetricsLine
from fedspend.tasks.words import deviation_key, metric_of, other_metrics, private_key

Numbers = Mapping[str, float]
TOLD = ("loss", "clip", "noise_deviation", "kept_round")  # of a real run, beside its metrics


class Logger(Protocol):
    """Somewhere that numbers go."""

    def log(self, round: int, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """What a logger is told of the run: its folder, name, id, and whether times may be noted."""

    folder: Path
    name: str
    run: str
    timed: bool

    def private(self, name: str) -> Path:
        """A folder in the run directory that only the owner may read."""
        made = self.folder / name
        made.mkdir(mode=0o700, exist_ok=True)
        made.chmod(0o700)
        return made


class TensorBoard:
    def __init__(self, place: Place) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("tensorboard") from None
        self._writer: Any = SummaryWriter(str(place.private(LOGS)))
        self._time = None if place.timed else time.time()

    def log(self, round: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round, walltime=self._time)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """To the server that MLFLOW_TRACKING_URI names, else into the run directory."""

    def __init__(self, place: Place) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise missing("mlflow") from None
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if where is None:
            # its own files: they need no database, and can be migrated to one
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            where = place.private("mlflow").resolve().as_uri()
        self._metric, self._client = Metric, MlflowClient(tracking_uri=where)
        self._run = self._opened(place)
        self._time = None if place.timed else int(time.time() * 1000)

    def _opened(self, place: Place) -> str:
        """The run in MLflow: the one that was begun before, if this run goes on."""
        found = self._client.get_experiment_by_name("fedspend")
        experiment = (
            self._client.create_experiment("fedspend") if found is None else found.experiment_id
        )
        mine = f"tags.`fedspend.run` = '{place.run}'"
        known = self._client.search_runs([experiment], mine) if place.run else []
        if known:
            return str(known[0].info.run_id)
        tags = {"fedspend.run": place.run}
        made = self._client.create_run(experiment, run_name=place.name, tags=tags)
        return str(made.info.run_id)

    def log(self, round: int, numbers: Numbers) -> None:
        when = int(time.time() * 1000) if self._time is None else self._time
        self._client.log_batch(
            self._run,
            metrics=[
                self._metric(_plain(name), value, when, round) for name, value in numbers.items()
            ],
        )

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """Offline, into the run directory: `wandb sync` sends it where you like."""

    def __init__(self, place: Place) -> None:
        try:
            import wandb
        except ImportError:
            raise missing("wandb") from None
        quiet = wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        folder = place.private("wandb-logs")
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(folder),
            project="fedspend",
            name=place.name,
            settings=quiet,
            id=place.run or None,
        )
        self._timed = place.timed
        self._waiting: list[tuple[int, dict[str, float]]] = []

    def log(self, round: int, numbers: Numbers) -> None:
        if self._timed:
            self._run.log(dict(numbers), step=round)
        else:
            self._waiting.append((round, dict(numbers)))

    def close(self) -> None:
        for round, numbers in self._waiting:
            self._run.log(numbers, step=round)
        self._run.finish()


def _plain(name: str) -> str:
    """A name that MLflow takes: letters, digits and a few signs."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


MAKERS: Mapping[str, Callable[[Place], Logger]] = {
    TENSORBOARD: TensorBoard,
    MLFLOW: MLflow,
    WANDB: WandB,
}


def numbers_of(
    line: MetricsLine, grouping: Grouping | None, *, simulation: bool
) -> dict[str, float]:
    """The numbers of a round that may leave the run directory."""
    metric = metric_of(line)
    told = (metric, *other_metrics(line), private_key(metric), deviation_key(metric), *TOLD)
    if simulation:
        told = tuple(name for name in line if name != "round")
    found = {
        name: float(value)
        for name, value in line.items()
        if name in told and isinstance(value, int | float)
    }
    sizes = {} if grouping is None else dict(zip(grouping.labels, grouping.members, strict=True))
    return found | {
        f"epsilon/{label}": float(spent)
        for label, spent in line["epsilon"].items()
        # a group of one is a client
        if simulation or (label in sizes and len(sizes[label]) > 1)
    }


def checked_loggers(asked: Sequence[Any], *, in_folder: bool) -> list[Any]:
    """Names, each once, and loggers of your own."""
    if isinstance(asked, str) or not isinstance(asked, Sequence):
        raise InvalidInput(
            f'loggers must be a list of names or loggers, for example ["mlflow"], got {asked!r}'
        )
    found: list[Any] = []
    for one in asked:
        if isinstance(one, str):
            if choose("loggers", one, LOGGERS) in found:
                continue
            need(one)
            if not in_folder:
                raise InvalidInput(
                    f"logger {one!r} writes to the run directory, and this run has none; give "
                    "output=, or a logger of your own"
                )
        elif not (callable(getattr(one, "log", None)) and callable(getattr(one, "close", None))):
            raise InvalidInput(
                f"a logger of your own needs methods log(round, numbers) and close(), got {one!r}"
            )
        found.append(one)
    return found


OnLine = Callable[[MetricsLine], None]


@contextlib.contextmanager
def opened_loggers(
    asked: Sequence[Any], place: Place | None, grouping: Grouping | None, *, simulation: bool
) -> Iterator[OnLine]:
    """Hands a line of metrics to every logger; all are closed in the end, however that comes."""
    loggers: list[Logger] = []
    for one in checked_loggers(asked, in_folder=place is not None):
        if isinstance(one, str) and place is not None:
            loggers.append(MAKERS[one](place))
        else:
            loggers.append(one)

    def log(line: MetricsLine) -> None:
        numbers = numbers_of(line, grouping, simulation=simulation)
        for one in list(loggers):
            with _left_out(one, loggers):
                one.log(int(line["round"]), numbers)

    try:
        yield log
    finally:
        for one in list(loggers):
            with _left_out(one, loggers):
                one.close()


@contextlib.contextmanager
def _left_out(one: Logger, loggers: list[Logger]) -> Iterator[None]:
    """A logger that fails is not asked again."""
    try:
        yield
    except Exception as error:
        loggers.remove(one)
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"logger {type(one).__name__} failed and is left out from here on: {reason}"
        warnings.warn(message, FedspendWarning, stacklevel=4)
