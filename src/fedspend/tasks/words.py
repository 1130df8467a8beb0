"""How metrics are named and shown. Works without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspend.tasks.table import METRICS

ACCURACY = METRICS["accuracy"].name


def metric_of(line: Mapping[str, Any]) -> str:
    """The metric that a line of metrics is about; lines of plain classification do not say."""
    found = line.get("metric")
    return found if isinstance(found, str) else ACCURACY


def private_key(metric: str) -> str:
    """Under which name a line has the noised metric."""
    return f"private_{metric}"


def deviation_key(metric: str) -> str:
    return f"{private_key(metric)}_deviation"


def is_share(metric: str) -> bool:
    """Whether the metric is shown in percent."""
    return metric in METRICS and METRICS[metric].share


def other_metrics(line: Mapping[str, Any]) -> list[str]:
    """Further metrics that a line has, of those that have a name."""
    return [name for name in METRICS.names if name in line and name != metric_of(line)]


def titled(metric: str) -> str:
    """The name of a metric as a heading.

    >>> titled("accuracy"), titled("mse")
    ('Accuracy', 'MSE')
    """
    return metric.upper() if metric in ("f1", "auc", "mse", "mae", "r2") else metric.capitalize()


def shown(metric: str, value: float, digits: int = 1) -> str:
    """A metric in words.

    >>> shown("accuracy", 0.512), shown("mse", 12.3456)
    ('accuracy 51.2%', 'mse 12.35')
    """
    said = f"{100 * value:.{digits}f}%" if is_share(metric) else f"{value:.4g}"
    return f"{metric} {said}"
