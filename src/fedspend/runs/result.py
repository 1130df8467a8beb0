"""What a run reports while it runs, and what it returns at its end.

Guarantee: callbacks only listen: nothing they do can change what is released. One that raises stops
the run after the round it was called for, and the run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedspend.basics.choices import choose
from fedspend.basics.tables import Table, first_rows, frame_of_rows
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.protocol import AnyPlan
from fedspend.report.round_words import describe
from fedspend.server.early_stopping import KEPT_ROUND, STOPPED, of_kept
from fedspend.stored.run import MetricsLine
from fedspend.tasks.words import ACCURACY, private_key

if TYPE_CHECKING:
    from fedspend.report.drawing import Drawing

OnRound = Callable[[MetricsLine, int], None]  # (metrics of the round, number of rounds)
OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Listeners:
    """Who is told what while a run goes on."""

    on_round: OnRound | None = None
    on_note: OnNote = lambda _: None
    loggers: tuple[Any, ...] = ()  # names, or loggers of your own (`report.loggers`)


class Metrics(list[MetricsLine]):
    """One line a round, which is also read by column: `metrics["accuracy"]`.

    Where pandas is installed, `frame()` is a data frame, and whatever else one offers is there,
    too: `metrics.plot(x="round", y="accuracy")`, `metrics.iloc[-1]`.
    """

    def frame(self) -> Any:
        """A row for each round; epsilon has a column for each group."""
        return frame_of_rows([_flat(line) for line in self])

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            names = list(dict.fromkeys(name for line in self for name in line))
            return [line.get(choose("metric", which, names)) for line in self]
        return super().__getitem__(which)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pickle, copy and notebooks ask for many such
            raise AttributeError(name)
        try:
            return getattr(self.frame(), name)
        except InvalidInput as error:
            raise AttributeError(f"metrics have no {name!r} without pandas: {error}") from None

    def _repr_html_(self) -> str:
        return _table([_flat(line) for line in self]).html()


def _flat(line: MetricsLine) -> dict[str, Any]:
    """A line with a column for each group's epsilon."""
    spent = line.get("epsilon") or {}
    flat = {name: value for name, value in line.items() if name != "epsilon"}
    return flat | {f"epsilon {group}": value for group, value in spent.items()}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    plain = [name for name in names if not isinstance(rows[-1].get(name), dict | list)]
    return Table(plain, first_rows([[row.get(name) for name in plain] for row in rows]))


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run returns.

    Attributes:
        metrics: a line for each round; also read by column: `result.metrics["accuracy"]`.
        model: the module, with the final parameters.
        plan: the plan of the run; None without privacy.
        folder: the run directory, if there is one.
        ledger: where the run was charged, under the name `run` and to the accounts of `project`;
            None if nothing was charged: without privacy, and for simulations without a run
            directory.
        metric: the name of the metric that models are judged by first.
    """

    metrics: Metrics
    model: torch.nn.Module
    plan: AnyPlan | None
    folder: Path | None
    ledger: str | None = None
    project: str = ""
    run: str = ""
    metric: str = ACCURACY  # the name of the metric that models are judged by first
    # measures the final model on each client's own rows; None in a real run
    by_client: Callable[[], list[dict[str, Any]]] | None = None

    @cached_property
    def per_client(self) -> Any:
        """In a simulation, a row for each client: its budget, the epsilon of its plan, how many
        rows it has, and loss and metrics of the final model on these. A pandas frame if pandas is
        there, else a list of dicts. Refused for real runs: nothing protects such numbers.
        """
        if self.by_client is None:
            raise Refused(
                "numbers about single clients are exact and protected by nothing, so a real run "
                'has none; simulate with randomness="seeded", or pay for a metric: '
                'evaluation.mode = "private"'
            )
        rows = self.by_client()
        return rows if find_spec("pandas") is None else frame_of_rows(rows)

    def plot(self) -> Drawing:
        """The first metric by round; in a real run only where it was released or is public."""
        from fedspend.report.drawing import drawing
        from fedspend.report.plots import metric_figure

        known = (self.metric, private_key(self.metric), "loss")
        told = (name for name in known if any(one.get(name) is not None for one in self.metrics))
        name = next(told, None)
        if name is None:
            raise InvalidInput(
                f"this run says nothing about its {self.metric}, so there is nothing to plot; "
                "result.plan.plot() shows what it spent"
            )
        values = [line.get(name) for line in self.metrics]
        curve = np.array([[np.nan if value is None else value for value in values]])
        return drawing(lambda: metric_figure({name: curve}, name))

    def __repr__(self) -> str:
        last = self.metrics[-1]
        kind = "simulation" if last.get("randomness") == "seeded" else "real run"
        told = describe(of_kept(self.metrics), last["round"]).partition("  ")[2]
        where = f", in {self.folder}" if self.folder is not None else ", not kept"
        return f"<Result: {kind} of {counted(last['round'], 'round')}: {told}{where}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self).strip('<>'))}</p>{self.metrics._repr_html_()}"

    @property
    def stopped_early(self) -> bool:
        """Whether the run's own rule ended it before its last planned round."""
        return bool(self.metrics[-1].get(STOPPED))

    @property
    def kept_round(self) -> int:
        """The round after which the model was the one that was kept: the last one, unless a
        stopping rule keeps the best.
        """
        found = self.metrics[-1].get(KEPT_ROUND)
        return int(self.metrics[-1]["round"] if found is None else found)

    @property
    def value(self) -> float | None:
        """The metric of the final model; None where a real run has no public rows to measure it."""
        return self._last(self.metric)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final model; None where it is not among the metrics, and where a real run
        has no public rows to measure it.
        """
        return self._last(ACCURACY)

    @property
    def private_value(self) -> float | None:
        """The noised metric of the model that the last round began with, or of the best one if that
        is kept, where the plan pays for one.
        """
        return self._last(private_key(self.metric))

    @property
    def private_accuracy(self) -> float | None:
        """`private_value`, where the metric is accuracy."""
        return self._last(private_key(ACCURACY))

    def _last(self, name: str) -> float | None:
        found = of_kept(self.metrics).get(name)
        return None if found is None else float(found)
