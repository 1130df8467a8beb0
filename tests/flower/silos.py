"""Records at three silos, each with files and a config of its own; and the same on one machine."""

from __future__ import annotations

import numpy as np
from flower.in_process import InProcessGrid, Place

from fedspend.engines.flower import line
from fedspend.flower.node import open_node

SILOS = ("north", "south", "harbour")
TERMS = {
    "privacy": {"delta": 1e-3, "noise_multiplier": 2.0, "rate": 1.0, "clip": 0.8},
    "train": {"rounds": 3, "local_steps": 4, "lr": 0.3, "seed": 5},
    "method": {"name": "rpdp"},
    "model": {"name": "logistic"},
}


def written(folder, seed=0):
    generator = np.random.default_rng(seed)
    everyone, public = ["id,a,b,c,epsilon,label,silo"], ["a,b,c,label"]
    for n, silo in enumerate(SILOS):
        lines = ["id,a,b,c,epsilon,label"]
        for number in range(9 + 4 * n):
            row = generator.normal(size=3).round(3)
            values = ",".join(map(str, row))
            epsilon = (1, 3, 8)[number % 3] + n
            lines.append(f"{silo}-{number},{values},{epsilon},{int(row.sum() > 0)}")
            public.append(f"{values},{int(row.sum() > 0)}")
        (folder / silo).mkdir()
        (folder / silo / "records.csv").write_text("\n".join(lines) + "\n")
        everyone += [f"{one},{silo}" for one in lines[1:]]
    (folder / "all.csv").write_text("\n".join(everyone) + "\n")
    (folder / "public.csv").write_text("\n".join(public[:12]) + "\n")
    return folder


def terms(**privacy):
    return {name: dict(section) for name, section in TERMS.items()} | {
        "privacy": TERMS["privacy"] | privacy
    }


def node_config(folder, silo, **privacy):
    return {
        "node": {"client": silo, "state": str(folder / silo / "state"), "unit": "record"},
        "data": {
            "name": "csv",
            "classes": 2,
            "label": "label",
            "path": str(folder / silo / "records.csv"),
            "record": "id",
            "budget": "epsilon",
        },
        "model": TERMS["model"],
        "privacy": {"delta": 1e-3, "randomness": "seeded"} | privacy,
        "train": {"seed": 5},
    }


def server_config(folder, **privacy):
    return terms(**{"randomness": "seeded"} | privacy) | {
        "data": {
            "name": "csv",
            "classes": 2,
            "label": "label",
            "test_path": str(folder / "public.csv"),
        },
        "engine": {"name": "flower", "silos": list(SILOS), "deadline": 60.0, "retries": 1},
    }


def on_one_machine(folder, **privacy):
    return terms(**{"randomness": "seeded"} | privacy) | {
        "data": {
            "name": "csv",
            "classes": 2,
            "label": "label",
            "path": str(folder / "all.csv"),
            "test_path": str(folder / "public.csv"),
            "client": "silo",
            "record": "id",
            "budget": "epsilon",
        }
    }


def grid_of(folder, monkeypatch, configs=None, **settings):
    configs = configs or [node_config(folder, silo) for silo in SILOS]
    grid = InProcessGrid(
        {n + 70: Place(open_node(config)) for n, config in enumerate(configs)}, **settings
    )
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    return grid
