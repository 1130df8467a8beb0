"""Configs of small runs: synthetic rows, logistic regression, a handful of clients and rounds.

Guarantee: what is given out is a copy, free to change. Numbers that a test rests on, it names.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from fedspend.basics.toml_text import config_text

Settings = dict[str, Any]

# it has it all: budgets of two groups, saving, momentum and a tail
CLIENT: Settings = {
    "data": {
        "name": "synthetic",
        "examples": 240,
        "features": 6,
        "classes": 3,
        "clients": 6,
        "partition": "dirichlet",
        "alpha": 0.5,
    },
    "model": {"name": "logistic"},
    "method": {"name": "time-adaptive"},
    "privacy": {
        "groups": [{"epsilon": 4.0, "share": 1}, {"epsilon": 12.0, "share": 2}],
        "saving_rate": 0.4,
        "delta": 1e-3,
        "rate": 0.8,
        "clip": 0.5,
        "accountant": "rdp",
    },
    "train": {
        "rounds": 4,
        "local_steps": 3,
        "batch_size": 8,
        "lr": 0.3,
        "seed": 5,
        "tail_average": 2,
        "server_momentum": 0.5,
    },
}
# no more than any run needs: one budget, spent evenly
PLAIN: Settings = {
    "data": {
        "name": "synthetic",
        "examples": 60,
        "features": 4,
        "classes": 2,
        "clients": 6,
        "partition": "iid",
    },
    "model": {"name": "logistic"},
    "method": {"name": "idp-fedavg"},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "rate": 0.8, "accountant": "rdp"},
    "train": {"rounds": 2, "local_steps": 2, "batch_size": 8, "lr": 0.3},
}
# every record has a budget of its own, and is charged by its rate
RECORD: Settings = {
    "data": {
        "name": "synthetic",
        "examples": 60,
        "features": 5,
        "classes": 3,
        "clients": 2,
        "partition": "iid",
    },
    "model": {"name": "logistic"},
    "method": {"name": "rpdp"},
    "privacy": {"preferences": "three-levels", "delta": 1e-3, "noise_multiplier": 4.0, "clip": 1.5},
    "train": {"rounds": 4, "local_steps": 5, "lr": 0.5, "seed": 2},
}
KINDS = {"client": CLIENT, "plain": PLAIN, "record": RECORD}


def small(kind: str = "client", **changes: Any) -> Settings:
    """A small run, `changed`."""
    return changed(KINDS[kind], **changes)


def changed(settings: Settings, **changes: Any) -> Settings:
    """A copy: `section__key=value`, where None drops the key; `section=keys` puts others in the
    place of all of them, and None drops the section.
    """
    made = copy.deepcopy(settings)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        place = made.setdefault(section, {}) if key else made
        if value is None:
            del place[key or section]
        else:
            place[key or section] = copy.deepcopy(value)
    return made


def write_toml(path: Path, settings: Settings) -> Path:
    """Settings as a config file, whose path is given back."""
    path.write_text(config_text(settings))
    return path
