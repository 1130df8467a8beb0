"""Small tunes: a few rounds of logistic regression on synthetic rows, simulated or real."""

import copy
import random

import pytest
from lib.verdicts import Passed

import fedspend.tuning.checking as checking


@pytest.fixture
def quick(monkeypatch):
    """Plans of single trials are verified elsewhere; the price is verified here."""
    monkeypatch.setattr(checking, "verify_clients", Passed)


@pytest.fixture
def short(tiny):
    """Three rounds, and a delta that fits six clients."""
    tiny["privacy"]["delta"] = 1e-2
    tiny["train"] |= {"rounds": 3, "tail_average": 1}
    return tiny


@pytest.fixture
def real(short, tmp_path):
    """The same on a file of rows of named clients, with public rows to measure on."""
    short, rng = copy.deepcopy(short), random.Random(3)
    for name, count in (("rows", 60), ("test", 30)):
        lines = ["client,a,b,label"]
        for n in range(count):
            label = n % 2
            x, y = rng.gauss(label, 0.5), rng.gauss(-label, 0.5)
            lines.append(f"clinic {n % 4},{x:.4f},{y:.4f},{label}")
        if name == "test":
            lines = [line.partition(",")[2] for line in lines]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    short["data"] = {
        "name": "csv",
        "path": str(tmp_path / "rows.csv"),
        "test_path": str(tmp_path / "test.csv"),
        "label": "label",
        "client": "client",
        "classes": 2,
    }
    short["privacy"].pop("groups")
    short["privacy"] |= {"epsilon": 8.0, "saving_rate": 0.4}
    return short
