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
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.method_name import known_method
from fedspend.engines.table import ENGINES, NO_GRID
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.arrays import OPTIONS, Clients, check_named, from_arrays
from fedspend.runs.checks import approved, check_names_last
from fedspend.runs.given_clients import as_clients
from fedspend.runs.hold_out_key import secret_of
from fedspend.runs.moving import settle
from fedspend.runs.offers import offered_plan
from fedspend.runs.recovery import goes_on
from fedspend.runs.replanning import plan_anew
from fedspend.runs.result import OnNote, OnOperator, OnRound, Result
from fedspend.runs.run_ledger import RunLedger, shown
from fedspend.runs.running import run
from fedspend.runs.setup import Setup, from_config
from fedspend.runs.signed import key_of, sign_run
from fedspend.server.methods.table import METHODS
from fedspend.stored.files import TUNE
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
    project: str | None = None,
    replan: bool = False,
    sign: str | Path | None = None,
    moved: bool = False,
    on_note: OnNote = lambda _: None,
    on_operator: OnOperator | None = None,
    loggers: Sequence[Any] = (),
    grid: Any = None,
    **options: Any,
) -> Result:
    """Train from a config (TOML file or dict of sections), or from arrays, a module and a plan.

    Either `train("quickstart.toml", output="runs/first")`, optionally with a `plan` made
    beforehand, or `train(clients={"north": (x, y), ...}, model=module, plan=plan, test=(x, y),
    lr=0.1, batch_size=32, local_steps=10)`. Clients are matched with the plan by id; one that is
    missing has no rows. A list means clients "0", "1", ..., for simulations. A client's rows may
    also be a torch Dataset or DataLoader; clients may come from a generator of (id, rows), or be a
    data frame with a column of clients, which takes the declarations of a table: `client`, `label`,
    `labels`, `columns`, `bounds`, `categories`, `missing` and so on (docs/how-to/data.md).

    `ledger` (a path or postgresql://...) is charged, for the accounts of `project` in it. By
    default a real run is charged to the ledger of this user, which needs a project: FEDSPEND_LEDGER
    names it, else it is fedspend/ledger.db in the user's data folder. A simulation is charged to
    one in its run directory, if it has a directory. `Result.ledger` says where it was.

    Without `output` nothing but the account is kept, so the run cannot be resumed.
    With `resume` and `replan`, lost rounds are made up for: what is left of the run's budget is
    spread over the missing rounds. With `resume` and `moved`, a run whose directory was moved goes
    on in its new place, and no longer in the old one. `sign` is a file with a private key
    (`fedspend keys new`) that the finished run is signed with. `on_note` is called with what a
    recovery found. Under `evaluation.mode = "operator"`, `on_operator` is called after each round
    with round, accuracy and loss: exact, about rows of clients, protected by nothing, kept nowhere.
    `loggers` are names ("tensorboard", "mlflow", "wandb") or objects with `log(round, numbers)` and
    `close()`: they get metrics and epsilon by group, and of real runs nothing about single clients.
    `grid` is the one that Flower hands a ServerApp, for engine "flower".
    """
    of_arrays = bool(options) or model is not None or test is not None
    _refuse_mixture(config is not None, clients is not None, of_arrays, grid is not None)
    folder = None if output is None else Path(output)
    if folder is not None and TUNE.of(folder).exists():
        raise InvalidInput(
            f"{folder} holds a private tune, which does not go on; choose another folder"
        )
    key = key_of(sign, folder)  # a bad key stops the run before it begins
    if config is not None:
        settings = any_config(config, overrides)
        if grid is None and ENGINES[settings.engine.name].elsewhere:
            raise InvalidInput(NO_GRID)
        if not goes_on(folder, resume):  # a run that has begun keeps its config
            _refuse_unfit(settings, plan)
        where = str(ledger) if ledger is not None else settings.ledger.location
        project = project if project is not None else settings.ledger.project
        charged = _is_charged(settings, named=where is not None or project is not None)
    else:
        assert clients is not None
        clients, test, options = as_clients(clients, test, options, OPTIONS)
        setup = from_arrays(clients, model, plan, test, **options)
        where = None if ledger is None else str(ledger)
        check_named(clients, setup)
        charged = not setup.randomness.simulation
    with RunLedger.of_run(folder, where, resume=resume, project=project, charged=charged) as opened:
        if moved:
            settle(folder, opened, resume=resume, on_note=on_note)
        if config is not None:
            goes = folder if goes_on(folder, resume) else None
            setup = _planned(settings, goes, opened, plan, on_note if replan else None, grid)
        if where is None and opened.asked is not None:
            new = ", which is new there" if opened.new_project else ""
            on_note(f"charged to {shown(opened.asked)}, project {opened.project!r}{new}")
        result = run(
            setup,
            folder,
            resume=resume,
            on_round=on_round,
            on_note=on_note,
            ledger=opened,
            on_operator=on_operator,
            loggers=loggers,
        )
    if key is not None and folder is not None:
        on_note(f"signed by {sign_run(folder, key)}")
    return result


def _refuse_mixture(config: bool, clients: bool, of_arrays: bool, grid: bool) -> None:
    """A run is from a config or from arrays; each has arguments of its own."""
    if config == clients:
        raise InvalidInput(
            "train needs a config, or clients with a model and a plan; give exactly one"
        )
    if config and of_arrays:
        raise InvalidInput(
            "model, test and training options are for clients=...; a config sets these itself"
        )
    if clients and grid:
        raise InvalidInput('a grid is for a config with engine.name = "flower"; drop it')


def _refuse_unfit(settings: Config, plan: AnyPlan | None) -> None:
    """A plan for another config, and keys without effect, before a ledger is looked for."""
    if plan is not None:
        approved(plan, None, settings)
    refuse_without_effect(settings)


def _is_charged(settings: Config, *, named: bool) -> bool:
    """Whether an account pays for the run: a real one, with privacy.

    Refuses one without privacy that names a ledger or a project (`named`).
    """
    real, private = is_real(settings), METHODS[known_method(settings)].unit is not None
    if real and not private and named:
        raise InvalidInput(
            f"method {settings.method.name!r} adds no noise, so no account can pay for what it "
            "gives away; choose a private method, or, if that is meant, name no ledger and no "
            "project"
        )
    return real and private


def _planned(
    settings: Config,
    folder: Path | None,
    ledger: RunLedger,
    given: AnyPlan | None,
    replanning: OnNote | None,
    grid: Any,
) -> Setup:
    """The setup of a config: with the plan of the run that goes on in `folder`, the `given` plan,
    or a new one.

    With `replanning`, which is called with notes, lost rounds are made up for.
    """
    book, begun = ledger.found(), None if folder is None else StoredRun(folder).plan()
    if grid is not None and settings.engine.slices is not None and begun is None and given is None:
        given = offered_plan(settings.engine.slices)
    stored = begun if given is None else approved(given, begun, settings)
    if replanning is not None and folder is not None and book is not None and stored is not None:
        rounds = needed(settings.train.rounds, "train.rounds")
        with one_at_a_time(folder):  # a round that another process is running is not lost
            stored = plan_anew(folder, book, stored, rounds, replanning)
    secret = secret_of(settings, folder)
    setup = from_config(settings, book, stored, begun=begun is not None, secret=secret, grid=grid)
    if ledger.asked is not None and setup.plan is not None:
        check_names_last(setup.plan, setup, settings)
    return setup
