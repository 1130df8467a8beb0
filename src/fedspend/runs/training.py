"""`fedspend.train`: from a config, or from your own arrays, module and plan, to a trained model.

Guarantee: everything that decides privacy is in the plan. A plan that was made before is taken only
if it is for this config and this run; the rest is planned within what the ledger has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedspend.basics.files import one_at_a_time
from fedspend.budgets.identity import as_mapping
from fedspend.configuration.config import any_config, needed
from fedspend.configuration.effects import refuse_without_effect
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.storage import holds_ledger
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.arrays import Clients, from_arrays
from fedspend.runs.checks import approved, check_names_last
from fedspend.runs.directory import RunDirectory
from fedspend.runs.recovery import goes_on
from fedspend.runs.replanning import plan_anew
from fedspend.runs.result import OnNote, OnRound, Result
from fedspend.runs.running import run
from fedspend.runs.setup import from_config


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
    **options: Any,
) -> Result:
    """Train from a config (a TOML file or a dict of sections), or from your own arrays, module and
    plan.

    `train("quickstart.toml", output="runs/first")`, also with a `plan` that was made before, or
    `train(clients={"north": (x, y), ...}, model=module, plan=plan, test=(x, y), lr=0.1,
    batch_size=32, local_steps=10)`. Clients are joined with the plan by id; one that is missing has
    no rows. A list stands for clients "0", "1", ...

    `ledger` (a path or postgresql://...) is charged, or one in the run directory. With `resume` and
    `replan`, rounds that were lost are made up for: what is left of the run's budget is spread
    anew. `on_note` hears what a recovery found.
    """
    if (config is None) == (clients is None):
        raise InvalidInput("train needs either a config, or clients with a model and a plan")
    folder = None if output is None else Path(output)
    if clients is not None:
        setup = from_arrays(clients, model, plan, test, **options)
        where = None if ledger is None else str(ledger)
        if where is not None and as_mapping(clients) is None and not setup.randomness.simulation:
            raise InvalidInput(
                "a ledger that outlives the run takes named clients, and a list has no names; "
                "give clients as a dict of id: (features, labels)"
            )
    elif options or model is not None or test is not None:
        raise InvalidInput(
            "model, test and training options go with clients=...; a config says these things "
            "itself"
        )
    else:
        assert config is not None
        settings = any_config(config, overrides)
        where = str(ledger) if ledger is not None else settings.ledger.location
        with prepared(folder, where, resume=resume) as (book, stored):
            begun = stored is not None
            if plan is not None:
                stored = approved(plan, stored, settings)
            if not begun:  # a run that has begun goes on with the config that it began with
                refuse_without_effect(settings)
            if replan and folder is not None and book is not None and stored is not None:
                with one_at_a_time(folder):  # a round that is under way elsewhere is not lost
                    stored = plan_anew(
                        folder, book, stored, needed(settings.train.rounds, "train.rounds"), on_note
                    )
            setup = from_config(settings, book, stored, begun=begun)
            if where is not None and setup.plan is not None:
                check_names_last(setup.plan, setup, settings)
    if folder is None and where is not None:
        raise InvalidInput(
            "a run that charges a ledger needs a run directory to recover from: give output=, or "
            "name no ledger"
        )
    return run(setup, folder, resume=resume, on_round=on_round, on_note=on_note, ledger=where)


@contextmanager
def prepared(
    folder: Path | None, ledger: str | None, *, resume: bool
) -> Iterator[tuple[Ledger | None, AnyPlan | None]]:
    """What is there before planning: the ledger, if there is one yet, and the plan of the run to be
    resumed.
    """
    stored = None
    if folder is not None and goes_on(folder, resume):
        directory = RunDirectory(folder)
        stored, ledger = directory.stored_plan(), directory.ledger_location(ledger)
    if folder is None or ledger is None or not holds_ledger(ledger):
        yield None, stored
        return
    with Ledger.open(ledger, write=True) as book:
        yield book, stored
