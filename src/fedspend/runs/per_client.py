"""How good the final model of a simulation is for each client, on that client's own rows.

Guarantee: these numbers are exact, so they exist for simulations only; a real run never gets here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedspend.basics.arrays import FloatArray
from fedspend.data.partition import ABSENT
from fedspend.models.evaluation import measure
from fedspend.models.flat import flat_vector
from fedspend.models.inputs import as_input
from fedspend.runs.setup import Setup


def per_client(setup: Setup, spent: FloatArray | None = None) -> list[dict[str, Any]]:
    """A row for each client. Of a plan of records, budget and epsilon are those of the record that
    spends most. `spent`: by accounts in all runs, if the plan is over lifetime budgets.
    """
    assert setup.randomness.simulation
    dataset, plan = setup.federation.dataset, setup.plan
    vector = flat_vector(setup.module)
    found: list[dict[str, Any]] = []
    for number, (client, shard) in enumerate(
        zip(setup.federation.clients, setup.federation.shards, strict=True)
    ):
        rows = np.asarray(shard)
        rows = rows[rows != ABSENT]
        loss, metrics = measure(
            setup.module,
            vector,
            as_input(torch.from_numpy(dataset.features[rows]), integers=setup.integers),
            torch.from_numpy(dataset.labels[rows]),
            setup.task,
        )
        line: dict[str, Any] = {"client": client}
        if plan is not None:
            mine = np.flatnonzero(plan.owner == number)
            epsilon = plan.epsilon if spent is None else spent
            most = mine[np.argmax(epsilon[mine])] if mine.size else None
            line["budget"] = None if most is None else float(plan.budget[most])
            line["epsilon"] = None if most is None else float(epsilon[most])
        found.append(line | {"rows": len(rows), **metrics, "loss": loss})
    return found
