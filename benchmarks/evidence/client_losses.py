"""Figure 3 of Kiani et al. (2025): the training loss of the clients, round by round.

After every round, the loss of the model on every client's own training rows; averaged over all
clients and over each group. Uniform spending against saving, Fashion-MNIST, (10, 20, 30), 25
rounds, as `kiani` trains them: each at the learning rate and clip that were chosen for it there,
both at those that were chosen for uniform spending, and both at those of examples/papers.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only client-losses

These are exact losses on clients' rows: in a simulation they cost nothing, in a real run they would
have to be paid for.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import kiani
import numpy as np
import over_time
from experiment import SEEDS, Arm, Choice, Finished, Results, Settings, key_of, prepared, tuned

STUDY = "client-losses"
SPENDING = ("uniform", "exact")
FOR_UNIFORM = "tuned for uniform"


def pairs() -> dict[str, tuple[Arm, Arm]]:
    """Uniform spending and saving, by how learning rate and clip are chosen."""
    uniform, saving = (
        replace(kiani.private("fashion-mnist", (10, 20, 30), spending), study=STUDY)
        for spending in SPENDING
    )
    shipped = {"start": over_time.SHIPPED["fashion-mnist"], "tries": 1}
    return {
        "each tuned": (uniform, saving),
        FOR_UNIFORM: (uniform, replace(saving, like=uniform)),
        over_time.AS_SHIPPED: (replace(uniform, **shipped), replace(saving, **shipped)),
    }


def arms() -> list[Arm]:
    (uniform, saving), *others = pairs().values()
    return [uniform, saving, *(arm for pair in others for arm in pair if arm is not uniform)]


def key(settings: Settings) -> str:
    return key_of({**settings, "measured": "loss of every client after every round"})


def line_of(results: Results, arm: Arm, choice: Choice, seed: int) -> dict[str, Any] | None:
    return results.found.get(key(arm.at(choice, seed)))


def run(results: Results) -> None:
    for arm in arms():
        choice, _ = tuned(results, arm)
        for seed in SEEDS:
            if line_of(results, arm, choice, seed) is None:
                settings = arm.at(choice, seed)
                found = measured(settings)
                results.enter(key(settings), STUDY, arm.label, choice, seed, found)
                print(time.strftime("%H:%M:%S"), arm.name, seed, flush=True)


def measured(settings: Settings) -> dict[str, Any]:
    """Mean loss over clients after each round, and over the clients of each budget."""
    import torch

    from fedspend.models.evaluation import scores

    began = time.process_time()
    setup, play = prepared(settings)
    federation, plan = setup.federation, setup.plan
    assert plan is not None
    rows, answers = (
        torch.from_numpy(part) for part in (federation.dataset.features, federation.dataset.labels)
    )
    budgets = np.unique(plan.budget)
    by_round: list[float] = []
    by_budget: list[list[float]] = []
    for state in play(None):
        model = torch.from_numpy(state.parameters.astype(np.float32))
        each = torch.nn.functional.cross_entropy(
            scores(setup.module, model, rows), answers, reduction="none"
        ).numpy()
        losses = np.array(
            [each[shard].mean() if len(shard) else np.nan for shard in federation.shards]
        )
        by_round.append(round(float(np.nanmean(losses)), 4))
        by_budget.append([round(float(np.nanmean(losses[plan.budget == b])), 4) for b in budgets])
    return {
        "loss": by_round,
        "budgets": budgets.tolist(),
        "loss_by_budget": by_budget,
        "plan": plan.hash.removeprefix("sha256:")[:16],
        "seconds": round(time.process_time() - began, 2),
    }


def curves(results: Finished, arm: Arm) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Loss by seed and round; None if a run is missing."""
    choice, _ = tuned(results, arm)
    found = [line_of(results, arm, choice, seed) for seed in SEEDS]
    if any(line is None for line in found):
        return None
    return np.array([line["loss"] for line in found if line is not None])
