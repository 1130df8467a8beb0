"""The beginning of a run, before its first round: check, verify, write the first files.

Guarantee: everything that can be refused is refused, and the plan is verified, before the run
directory is created.
"""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedspend
from fedspend.client.norm_budgets import NormBudget
from fedspend.client.state import States
from fedspend.ledger.account import stored_location
from fedspend.models.evaluation import majority_share
from fedspend.models.flat import buffers_digest
from fedspend.runs.certifying import examine
from fedspend.runs.checks import check_ledger
from fedspend.runs.directory import RunDirectory
from fedspend.runs.hold_out_key import HOLD_OUT_DIGEST, digest_of
from fedspend.runs.norm_states import adopt_norms, norm_budgets, refuse_leftovers
from fedspend.runs.offers import run_id_of
from fedspend.runs.predicting import About
from fedspend.runs.recovery import goes_on
from fedspend.runs.row_checks import refuse_other_rows
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.setup import Setup
from fedspend.runs.stores import MemoryStore, RunStore
from fedspend.stored.files import LEDGER
from fedspend.stored.run import NOISE_DRAWN, WHOLE_NUMBERS
from fedspend.tasks.kinds import BY_CLASS, outputs_of


def verified(
    setup: Setup, folder: Path | None, states: States, ledger: RunLedger, *, resume: bool
) -> dict[str, Any] | None:
    """The verdict to store, or None if it is already stored. Refuses what must not begin."""
    if not goes_on(folder, resume):
        refuse_leftovers(setup, states)
        if folder is not None or ledger.asked is not None:
            check_ledger(setup, ledger)
    refuse_other_rows(setup, folder, ledger)
    return examine(setup, folder)


def opened_store(setup: Setup, folder: Path | None, ledger: RunLedger, *, resume: bool) -> RunStore:
    """The store of a run that may begin, with its first file written."""
    if folder is None:
        charged = setup.plan is not None and ledger.asked is not None
        return MemoryStore(run_id_of(setup) if charged or setup.offer is not None else "")
    about = facts_of(setup)
    if goes_on(folder, resume):
        return RunDirectory.resume(folder, about)
    if setup.plan is not None:
        location = stored_location(ledger.asked or str(LEDGER.of(folder)), folder)
        about["ledger"] = {"location": location, "run": run_id_of(setup)} | (
            {"project": ledger.project} if ledger.project else {}
        )
    return RunDirectory.create(folder, about, setup.secret)


def checked_budgets(setup: Setup, folder: Path | None, states: States) -> list[NormBudget]:
    """What each client's records have left; unfit states are refused before anything is charged."""
    budgets = norm_budgets(setup, states)
    if folder is not None:
        adopt_norms(folder, budgets, setup)
    for budget in budgets:
        budget.check()
    return budgets


def facts_of(setup: Setup) -> dict[str, Any]:
    """The content of `run.json`, except for the ledger; `stored.run.Facts` reads it."""
    dataset, evaluation = setup.federation.dataset, setup.evaluation
    classed = evaluation.exact and dataset.kind in BY_CLASS
    return {
        "settings": setup.settings,
        "simulation": setup.randomness.simulation,
        "evaluation": {"mode": evaluation.mode, "rows": evaluation.rows},
        # accuracy of always guessing the most common class: as little public as the rows are
        "majority": majority_share(torch.from_numpy(dataset.test_labels)) if classed else None,
        **({} if setup.secret is None else {HOLD_OUT_DIGEST: digest_of(setup.secret)}),
        "groups": None if setup.labels is None else list(setup.labels),
        "model": about_model(setup),
        "environment": environment() | noise_drawn(setup),
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "sealed": True,  # checkpoint and releases carry digests
    }


def about_model(setup: Setup) -> dict[str, Any]:
    """How the model can be made again, beside the settings."""
    dataset = setup.federation.dataset
    return About(
        dataset.input_shape,
        outputs_of(dataset.kind, dataset.classes),
        dataset.kind,
        setup.integers,
        buffers_digest(setup.module),
        dataset.columns,
    ).as_json()


def noise_drawn(setup: Setup) -> dict[str, str]:
    """How the run draws its noise; nothing to say where it has none."""
    if setup.plan is None:
        return {}
    whole = setup.training.bits is not None or not setup.randomness.simulation
    return {NOISE_DRAWN: WHOLE_NUMBERS if whole else "floating point"}


def environment() -> dict[str, str]:
    return {
        "fedspend": fedspend.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }
