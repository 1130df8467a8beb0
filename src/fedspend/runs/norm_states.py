"""Private states of a run whose records pay for their own norms, with all clients on one machine.

Version 0.1.0 kept all clients' norms in one file in the run directory; `adopt_norms` hands them to
the clients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspend.basics.tensors import read_tensors
from fedspend.client.norm_budgets import NormBudget
from fedspend.client.state import States
from fedspend.errors import InvalidInput
from fedspend.runs.setup import Setup, flat_parameters
from fedspend.server.rounds import begin, round_task, tasks_of
from fedspend.stored.files import OLD_NORMS


def norm_budgets(setup: Setup, states: States) -> list[NormBudget]:
    """One per client, in the order of the plan; none unless records pay for their own norms."""
    if setup.plan is None or not setup.plan.by_norm:
        return []
    terms = setup.method.terms(0, setup.method.start())
    shared = round_task(begin(flat_parameters(setup.module), setup.method), terms, setup.training)
    everybody = tasks_of(np.arange(len(setup.plan.clients)), terms, setup.training.clients, shared)
    return [NormBudget(task, states, setup.randomness.simulation) for task in everybody]


def refuse_leftovers(setup: Setup, states: States) -> None:
    """Refuse to overwrite existing states: a new run has none, so they are another run's."""
    if setup.plan is None or not setup.plan.by_norm:
        return
    for client in setup.plan.clients:
        if states.read(client) is not None:
            raise InvalidInput(
                f"{states.place(client)} belongs to another run; choose another folder, or remove "
                "it if that run will not be continued"
            )


def adopt_norms(folder: Path, budgets: list[NormBudget], setup: Setup) -> None:
    """Move what version 0.1.0 kept in the run directory to the clients."""
    path = OLD_NORMS.of(folder)
    if not budgets or not path.exists():
        return
    assert setup.plan is not None  # there are no budgets of norms without one
    arrays, about = read_tensors(path)
    records = len(setup.plan.names)
    fits = set(arrays) == {"before", "after"} and all(
        one.shape == (records,) for one in arrays.values()
    )
    if not (
        fits
        and about.get("plan") == setup.plan.hash
        and type(about.get("round")) is int
        and about["round"] >= 0
    ):
        raise InvalidInput(
            f"{path} belongs to another run; restore the run's own file, or start a new run"
        )
    for number, budget in enumerate(budgets):
        mine = setup.plan.owner == number
        budget.adopt(about["round"], arrays["before"][mine], arrays["after"][mine])
    path.unlink()
