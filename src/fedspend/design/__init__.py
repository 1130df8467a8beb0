"""Parameter design: choose noise, rounds and sampling rate before any budget is spent.

Theory and sorting need only numpy; `run_search` trains, so it needs torch, which it loads when
called.

>>> low, high = pareto_noise(50, k=22, rate=1, clients=10, max_rounds=200)
>>> round(low, 10), round(high, 10)
(0.0953462589, 0.0953462589)
"""

from __future__ import annotations

from typing import Any

from fedspend.basics.removed import refuse_name
from fedspend.design.estimation import KEstimate, estimate_k
from fedspend.design.pareto import (
    case_of,
    noise_for,
    objectives,
    pareto_front,
    pareto_noise,
    pareto_rate,
)
from fedspend.design.sorting import non_dominated

__all__ = [
    "KEstimate",
    "case_of",
    "estimate_k",
    "noise_for",
    "non_dominated",
    "objectives",
    "pareto_front",
    "pareto_noise",
    "pareto_rate",
    "run_search",
]


def __getattr__(name: str) -> Any:
    if name == "run_search":
        from fedspend.design.searching import run_search

        return run_search
    refuse_name(f"fedspend.design.{name}")
    raise AttributeError(f"module 'fedspend.design' has no attribute {name!r}")
