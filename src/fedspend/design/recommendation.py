"""The setting of a search to use: the one with the lowest loss within the user's limits, and its
config to paste.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspend.basics.arrays import BoolArray
from fedspend.basics.toml_text import config_text
from fedspend.design.analysis import Findings
from fedspend.design.pareto import positive_number
from fedspend.errors import Refused


def recommend(
    findings: Findings,
    seconds: Sequence[float],
    *,
    max_epsilon: float | None = None,
    max_seconds: float | None = None,
) -> dict[str, Any]:
    """The point with the lowest mean loss within the limits; `seconds` is the time per round of
    each candidate.
    """
    fits: BoolArray = findings.counted.copy()
    rounds = np.arange(1, findings.search.rounds + 1)
    duration = np.outer(seconds, rounds)
    if max_epsilon is not None:
        fits &= findings.epsilon <= positive_number("max_epsilon", max_epsilon)
    if max_seconds is not None:
        fits &= duration <= positive_number("max_seconds", max_seconds)
    if not fits.any():
        raise Refused(_nothing_fits(findings, duration, max_epsilon, max_seconds))
    best = np.where(fits, findings.loss, np.inf).argmin()
    candidate, column = (int(n) for n in np.unravel_index(best, fits.shape))
    return findings.point(candidate, column + 1) | {
        "seconds": float(duration[candidate, column]),
        "candidate": candidate,
    }


def _nothing_fits(
    findings: Findings, duration: Any, max_epsilon: float | None, max_seconds: float | None
) -> str:
    limits = [f"epsilon at most {max_epsilon:g}"] if max_epsilon is not None else []
    limits += [f"at most {max_seconds:g} s"] if max_seconds is not None else []
    counted = findings.counted
    return (
        f"no setting of this search meets the limits ({' and '.join(limits)}): its smallest "
        f"epsilon is {findings.epsilon[counted].min():.4g} and its shortest training takes "
        f"{duration[counted].min():.2g} s; try more noise, more clients, a smaller clip or fewer "
        "rounds"
    )


def config_of_point(findings: Findings, point: dict[str, Any]) -> str:
    """The part of a config for a recommended point, to paste."""
    search = findings.search
    candidate = search.candidates[point["candidate"]]
    tables: dict[str, dict[str, Any]] = {"data": {"clients": search.clients}}
    for name, value in candidate.values().items():
        section, key = name.split(".")
        tables.setdefault(section, {})[key] = value
    tables["privacy"] |= {"clip": search.clip, "delta": search.delta}
    tables["train"] = {"rounds": point["rounds"]}
    return config_text(tables)
