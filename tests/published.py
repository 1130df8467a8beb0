"""Small real runs on arrays, and what `fedspend publish` makes of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import fedspend
from fedspend.publishing.words import DOCUMENT

BUDGETS = {"north": 3.0, "south": 5.0, "east": 8.0, "west": 8.0}


@dataclass(frozen=True)
class Published:
    run: Path
    folder: Path
    private: Path
    public: Path

    @property
    def openings(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.openings")

    def opening(self, client: str) -> Path:
        return self.openings / "clients" / f"{client}.json"

    @property
    def document(self) -> dict:
        return json.loads((self.folder / DOCUMENT).read_text())

    def rewrite(self, document: dict) -> None:
        (self.folder / DOCUMENT).write_text(json.dumps(document))


def rows(seed=0, count=12):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, 3)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(np.int64)


def train_real(folder, **more):
    """A real run of four clients, three rounds."""
    plan = fedspend.plan(
        list(BUDGETS.values()),
        delta=1e-3,
        rounds=3,
        rate=0.8,
        clients=list(BUDGETS),
        accountant="rdp",  # the quickest to verify
    )
    clients = {name: rows(n) for n, name in enumerate(BUDGETS)}
    terms = {"lr": 0.1, "batch_size": 4, "local_steps": 2, "test": rows(9), "plan": plan}
    given = {"clients": clients, "model": torch.nn.Linear(3, 2), "output": folder}
    return fedspend.train(**(given | terms | more))
