"""The planner page as one file that needs no server: it carries the answers that it can show.

Guarantee: every answer in the tables is the planner's for exactly those settings, by the accountant
that the page names, rounded to six digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fedspend.accounting.accountants import AUTO
from fedspend.basics.progress import OnProgress
from fedspend.errors import FedspendError
from fedspend.pages.planner.answers import answer
from fedspend.pages.planner.page import planner_page
from fedspend.pages.planner.settings import Settings, used_by

SCALES = (0.25, 0.5, 1, 2, 4)
ROUNDS = (10, 25, 50, 100)
RATES = (0.1, 0.5, 1.0)
TAILS = (1, 8)
DELTAS = (1e-5, 1e-6)
Axes = dict[str, tuple[Any, ...]]


def exported_page(settings: Settings, progress: OnProgress | None = None) -> str:
    """The page for these budgets and everything that they are varied with."""
    start = replace(settings, tail=settings.tail or 1) if _has_tail(settings) else settings
    axes = axes_of(start)
    variants = list(varied(start, axes))
    found = {}
    for done, (key, one) in enumerate(variants):
        if progress is not None:
            progress(done, len(variants))
        found[key] = _table(one)
    if progress is not None:
        progress(len(variants), len(variants))
    kept = {key: value for key, value in found.items() if value is not None}
    return planner_page(start, {"axes": [list(pair) for pair in axes.items()], "answers": kept})


def axes_of(settings: Settings) -> Axes:
    """What the exported page lets a person change: the usual values, and those that are set."""
    return {
        "scale": SCALES,
        "policy": tuple(dict.fromkeys((settings.policy, "optimal", "uniform"))),
        "rounds": tuple(sorted({*ROUNDS, settings.rounds})),
        "rate": tuple(sorted({*RATES, settings.rate})),
        "delta": tuple(sorted({*DELTAS, settings.delta}, reverse=True)),
        "tail": tuple(sorted({*TAILS, settings.tail or 1})),
    }


def varied(settings: Settings, axes: Axes) -> Iterator[tuple[str, Settings]]:
    """Every combination, under the key that the page looks it up by: the place of each value on its
    axis, -1 for a tail that the policy does not use.
    """
    for places in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = {name: axes[name][n] for name, n in zip(axes, places, strict=True)}
        scale = chosen.pop("scale")
        uses = used_by(chosen["policy"])
        tail = chosen["tail"] if "tail" in uses else None
        if tail is None and chosen["tail"] != axes["tail"][0]:
            continue  # the same without a tail
        options = {
            name: getattr(settings, name) if name in uses else None
            for name in ("saving_rate", "transition", "ratio", "contraction")
        }
        groups = tuple((epsilon * scale, count) for epsilon, count in settings.groups)
        made = replace(settings, groups=groups, **chosen | options | {"tail": tail})
        at = dict(zip(axes, places, strict=True)) | ({} if tail is not None else {"tail": -1})
        yield ",".join(map(str, at.values())), made


def _has_tail(settings: Settings) -> bool:
    return "tail" in used_by(settings.policy)


def _table(settings: Settings) -> dict[str, Any] | None:
    """One answer, rounded; None for settings that have no plan, a transition after the last round
    for instance.
    """
    quick = settings.accountant in (AUTO, "rdp")
    try:
        whole = answer(settings, exact=not quick)
    except FedspendError:
        return None
    plan = whole["plan"]
    kept = {name: plan[name] for name in ("accountant", "hash", "clients", "noise_of_average")}
    drop = ("settings", "config", "rounds")
    short: dict[str, Any] = _rounded(
        {name: value for name, value in whole.items() if name not in drop} | {"plan": kept}
    )
    return short | {"command": whole["command"]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
