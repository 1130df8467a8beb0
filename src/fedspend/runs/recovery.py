"""Resuming an interrupted run: what is on disk, and what it means.

Guarantee: a run continues with the plan and the ledger that it began with. Committed rounds stay, a
stored release is used again, and a real round whose release is lost stays charged and is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedspend.client.norm_budgets import NormBudget
from fedspend.errors import InvalidInput
from fedspend.runs.result import OnNote
from fedspend.runs.setup import Setup, flat_parameters
from fedspend.runs.stores import MemoryStore, RunStore
from fedspend.server.rounds import TrainingState, begin
from fedspend.stored.files import CHECKPOINT
from fedspend.stored.run import StoredRun


def goes_on(folder: Path | None, resume: bool) -> bool:
    """Whether there is a run to resume; one that was killed before its first file starts afresh."""
    return folder is not None and resume and StoredRun(folder).begun


def check_recoverable(setup: Setup, store: RunStore) -> None:
    """Refuse a checkpoint of another model, and metrics that are not those of the checkpoint."""
    state, size = store.training_state(), flat_parameters(setup.module).size
    if state is not None and state.parameters.size != size:
        raise InvalidInput(
            f"{CHECKPOINT} holds a model of {state.parameters.size:,} parameters, but the run's "
            f"has {size:,}; restore it from a copy, or start a new run"
        )
    store.check_metrics(0 if state is None else state.done)


def recovered(setup: Setup, store: RunStore) -> TrainingState:
    """The training state, after dropping metrics of rounds that were not committed."""
    state = store.training_state() or begin(flat_parameters(setup.module), setup.method)
    store.keep_metrics(state.done)
    return state


def told(store: RunStore, done: int, *, simulation: bool) -> str:
    """What a resumed run found, as a sentence."""
    if isinstance(store, MemoryStore):
        return "nothing to recover"
    committed = "1 round is committed" if done == 1 else f"{done} rounds are committed"
    if not store.was_reserved(done):
        return f"{committed}; no round was under way"
    under_way = f"{committed}; round {done + 1} was under way"
    if store.kept(done) is not None:
        return f"{under_way} and its release is stored: it is used again"
    if simulation:
        return f"{under_way}: the simulation repeats it, charged once"
    return f"{under_way} and its release is lost: its budget stays spent and it is skipped"


def enrol(
    budgets: Sequence[NormBudget], state: TrainingState, store: RunStore, on_note: OnNote
) -> None:
    """Give records that pay for their norms their full budgets, once, when a run begins."""
    if state.done == 0 and not store.was_reserved(0):
        for budget in budgets:
            budget.enrol()
    elif any(budget.missing for budget in budgets):
        on_note(
            "the states of some clients are gone: for them, all rounds so far count as paid at the "
            "clip"
        )
