"""What Flower calls at the server: `fedspend train` with clients on other machines.

Guarantee: the run is the one that `fedspend.train` makes of the server's own config: the same plan,
check, ledger, files and report. SIGTERM (also `flwr stop`) lets the current round finish; a run
that was stopped or killed goes on with `resume`.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspend.errors import FedspendError, FedspendWarning, InvalidInput, Refused
from fedspend.flower.client_app import log_here
from fedspend.flower.looking import look
from fedspend.ledger.storage import is_url
from fedspend.report.html import write_report
from fedspend.runs.result import Result
from fedspend.runs.stopping import Stopped, stop_after_round
from fedspend.runs.training import train
from fedspend.stored.files import REPORT
from fedspend.stored.run import MetricsLine
from fedspend.tasks.words import metric_of, shown

LOG = logging.getLogger("fedspend.flower")


@dataclass(frozen=True)
class Asked:
    """What `flwr run --run-config` says."""

    config: Path  # of the training
    output: Path  # the run directory
    resume: bool = False
    replan: bool = False
    ledger: str | None = None
    project: str | None = None
    check: bool = False  # only say what is wrong with the nodes

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Asked:
        """From Flower's run config, whose keys are `config`, `output`, `resume`, `replan`,
        `ledger`, `project` and `check`; paths are of the server's machine, and must be absolute:
        Flower starts the app in a folder of its own.
        """
        for key in ("config", "output"):
            if not (isinstance(given.get(key), str) and Path(str(given[key])).is_absolute()):
                raise InvalidInput(
                    f"{key} must be an absolute path on the server, got {given.get(key)!r}; give "
                    f"--run-config '{key}=\"/...\"'"
                )
        for key in ("resume", "replan", "check"):
            if type(given.get(key, False)) is not bool:
                raise InvalidInput(f"{key} must be true or false, got {given[key]!r}")
        ledger, project = given.get("ledger") or None, given.get("project") or None
        for key, value in (("ledger", ledger), ("project", project)):
            if not (value is None or isinstance(value, str)):
                raise InvalidInput(f"{key} must be text, got {value!r}")
        if ledger is not None and not (is_url(ledger) or Path(ledger).is_absolute()):
            raise InvalidInput(f"ledger must be an absolute path or a URL, got {ledger!r}")
        return cls(
            Path(given["config"]),
            Path(given["output"]),
            given.get("resume", False),
            given.get("replan", False),
            ledger,
            project,
            given.get("check", False),
        )


def server_app() -> ServerApp:
    """The app to name in a project's pyproject.toml."""
    log_here()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            asked = Asked.read(context.run_config)
            if asked.check:
                look(grid, asked.config)
            elif serve(grid, asked) is None:
                # Flower takes a run whose app returns for completed
                raise Refused("the run was stopped before its end; resume=true goes on")
        except FedspendError as error:
            LOG.error("%s", error)
            raise

    return app


class Remaining:
    """How long the rounds that are left will take, if they take as long as those so far."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._first: int | None = None  # the round that was played first, here

    def after(self, done: int, rounds: int) -> list[str]:
        """In words; nothing after the last round."""
        self._first = done if self._first is None else self._first
        each = (self._now() - self._began) / (done - self._first + 1)
        left = each * (rounds - done)
        if done >= rounds:
            return []
        minutes = round(left / 60)
        return [f"about {minutes} min left" if minutes else "less than a minute left"]


@contextmanager
def warnings_in_the_log() -> Iterator[None]:
    """What the operator should hear goes to the log, each time. Flower keeps it: some of it depends
    on rows, so it is as private as the run directory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", FedspendWarning)
        show = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if issubclass(category, FedspendWarning):
                LOG.warning("%s", message)
            else:
                show(message, category, *rest, **named)

        warnings.showwarning = tell
        yield


def serve(grid: Grid, asked: Asked) -> Result | None:
    """One run, from its config to its report; None if it was stopped before its end.

    When the SuperLink is gone, Flower sends its apps a signal, and there is no round to finish.
    """
    parent, clock = os.getppid(), Remaining()
    with stop_after_round(lambda: os.getppid() != parent) as stopping, warnings_in_the_log():

        def on_round(line: MetricsLine, rounds: int) -> None:
            metric = metric_of(line)
            good = line.get(metric)  # not every run says how good it is
            told = [] if good is None else [shown(metric, good)]
            told += clock.after(line["round"], rounds)
            LOG.info("round %d of %d%s", line["round"], rounds, ": " * bool(told) + "; ".join(told))
            if stopping() and line["round"] < rounds:
                raise Stopped(f"stopped after round {line['round']} of {rounds}")

        try:
            result = train(
                asked.config,
                output=asked.output,
                resume=asked.resume,
                replan=asked.replan,
                ledger=asked.ledger,
                project=asked.project,
                on_round=on_round,
                on_note=lambda note: LOG.info("%s: %s", asked.output, note),
                grid=grid,
                progress=False,
            )
        except Stopped as stopped:
            LOG.info("%s; run it again with resume=true to go on", stopped)
            result = None
    write_report([asked.output], REPORT.of(asked.output))
    LOG.info("report: %s", REPORT.of(asked.output))
    return result
