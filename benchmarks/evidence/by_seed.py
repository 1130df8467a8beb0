"""Runs by seed, as far as they are made: what a page says of them.

Guarantee: a difference is paired by seed, over the seeds that both sides have. With fewer than two
of them there is no interval, so nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from judging import Gain
from tables import accuracy

from fedspend.runs.comparison import interval

Lines = Mapping[int, Mapping[str, Any]]  # seed -> line
LEAST = 2


def paired(ours: Lines, base: Lines, name: str = "accuracy", scale: float = 100.0) -> Gain | None:
    """The mean of the differences and half the width of its interval.

    >>> paired({1: {"accuracy": 0.75}, 2: {"accuracy": 0.5}}, {1: {"accuracy": 0.5}}) is None
    True
    >>> lines = {seed: {"accuracy": 0.5} for seed in (1, 2)}
    >>> paired({seed: {"accuracy": 0.75} for seed in (1, 2, 3)}, lines)
    (25.0, 0.0)
    """
    both = sorted(set(ours) & set(base))
    if len(both) < LEAST:
        return None
    return interval(scale * np.array([ours[seed][name] - base[seed][name] for seed in both]))


def shown(lines: Lines) -> str:
    """Accuracy in percent with its interval; a dash if there is none."""
    if len(lines) < LEAST:
        return "-"
    return accuracy(*interval(100 * np.array([line["accuracy"] for line in lines.values()])))


def spread(values: Sequence[float], pattern: str = "{:g}") -> str:
    """The least and the largest, or the one there is.

    >>> spread([0.1, 0.4, 0.2]), spread([2.0, 2.0], "{:+.1f}")
    ('0.1 to 0.4', '+2.0')
    """
    ends = dict.fromkeys(pattern.format(end) for end in (min(values), max(values)))
    return " to ".join(ends)
