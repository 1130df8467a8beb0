"""Files, targets and optimisers of every kind, each node's rows in a file of its own: the
model is that of one machine, bit for bit.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flower.in_process import InProcessGrid, Place

import fedspend
from fedspend.engines.flower import line
from fedspend.flower.node import open_node

pytestmark = pytest.mark.usefixtures("quick_verify")

CLIENTS = ("north", "south", "harbour")
PATIENTS = {
    "columns": ["age", "blood", "pressure"],
    "bounds": {"age": [0, 100], "pressure": [0, 200]},
    "categories": {"blood": ["A", "B", "0"]},
    "other": ["blood"],
    "missing": {"pressure": 120},
    "indicators": ["pressure"],
}
SPOKEN = {"text": "line", "vocabulary": "abcdefghij ", "max_length": 9}
CLASSES = {"label": "sick", "labels": ["no", "yes"]}
LOGISTIC = {"model": {"name": "logistic"}}
CASES = {
    "csv": {"data": {"name": "csv", **PATIENTS, **CLASSES}, **LOGISTIC},
    "parquet": {"data": {"name": "parquet", **PATIENTS, **CLASSES}, **LOGISTIC},
    "regression": {
        "data": {"name": "csv", **PATIENTS, "label": "days", "label_bounds": [0, 30]},
        "model": {"name": "linear"},
        "task": {"loss": "squared"},
    },
    "several numbers": {
        "data": {
            "name": "parquet",
            **PATIENTS,
            "label": ["days", "cost"],
            "label_bounds": {"days": [0, 30], "cost": [0, 9]},
        },
        "model": {"name": "mlp", "hidden": [3]},
        "task": {"loss": "absolute"},
    },
    "several answers": {
        "data": {"name": "csv", **PATIENTS, "label": ["sick", "tired"], "labels": ["no", "yes"]},
        "model": {"name": "linear"},
        "task": {"loss": "multi-label"},
    },
    "texts": {
        "data": {"name": "csv", **SPOKEN, **CLASSES},
        "model": {"name": "lstm", "vocabulary": 12, "width": 4},
    },
    "next token": {
        "data": {"name": "parquet", **SPOKEN, "label": "line"},
        "model": {"name": "lstm", "vocabulary": 12, "width": 4},
        "task": {"loss": "next-token"},
    },
    "adam": {
        "data": {"name": "csv", **PATIENTS, **CLASSES},
        "model": {"name": "mlp", "hidden": [3]},
        "train": {"optimizer": "adam", "proximal": 0.1, "gradient_clip": 1.0, "weight_decay": 0.01},
    },
    "server": {
        "data": {"name": "csv", **PATIENTS, **CLASSES},
        **LOGISTIC,
        "train": {"server_optimizer": "yogi", "server_lr": 0.1, "tail_average": 2, "momentum": 0.5},
    },
}


def rows_of(count: int, seed: int) -> list[dict[str, object]]:
    generator = np.random.default_rng(seed)
    letters = list(SPOKEN["vocabulary"])

    def one() -> dict[str, object]:
        age = int(generator.integers(20, 90))
        return {
            "age": age,
            "blood": str(generator.choice(["A", "B", "0", "AB"])),
            "pressure": None if generator.random() < 0.2 else int(generator.integers(80, 180)),
            "sick": "yes" if age > 55 else "no",
            "tired": str(generator.choice(["no", "yes"])),
            "days": float(generator.integers(0, 30)),
            "cost": float(generator.integers(0, 9)),
            "line": "".join(generator.choice(letters, generator.integers(3, 12))).strip() or "a",
        }

    return [one() for _ in range(count)]


def written(path, rows, kind):
    if kind == "csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0].keys())
            table.writeheader()
            table.writerows(rows)
        return str(path)
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.full(but=["several answers"])
@pytest.mark.parametrize("name", CASES)
def test_the_model_is_that_of_one_machine(name, tmp_path, monkeypatch):
    case = CASES[name]
    kind = case["data"]["name"]
    rows = {client: rows_of(9 + 4 * n, n) for n, client in enumerate(CLIENTS)}
    together = [one | {"clinic": client} for client in CLIENTS for one in rows[client]]
    files = {
        client: written(tmp_path / f"{client}.{kind}", rows[client], kind) for client in CLIENTS
    }
    data = case["data"] | {"test_path": written(tmp_path / f"public.{kind}", rows_of(12, 9), kind)}
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("client,epsilon\nnorth,8\nsouth,12\nharbour,20\n")
    server = {
        **{name: case[name] for name in ("model", "task") if name in case},
        "method": {"name": "idp-fedavg"},
        "privacy": {
            "budgets": str(budgets),
            "delta": 1e-3,
            "rate": 0.8,
            "accountant": "rdp",
            "randomness": "seeded",
        },
        "train": {"rounds": 3, "local_steps": 2, "batch_size": 4, "lr": 0.1, "seed": 5}
        | case.get("train", {}),
    }
    nodes = {
        n + 50: Place(
            open_node(
                {
                    "node": {"client": client, "state": str(tmp_path / client)},
                    "data": case["data"] | {"path": files[client]},
                    **{name: case[name] for name in ("model", "task") if name in case},
                    "privacy": {"randomness": "seeded"},
                    "train": {"seed": 5},
                }
            )
        )
        for n, client in enumerate(CLIENTS)
    }
    grid = InProcessGrid(nodes)
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    there = fedspend.train(
        server | {"data": data, "engine": {"name": "flower", "deadline": 60.0}}, grid=grid
    )
    whole = {
        "path": written(tmp_path / f"all.{kind}", together, kind),
        "client": "clinic",
    }
    alone = fedspend.train(server | {"data": data | whole})
    assert bits(there.model) == bits(alone.model)
    assert there.metrics[-1][there.metric] == alone.metrics[-1][alone.metric]


def bits(model: torch.nn.Module) -> bytes:
    found = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    assert np.isfinite(found).all()
    return found.tobytes()
