"""Early stopping as a config, or an argument, asks for it.

Guarantee: a real run stops by a metric of public rows, or by one that its plan pays for. Exact
numbers about rows of clients are refused: that a run stopped, and when, would give them away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspend.configuration.evaluation import CLIENTS, Evaluation
from fedspend.configuration.sections import PRIVATE, SECTIONS, StopSettings
from fedspend.errors import InvalidInput, Refused
from fedspend.server.early_stopping import BEST, StopRule
from fedspend.tasks.task import Task
from fedspend.tasks.words import private_key

LOSS = "loss"


def stop_settings(given: Any) -> StopSettings:
    """The argument `stop` of Python, which has the keys of the section."""
    keys = SECTIONS["stop"]
    if not (isinstance(given, Mapping) and "patience" in given):
        raise InvalidInput(f'stop must be a dict such as {{"patience": 5}}, got {given!r}')
    for name, value in given.items():
        if name not in keys:
            raise InvalidInput(f"stop has no key {name!r}; use {', '.join(keys)}")
        try:
            keys[name].read(value)
        except ValueError:
            raise InvalidInput(f"{name} in stop must be {keys[name].asks}, got {value!r}") from None
    return StopSettings(**{name: keys[name].read(value) for name, value in given.items()})


def stop_rule(
    asked: StopSettings, evaluation: Evaluation, task: Task, rounds: int, *, tail: int, real: bool
) -> StopRule | None:
    """The rule that is asked for, None if there is none."""
    if asked.patience is None:
        return None
    metric = asked.metric or task.metric
    known = {one.name: one.lower for one in task.metrics} | {LOSS: True}
    if metric not in known:
        raise InvalidInput(
            f"stop.metric is {metric!r}, which is not measured; choose among {', '.join(known)}, "
            "or add it to the task's metrics"
        )
    paid = evaluation.mode == PRIVATE
    if paid and metric != task.metric:
        raise InvalidInput(
            f"stop.metric is {metric!r}, but the metric that is released privately is "
            f"{task.metric!r}; name that one, or drop stop.metric"
        )
    if real and not (paid or evaluation.exact):
        if evaluation.rows == CLIENTS:
            raise Refused(
                "stopping by an exact metric of clients' rows would give them away, and nothing "
                'pays for that; set evaluation.mode = "private", or give public rows '
                "(data.test_path)"
            )
        raise InvalidInput(
            "stop.patience needs a metric, and nothing is measured here; give public rows "
            '(data.test_path), or set evaluation.mode = "private"'
        )
    first = asked.first or 1
    if first > rounds:
        raise InvalidInput(f"stop.first is {first}, but there are {rounds} rounds; lower it")
    keep = asked.keep or BEST
    if paid and keep == BEST and tail > 1:
        raise InvalidInput(
            f"tail_average is {tail}, but private metrics are about single iterates, so their mean "
            'would never be the best model; set stop.keep = "last", or drop tail_average'
        )
    return StopRule(
        key=private_key(metric) if paid else metric,
        patience=asked.patience,
        lower=known[metric],
        least=asked.least or 0.0,
        first=first,
        keep=keep,
        of_beginning=paid,
    )
