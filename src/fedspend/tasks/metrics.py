"""The metrics that have a name: functions of (outputs, targets, kind of target) that give a number.

Guarantee: a metric that is undefined, such as the AUC of one class alone, is NaN and never a
made-up number. Places of sequences without a target (`IGNORED`) do not count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedspend.tasks.kinds import BINARY, CLASSES, IGNORED, SEVERAL, TOKENS
from fedspend.tasks.losses import alike

if TYPE_CHECKING:
    from torch import Tensor

    from fedspend.basics.arrays import BoolArray, FloatArray


def accuracy(output: Tensor, target: Tensor, kind: str) -> float:
    """The share of right answers: of rows, of labels, or of places that have a target."""
    right, counted = right_answers(output, target, kind)
    return right / counted if counted else math.nan


def right_answers(output: Tensor, target: Tensor, kind: str) -> tuple[int, int]:
    """How many answers are right, and of how many."""
    if kind in (BINARY, SEVERAL):
        given = alike(output, target) > 0
        return int((given == (target > 0.5)).sum()), target.numel()
    right = output.argmax(dim=-1) == target
    if kind == TOKENS:
        return int(right.sum()), int((target != IGNORED).sum())
    return int(right.sum()), target.numel()


def f1(output: Tensor, target: Tensor, kind: str) -> float:
    """Harmonic mean of precision and recall: of class 1 for binary tasks, else the mean over the
    classes or labels that occur among targets or answers.
    """
    if kind == CLASSES:
        found, classes = output.argmax(dim=-1), range(output.shape[-1])
        pairs = [(found == label, target == label) for label in classes]
    else:
        given, wanted = alike(output, target) > 0, target > 0.5
        pairs = [(given, wanted)] if kind == BINARY else list(zip(given.T, wanted.T, strict=True))
    scores = [_f1(given, wanted) for given, wanted in pairs if bool(given.any() | wanted.any())]
    return sum(scores) / len(scores) if scores else math.nan


def _f1(given: Tensor, wanted: Tensor) -> float:
    both = int((given & wanted).sum())
    return 2 * both / (int(given.sum()) + int(wanted.sum()))


def auc(output: Tensor, target: Tensor, kind: str) -> float:
    """The area under the ROC curve; for several labels, the mean over those that have both values.
    NaN if no label has.
    """
    if kind == CLASSES:
        scored = (output[:, 1] - output[:, 0])[:, None]
    else:
        scored = alike(output, target).reshape(len(target), -1)
    wanted = target.reshape(len(target), -1) > 0.5
    areas = [
        _area(scored[:, n].double().numpy(), wanted[:, n].numpy()) for n in range(wanted.shape[1])
    ]
    known = [area for area in areas if not math.isnan(area)]
    return sum(known) / len(known) if known else math.nan


def _area(scores: FloatArray, wanted: BoolArray) -> float:
    """The chance that a row of class 1 scores above one of class 0; ties count half."""
    import numpy as np  # not before it is needed: help must be light
    from scipy.stats import rankdata

    ones = int(wanted.sum())
    zeros = len(wanted) - ones
    if not (ones and zeros and np.isfinite(scores).all()):
        return math.nan
    ranks = float(rankdata(scores)[wanted].sum())
    return (ranks - ones * (ones + 1) / 2) / (ones * zeros)


def mse(output: Tensor, target: Tensor, _kind: str) -> float:
    return float((alike(output, target).double() - target.double()).square().mean())


def mae(output: Tensor, target: Tensor, _kind: str) -> float:
    return float((alike(output, target).double() - target.double()).abs().mean())


def r2(output: Tensor, target: Tensor, _kind: str) -> float:
    """The share of the targets' variance that is explained; the mean over several numbers a row."""
    wanted = target.double().reshape(len(target), -1)
    off = alike(output, target).double().reshape(len(target), -1) - wanted
    spread = (wanted - wanted.mean(dim=0)).square().sum(dim=0)
    if not bool((spread > 0).all()):
        return math.nan
    return float((1 - off.square().sum(dim=0) / spread).mean())


def perplexity(output: Tensor, target: Tensor, _kind: str) -> float:
    """The exponential of the mean cross-entropy over all rows, or places that have a target."""
    from torch.nn import functional

    classes = output.shape[-1]
    mean = functional.cross_entropy(
        output.reshape(-1, classes).double(), target.reshape(-1), ignore_index=IGNORED
    )
    return math.exp(min(float(mean), 700.0)) if not math.isnan(float(mean)) else math.nan
