"""A run from its setup to its model: begin, charge, run the remaining rounds, finish.

Guarantee: nothing is trained under a plan that the independent verifier does not pass, and every
round is charged to the run's account. Certificate, metrics and model record which randomness was
used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedspend.basics.arrays import FloatArray
from fedspend.client.state import FolderStates, MemoryStates, States, folder_beside
from fedspend.engines.base import Engine
from fedspend.engines.local import make_engine
from fedspend.engines.table import ENGINES
from fedspend.errors import FedspendError
from fedspend.models.flat import load_vector
from fedspend.report.loggers import Place, checked_loggers, opened_loggers
from fedspend.runs.beginning import checked_budgets, opened_store, verified
from fedspend.runs.metrics import Observer
from fedspend.runs.moving import settle
from fedspend.runs.per_client import per_client
from fedspend.runs.recovery import check_recoverable, enrol, recovered, told
from fedspend.runs.result import Listeners, Metrics, OnNote, OnRound, Result
from fedspend.runs.row_checks import seal_rows
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.setup import Setup
from fedspend.runs.stores import RunStore
from fedspend.server.rounds import TrainingState, run_rounds

COUNTS_AS_A_WHOLE = (
    "the accounts have room for this one run only, by its own accountant: it counts as a whole, "
    "and nothing is given back if it ends early (a plan with --remaining would give back)"
)


def run(
    setup: Setup,
    folder: Path | None,
    *,
    resume: bool = False,
    moved: bool = False,
    on_round: OnRound | None = None,
    on_note: OnNote = lambda _: None,
    ledger: RunLedger | None = None,
    project: str | None = None,
    loggers: Sequence[Any] = (),
) -> Result:
    """Verify, open the account, run the remaining rounds, write the model, close the account.

    `ledger` is the one to charge. If none is given, a simulation's is in the run directory, and a
    real run is charged to the ledger of this user, for the accounts of `project`. `moved`: the run
    was in another place before, which is entered in the ledger.
    """
    here = folder is not None
    asked = [
        *checked_loggers(setup.loggers, in_folder=here),
        *checked_loggers(loggers, in_folder=here),
    ]
    listeners = Listeners(on_round, on_note, tuple(asked))
    if ledger is not None:
        return _run(setup, folder, ledger, resume, listeners, moved=moved)
    charged = setup.plan is not None and not setup.randomness.simulation
    with RunLedger.of_run(folder, None, resume=resume, project=project, charged=charged) as own:
        return _run(setup, folder, own, resume, listeners, moved=moved)


def _run(
    setup: Setup,
    folder: Path | None,
    ledger: RunLedger,
    resume: bool,
    listeners: Listeners,
    *,
    moved: bool,
) -> Result:
    states: States = MemoryStates() if folder is None else FolderStates(folder_beside(folder))
    simulation = setup.randomness.simulation
    engine = open_engine(setup, states)
    try:
        verdict = verified(setup, folder, states, ledger, resume=resume)
        store = opened_store(setup, folder, ledger, resume=resume)
        setup = replace(setup, training=replace(setup.training, run=store.run_id))
        budgets = checked_budgets(setup, folder, states)
        check_recoverable(setup, store)
        if moved and folder is not None:
            settle(folder, ledger, setup.plan, listeners.on_note)
        if setup.plan is not None and verdict is not None:
            store.write_certificate(setup.plan, verdict)
        del verdict  # it has numbers for every client, and there may be very many
        stops = setup.training.server.stop is not None
        with store.charging(setup.plan, ledger, simulation=simulation, stops=stops):
            seal_rows(setup, folder, ledger)
            enter_keys(setup, ledger)
            state = recovered(setup, store)
            if resume:
                listeners.on_note(told(store, state.done, simulation=simulation))
            elif not simulation and store.account is not None and store.account.run.alone:
                listeners.on_note(COUNTS_AS_A_WHOLE)
            enrol(budgets, state, store, listeners.on_note)
            if not state.over(setup.training.server.rounds):
                store.drop_model()  # of where the run was stopped before
            try:
                state = _play(setup, engine, store, state, folder, listeners)
            except BaseException:
                _keep_model(setup, store)
                raise
            write_model(setup, store, state)
            store.finish(stopped=state.watched.stopped)
            spent = spent_in_all_runs(setup, store)
    finally:
        engine.close()
    return _result(setup, store, folder, ledger, spent)


def enter_keys(setup: Setup, ledger: RunLedger) -> None:
    """From the first run on, the ledger knows whose key is whose."""
    book = ledger.found()
    if book is not None and setup.elsewhere is not None and setup.elsewhere.keys is not None:
        book.enter_keys(setup.elsewhere.keys)


def open_engine(setup: Setup, states: States) -> Engine:
    """The config's engine, unless the plan needs its tasks to run client by client."""
    name = setup.engine
    if setup.plan is not None and setup.plan.client_by_client and not ENGINES[name].elsewhere:
        name = "reference"
    return make_engine(name, setup.workload(states), setup.workers)


def _play(
    setup: Setup,
    engine: Engine,
    store: RunStore,
    state: TrainingState,
    folder: Path | None,
    listeners: Listeners,
) -> TrainingState:
    observer = Observer.of(setup, store.account)
    simulation = setup.randomness.simulation
    place = None
    if folder is not None:
        place = Place(folder, folder.resolve().name, store.run_id, timed=simulation)
    rounds = run_rounds(
        state,
        setup.method,
        engine,
        setup.training,
        setup.randomness,
        store,
        observer.line,
        observer.when_stopped,
    )
    with opened_loggers(listeners.loggers, place, observer.grouping, simulation=simulation) as log:
        for after, line in rounds:
            state = after
            log(line)
            if listeners.on_round is not None:
                listeners.on_round(line, setup.training.server.rounds)
    return state


def _keep_model(setup: Setup, store: RunStore) -> None:
    """However a run stops, the model of its last committed round is there."""
    with contextlib.suppress(FedspendError, OSError):  # what stopped the run is what is told
        state = store.training_state()
        if state is not None:
            write_model(setup, store, state)


def write_model(setup: Setup, store: RunStore, state: TrainingState) -> None:
    load_parameters(setup.module, state)
    plan_hash = "" if setup.plan is None else setup.plan.hash
    about: dict[str, Any] = {"randomness": setup.randomness.source, "plan": plan_hash}
    frozen = [name for name, one in setup.module.named_parameters() if not one.requires_grad]
    if frozen:
        about["frozen"] = frozen
    store.write_model(named_arrays(setup.module), about)


def spent_in_all_runs(setup: Setup, store: RunStore) -> FloatArray | None:
    """What accounts have spent, where a plan is over lifetime budgets; None for any other."""
    if setup.plan is None or store.account is None or "ledger" not in setup.plan.parameters:
        return None
    return store.account.spent(over=True)


def _result(
    setup: Setup,
    store: RunStore,
    folder: Path | None,
    ledger: RunLedger,
    spent: FloatArray | None,
) -> Result:
    metrics, where = Metrics(store.metrics()), ledger.location
    charged = {} if where is None else {"project": ledger.project, "run": store.run_id}
    return Result(
        metrics,
        setup.module,
        setup.plan,
        folder,
        where,
        metric=setup.task.metric,
        by_client=partial(per_client, setup, spent) if setup.randomness.simulation else None,
        **charged,
    )


def load_parameters(module: torch.nn.Module, state: TrainingState) -> None:
    load_vector(module, torch.from_numpy(state.handed_out))


def named_arrays(module: torch.nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.named_parameters()}
