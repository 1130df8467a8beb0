"""What a config trains for: its loss and metrics. Planning needs no torch for it.

Guarantee: a method that makes no sense for a task is refused before anything is read; a metric is
released privately only if it lies between public bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedspend.configuration.config import Config
from fedspend.configuration.sections import PRIVATE
from fedspend.errors import InvalidInput
from fedspend.server.methods.planned import AE_DPFL
from fedspend.tasks.table import CLASSIFICATION, LOSSES, METRICS

if TYPE_CHECKING:
    from fedspend.tasks.task import Task


def loss_of(config: Config) -> str:
    return config.task.loss or CLASSIFICATION


def metrics_of(config: Config) -> tuple[str, ...]:
    """The names of the config's metrics, or those that go with its loss."""
    given = config.task.metrics
    return LOSSES[loss_of(config)].metrics if given is None else tuple(given)


def configured_task(config: Config) -> Task:
    """The loss and the metrics that the config names."""
    from fedspend.tasks.task import task_of

    loss = loss_of(config)
    bounds = config.evaluation.bounds
    return task_of(
        loss, metrics_of(config), keys=config.options("task", LOSSES[loss].keys), bounds=bounds
    )


def check_task(config: Config, method: str) -> None:
    """Refuse a method that makes no sense for the loss, and a private metric without bounds."""
    loss = loss_of(config)
    if method == AE_DPFL.name and loss != CLASSIFICATION:
        raise InvalidInput(
            f"{config.where('task.loss')}: method {method!r} votes for classes, which loss "
            f"{loss!r} does not have; choose another method, or loss = {CLASSIFICATION!r}"
        )
    if config.evaluation.mode == PRIVATE:
        check_bounded(config)


def check_bounded(config: Config) -> None:
    """A private metric is reported between public bounds: nothing else bounds what one client
    adds.
    """
    names = metrics_of(config)
    if not names:
        raise InvalidInput(
            'evaluation.mode = "private" releases the first of task.metrics, and there is none; '
            "name one"
        )
    metric, bounds = METRICS[names[0]], config.evaluation.bounds
    if not metric.share and bounds is None:
        raise InvalidInput(
            f"{config.where('evaluation.mode')}: metric {metric.name!r} has no bounds of its own, "
            "so one client could move the private mean as far as it likes; state public ones "
            "(evaluation.bounds = [LOW, HIGH]), or choose a metric between 0 and 1"
        )
