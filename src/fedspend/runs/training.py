"""`fedspend.train`: trains a model from a config, or from your own arrays, module and plan.

Guarantee: everything that decides privacy is in the plan. A plan made beforehand is used only if it
is for this config and this run; otherwise a plan is made within what the ledger has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedspend.basics.files import one_at_a_time
from fedspend.configuration.config import Config, any_config, needed
from fedspend.configuration.effects import refuse_without_effect
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.arrays import Clients, check_named, from_arrays
from fedspend.runs.checks import approved, check_names_last
from fedspend.runs.recovery import goes_on
from fedspend.runs.replanning import plan_anew
from fedspend.runs.result import OnNote, OnRound, Result
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.running import run
from fedspend.runs.setup import Setup, from_config
from fedspend.stored.run import StoredRun


def train(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    output: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    clients: Clients | None = None,
    model: torch.nn.Module | None = None,
    plan: AnyPlan | None = None,
    test: tuple[Any, Any] | None = None,
    ledger: str | Path | None = None,
    replan: bool = False,
    on_note: OnNote = lambda _: None,
    grid: Any = None,
    **options: Any,
) -> Result:
    """Train from a config (TOML file or dict of sections), or from arrays, a module and a plan.

    Either `train("quickstart.toml", output="runs/first")`, optionally with a `plan` made
    beforehand, or `train(clients={"north": (x, y), ...}, model=module, plan=plan, test=(x, y),
    lr=0.1, batch_size=32, local_steps=10)`. Clients are matched with the plan by id; one that is
    missing has no rows. A list means clients "0", "1", ...

    `ledger` (a path or postgresql://...) is charged; by default it is one in the run directory.
    With `resume` and `replan`, lost rounds are made up for: what is left of the run's budget is
    spread over the missing rounds. `on_note` is called with what a recovery found. `grid` is the
    one that Flower hands a ServerApp, for engine "flower".
    """
    if (config is None) == (clients is None):
        raise InvalidInput(
            "train needs a config, or clients with a model and a plan; give exactly one"
        )
    folder = None if output is None else Path(output)
    if config is not None:
        if options or model is not None or test is not None:
            raise InvalidInput(
                "model, test and training options are for clients=...; a config sets these itself"
            )
        settings = any_config(config, overrides)
        where = str(ledger) if ledger is not None else settings.ledger.location
    else:
        assert clients is not None
        if grid is not None:
            raise InvalidInput('a grid is for a config with engine.name = "flower"; drop it')
        setup = from_arrays(clients, model, plan, test, **options)
        where = None if ledger is None else str(ledger)
        check_named(clients, where, setup)
    with RunLedger.of_run(folder, where, resume=resume) as opened:
        if config is not None:
            begun = StoredRun(folder).plan() if folder and goes_on(folder, resume) else None
            setup = _planned(
                settings, folder, opened, plan, begun, on_note if replan else None, grid
            )
        if folder is None and where is not None:
            raise InvalidInput(
                "a run that charges a ledger needs a run directory to recover from; give output=, "
                "or drop the ledger"
            )
        return run(setup, folder, resume=resume, on_round=on_round, on_note=on_note, ledger=opened)


def _planned(
    settings: Config,
    folder: Path | None,
    ledger: RunLedger,
    given: AnyPlan | None,
    begun: AnyPlan | None,
    replanning: OnNote | None,
    grid: Any = None,
) -> Setup:
    """The setup of a config: with the plan it has `begun` with, the `given` plan, or a new one.

    With `replanning`, which is called with notes, lost rounds are made up for.
    """
    book = ledger.found()
    stored = begun if given is None else approved(given, begun, settings)
    if begun is None:  # a run that has begun keeps its config
        refuse_without_effect(settings)
    if replanning is not None and folder is not None and book is not None and stored is not None:
        rounds = needed(settings.train.rounds, "train.rounds")
        with one_at_a_time(folder):  # a round that another process is running is not lost
            stored = plan_anew(folder, book, stored, rounds, replanning)
    setup = from_config(settings, book, stored, begun=begun is not None, grid=grid)
    if ledger.asked is not None and setup.plan is not None:
        check_names_last(setup.plan, setup, settings)
    return setup
