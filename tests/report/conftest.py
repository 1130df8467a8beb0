"""Run directories made by hand: a real plan and a real certificate, with metrics that look like a
training run.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import fedspend
from fedspend.report.groups import group_clients

QUICKSTART = (10.0,) * 34 + (20.0,) * 43 + (30.0,) * 23


@functools.cache
def planned(
    epsilons: tuple[float, ...],
    rounds: int,
    saving_rate: float | None,
    method: str,
    accountant: str,
) -> Any:
    """A plan and its verdict."""
    plan = fedspend.plan(
        list(epsilons),
        delta=1e-5,
        rounds=rounds,
        rate=0.9,
        saving_rate=saving_rate,
        method=method,
        accountant=accountant,
    )
    return plan, fedspend.verify(plan, max_pld=3).to_dict()


def make_run(
    folder: Path,
    *,
    epsilons: Sequence[float] = QUICKSTART,
    method: str = "time-adaptive",
    rounds: int = 25,
    done: int | None = None,
    randomness: str = "seeded",
    labels: Sequence[str] | None = None,
    accountant: str = "rdp",
    best: float = 0.86,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
    certificate: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write what `fedspend train` would leave behind after `done` rounds; `change` edits a line of
    the metrics.
    """
    folder.mkdir(parents=True)
    saving = 0.6 if method == "time-adaptive" else None
    plan, verdict = (
        (None, None)
        if method == "fedavg"
        else planned(tuple(epsilons), rounds, saving, method, accountant)
    )
    about = {
        "settings": {
            "data.name": "digits",
            "data.clients": len(epsilons),
            "data.partition": "dirichlet",
            "data.alpha": 0.1,
            "model.name": "logistic",
            "method.name": method,
            "privacy.groups": [{"epsilon": 10.0, "share": 0.34}, {"epsilon": 20.0, "share": 0.66}],
            "privacy.noise": "central",
            "privacy.randomness": randomness,
            "train.rounds": rounds,
            "train.lr": 0.2,
            "train.seed": 1,
            "plan": None if plan is None else plan.hash,
        }
        | (settings or {}),
        "simulation": randomness == "seeded",
        "majority": 0.102,
        "groups": None if labels is None else list(labels),
        "environment": {
            "fedspend": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "system": "Linux x86_64",
        },
    }
    (folder / "run.json").write_text(json.dumps(about))
    if plan is not None and verdict is not None:
        plan.save(folder / "plan.json")
        (folder / "certificate.json").write_text(
            json.dumps(verdict | {"randomness": randomness} | (certificate or {}))
        )
    spent, grouping = (None, None) if plan is None else (plan.spent(), group_clients(plan, labels))
    lines = []
    for t in range(1, (rounds if done is None else done) + 1):
        gone = 1 - math.exp(-t / 6)
        record: dict[str, Any] = {
            "round": t,
            "accuracy": round(0.1 + (best - 0.1) * gone + 0.012 * math.sin(2.3 * t), 4),
            "loss": round(2.3 - 1.7 * gone + 0.03 * math.cos(1.7 * t), 4),
            "epsilon": {}
            if spent is None
            else {
                name: float(spent[t - 1, rows].max())
                for name, rows in zip(grouping.labels, grouping.members, strict=True)
            },
            "randomness": randomness,
            "noise_deviation": 0.0
            if plan is None
            else float(plan.clip * plan.round_noise[t - 1] / 90) * (1 - 0.01 * t),
            "clip": None if plan is None else 1.0 - 0.01 * t,
        }
        if randomness == "seeded":
            record |= {
                "cohort": 71,
                "clipped_share": 0.9 - 0.4 * gone,
                "mean_norm": 1.9 - 0.8 * gone,
                "discarded": 0,
            }
            record["norm_quantiles"] = [share * record["mean_norm"] for share in (0.6, 0.9, 1.5)]
        lines.append(json.dumps(change(record)) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def make() -> Callable[..., Path]:
    return make_run
