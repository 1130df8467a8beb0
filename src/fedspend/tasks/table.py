"""The registries of losses and metrics. Works without torch, because reading a config uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedspend.basics.registry import Entry, Registry
from fedspend.tasks import losses, metrics
from fedspend.tasks.copies import copied, refuse_uncopied
from fedspend.tasks.kinds import BINARY, CLASSES, KEPT, NUMBERS, SEVERAL, TOKENS


@dataclass(frozen=True)
class Loss(Entry):
    """`of_rows(output, target, **keys)` gives one number a row; `targets` says what a target is."""

    of_rows: Callable[..., Any] = field(kw_only=True)
    targets: str = KEPT
    metrics: tuple[str, ...] = ()  # by default


@dataclass(frozen=True)
class Metric(Entry):
    """`measure(outputs, targets, kind)` gives a number. `share`: it lies between 0 and 1. `lower`
    is better. `targets` are the kinds that it is for; none: any.
    """

    measure: Callable[[Any, Any, str], float] = field(kw_only=True)
    targets: tuple[str, ...] = ()
    share: bool = False
    lower: bool = False


@dataclass(frozen=True, eq=False)
class OfTwo:
    """A user's own metric, which is not told the kind of its targets. Each call has a copy of its
    own: what a metric accumulates must not go from one client to the next.
    """

    function: Callable[[Any, Any], float]

    def __call__(self, output: Any, target: Any, _kind: str) -> float:
        return copied(self.function)(output, target)


def of_two(function: Callable[[Any, Any], float], name: str) -> OfTwo:
    refuse_uncopied(f"metric {name!r}", function)
    return OfTwo(function)


CLASSIFICATION = "classification"  # the loss of those who name none

LOSSES: Registry[Loss] = Registry(
    "loss",
    Loss(
        CLASSIFICATION,
        "cross-entropy of one score a class",
        of_rows=losses.cross_entropy,
        targets=CLASSES,
        metrics=("accuracy",),
    ),
    Loss(
        "squared",
        "regression: squared error",
        of_rows=losses.squared,
        targets=NUMBERS,
        metrics=("mse",),
    ),
    Loss(
        "absolute",
        "regression: absolute error",
        of_rows=losses.absolute,
        targets=NUMBERS,
        metrics=("mae",),
    ),
    Loss(
        "binary",
        "two classes by one logit: logistic loss",
        of_rows=losses.one_logit,
        targets=BINARY,
        metrics=("accuracy",),
    ),
    Loss(
        "multi-label",
        "several labels a row, each there or not: mean logistic loss",
        of_rows=losses.several_labels,
        targets=SEVERAL,
        metrics=("accuracy",),
    ),
    Loss(
        "next-token",
        "one class for each place of a sequence: mean cross-entropy of a row's places",
        of_rows=losses.next_token,
        targets=TOKENS,
        metrics=("accuracy", "perplexity"),
    ),
    section="task",
)

_SCORED = (CLASSES, BINARY, SEVERAL)
METRICS: Registry[Metric] = Registry(
    "metric",
    Metric(
        "accuracy",
        "share of right answers",
        measure=metrics.accuracy,
        targets=(*_SCORED, TOKENS),
        share=True,
    ),
    Metric(
        "f1",
        "harmonic mean of precision and recall, the mean over classes or labels",
        measure=metrics.f1,
        targets=_SCORED,
        share=True,
    ),
    Metric(
        "auc",
        "area under the ROC curve, for two classes or several labels",
        measure=metrics.auc,
        targets=_SCORED,
        share=True,
    ),
    Metric("mse", "mean squared error", measure=metrics.mse, targets=(NUMBERS,), lower=True),
    Metric("mae", "mean absolute error", measure=metrics.mae, targets=(NUMBERS,), lower=True),
    Metric("r2", "share of variance explained", measure=metrics.r2, targets=(NUMBERS,)),
    Metric(
        "perplexity",
        "exponential of the mean cross-entropy",
        measure=metrics.perplexity,
        targets=(CLASSES, TOKENS),
        lower=True,
    ),
    section="task",
)
