"""`fedspend.train`: trains a model from a config, or from your own arrays, module and plan.

Guarantee: everything that decides privacy is in the plan. A plan made beforehand is used only if it
is for this config and this run; otherwise a plan is made within what the ledger has left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from fedspend.basics.choices import only
from fedspend.basics.door import public
from fedspend.basics.files import one_at_a_time
from fedspend.configuration.config import Config, any_config, needed
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.method_name import known_method
from fedspend.data.tables import TABLE_OPTIONS
from fedspend.engines.table import ENGINES, NO_GRID
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan, load_any_plan
from fedspend.report.live import live_bar
from fedspend.report.round_words import describe
from fedspend.runs.arrays import OPTIONS, Clients, check_named, from_arrays
from fedspend.runs.checks import approved, check_names_last, refuse_other_kind
from fedspend.runs.directory import refuse_taken
from fedspend.runs.given_clients import as_clients
from fedspend.runs.hold_out_key import secret_of
from fedspend.runs.moving import check_moved
from fedspend.runs.offers import offered_plan
from fedspend.runs.recovery import goes_on
from fedspend.runs.replanning import plan_anew
from fedspend.runs.result import OnNote, OnRound, Result
from fedspend.runs.run_ledger import RunLedger, shown
from fedspend.runs.running import run
from fedspend.runs.setup import Setup, from_config
from fedspend.runs.signed import key_of, sign_run
from fedspend.server.methods.table import METHODS
from fedspend.server.steps import OwnStep
from fedspend.stored.files import TUNE
from fedspend.stored.run import MetricsLine, StoredRun


@public
def train(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    output: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    clients: Clients | None = None,
    model: torch.nn.Module | None = None,
    plan: AnyPlan | str | Path | None = None,
    test: Any = None,
    loss: str | Callable[[Any, Any], Any] | None = None,
    metrics: Sequence[Any] | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    lr_schedule: str | None = None,
    lr_end: float | None = None,
    momentum: float | None = None,
    optimizer: str | None = None,
    weight_decay: float | None = None,
    proximal: float | None = None,
    gradient_clip: float | None = None,
    server_optimizer: str | OwnStep | None = None,
    server_lr: float | None = None,
    server_momentum: float | None = None,
    tail_average: int | None = None,
    blur: float | None = None,
    lus: float | None = None,
    clipping: str | None = None,
    noise: str | None = None,
    bits: int | None = None,
    classes: Any = None,
    max_length: int | None = None,
    randomness: str | None = None,
    seed: int | None = None,
    engine: str | None = None,
    workers: int | None = None,
    stop: Mapping[str, Any] | None = None,
    ledger: str | Path | None = None,
    project: str | None = None,
    replan: bool = False,
    sign: str | Path | None = None,
    moved: bool = False,
    progress: bool | None = None,
    on_note: OnNote = lambda _: None,
    loggers: Sequence[Any] = (),
    grid: Any = None,
    **options: Any,
) -> Result:
    """Train from a config (TOML file or dict of sections), or from arrays, a module and a plan.

    Either `train("quickstart.toml", output="runs/first")`, or `train(clients={"north": (x, y),
    ...}, model=module, plan=plan, test=(x, y), lr=0.1, batch_size=32, local_steps=10)`.

    Arguments of both:
        plan: a plan made beforehand, or its file. With a config it may be left out. Arrays are
            trained on by the method of the plan, with the method's own defaults.
        output: the run directory. Without one nothing but the account is kept, so the run cannot be
            resumed and has no report.
        resume: go on with the run in `output`, or begin it if there is none.
        replan: with `resume`, lost rounds are made up for: what is left of the run's budget is
            spread over the missing rounds.
        moved: with `resume`, a run whose directory was moved goes on in its new place, and no
            longer in the old one.
        ledger, project: a path or postgresql://..., and whose accounts in it are charged. By
            default a real run is charged to the ledger of this user, which needs a project:
            FEDSPEND_LEDGER names it, else it is fedspend/ledger.db in the user's data folder. A
            simulation is charged to one in its run directory, if it has a directory.
            `Result.ledger` says where it was.
        sign: a file with a private key (`fedspend keys new`) to sign the finished run with.
        progress: a live bar, in a notebook or a terminal. Default: if somebody is watching.
        on_round: called after each round with its metrics and the number of rounds.
        on_note: called with what is worth knowing besides, such as what a recovery found.
        loggers: names ("tensorboard", "mlflow", "wandb") or objects with `log(round, numbers)` and
            `close()`: they get metrics and epsilon by group, and of real runs nothing about single
            clients.

    For a config:
        overrides: `["train.lr=0.1", ...]`, like `--set` on the command line.
        grid: the one that Flower hands a ServerApp, for engine "flower".

    For arrays:
        clients: (features, labels) by client id, matched with the plan by id; one that is missing
            has no rows. A list means clients "0", "1", ..., for simulations. A client's rows may
            also be a torch Dataset or DataLoader; clients may be a data frame with a column of
            clients, which takes the declarations of a table: `client`, `label`, `labels`,
            `columns`, `bounds`, `categories`, `missing` and so on (docs/how-to/data.md).
        model: any torch.nn.Module whose rows do not mix. It is trained in place.
        test: (features, labels) that are public, on which every round is measured.
        loss, metrics: names or functions of your own (docs/how-to/tasks.md). Default: to classify.
        lr, batch_size, and local_steps or local_epochs: how a client trains. The other options have
            the names, values and defaults of a config (docs/how-to/tasks.md): lr_schedule, lr_end,
            momentum, optimizer, weight_decay, proximal, gradient_clip; blur, lus, clipping;
            server_optimizer, server_lr, server_momentum, tail_average; noise, bits; classes,
            max_length; engine, workers.
        server_optimizer: may also be a function of your own, of what is released: `step(parameters,
            update, first, second, lr)` gives the new parameters and two vectors to remember.
        stop: early stopping, by the keys of a config's section [stop]: `{"patience": 5}`.
        randomness, seed: "os" (default) for real runs; "seeded" is a repeatable simulation, which
            protects nobody.

    Returns:
        A `Result`: `.metrics`, `.model`, `.plan`, and in simulations `.per_client`.

    Raises:
        InvalidInput: an argument, a file or a value in it is wrong; nothing was written.
        Refused: the plan does not keep its promise, or the ledger has too little left.

    >>> import torch
    >>> from fedspend import plan
    >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5)
    >>> made = plan([8.0, 8.0, 20.0], delta=1e-2, rounds=2, rate=1.0, accountant="rdp")
    >>> result = train(clients=[(x, y)] * 3, model=torch.nn.Linear(4, 4), plan=made, test=(x, y),
    ...                lr=0.5, batch_size=5, local_steps=2, randomness="seeded", seed=1)
    >>> [line["round"] for line in result.metrics]
    [1, 2]
    """
    given = locals()  # whatever is an option of `Options` is an argument of the same name
    options |= {name: given[name] for name in OPTIONS if given.get(name) is not None}
    _refuse_unknown(options)
    of_arrays = [*options, *(["model"] if model is not None else []), *_named(test=test)]
    of_config = _named(overrides=overrides or None, grid=grid)
    _refuse_mixture(config is not None, clients is not None, of_arrays, of_config)
    _refuse_without_resume(output, resume=resume, replan=replan, moved=moved)
    if isinstance(plan, str | Path):
        plan = load_any_plan(plan)
    folder = None if output is None else Path(output)
    if folder is not None and TUNE.of(folder).exists():
        raise InvalidInput(
            f"{folder} holds a private tune, which does not go on; choose another folder"
        )
    key = key_of(sign, folder)  # a bad key stops the run before it begins
    if config is not None:
        asked = _of_config(
            any_config(config, overrides),
            plan,
            folder,
            resume=resume,
            replanning=on_note if replan else None,
            moved=moved,
            ledger=ledger,
            project=project,
            grid=grid,
        )
    else:
        assert clients is not None
        asked = _of_arrays(clients, model, plan, test, options, ledger=ledger, project=project)
    if folder is not None and not resume:
        refuse_taken(folder)  # before a plan is made, which may take long
    with (
        live_bar("planning and verifying", progress) as move,
        RunLedger.of_run(
            folder, asked.ledger, resume=resume, project=asked.project, charged=asked.charged
        ) as opened,
    ):
        if moved:
            check_moved(folder, opened, resume=resume)
        setup = asked.setup(opened)
        _say_who_is_charged(asked, setup, opened, on_note)

        def told(line: MetricsLine, rounds: int) -> None:
            move(line["round"], rounds, describe(line, rounds))
            if on_round is not None:
                on_round(line, rounds)

        result = run(
            setup,
            folder,
            resume=resume,
            moved=moved,
            on_round=told,
            on_note=on_note,
            ledger=opened,
            loggers=loggers,
        )
        if key is not None and folder is not None:
            on_note(f"signed by {sign_run(folder, key, opened.connects_to)}")
    return result


@dataclass(frozen=True)
class _Asked:
    """What is to be run and who pays for it, before the ledger is open."""

    setup: Callable[[RunLedger], Setup]
    ledger: str | None  # None: the default one
    project: str | None
    charged: bool
    simulated_by_config: bool = False  # a simulation whose ledger the config names


def _of_config(
    settings: Config,
    plan: AnyPlan | None,
    folder: Path | None,
    *,
    resume: bool,
    replanning: OnNote | None,
    moved: bool,
    ledger: str | Path | None,
    project: str | None,
    grid: Any,
) -> _Asked:
    """The run of a config. Its parts need the ledger: a plan is made within what is left there."""
    if grid is None and ENGINES[settings.engine.name].elsewhere:
        raise InvalidInput(NO_GRID)
    if not goes_on(folder, resume):  # a run that has begun keeps its config
        _refuse_unfit(settings, plan)
    where = str(ledger) if ledger is not None else settings.ledger.location
    project = project if project is not None else settings.ledger.project

    def setup(opened: RunLedger) -> Setup:
        goes = folder if goes_on(folder, resume) else None
        return _planned(settings, goes, opened, plan, replanning, grid, moved=moved)

    return _Asked(
        setup,
        where,
        project,
        _is_charged(settings, named=where is not None or project is not None),
        simulated_by_config=ledger is None and where is not None and not is_real(settings),
    )


def _of_arrays(
    clients: Clients,
    model: torch.nn.Module | None,
    plan: AnyPlan | None,
    test: Any,
    options: Mapping[str, Any],
    *,
    ledger: str | Path | None,
    project: str | None,
) -> _Asked:
    """The run of clients' arrays, whose plan was made beforehand."""
    clients, test, options = as_clients(clients, test, options, OPTIONS)
    setup = from_arrays(clients, model, plan, test, **options)
    check_named(clients, setup)
    where = None if ledger is None else str(ledger)
    return _Asked(lambda _: setup, where, project, not setup.randomness.simulation)


def _say_who_is_charged(asked: _Asked, setup: Setup, opened: RunLedger, on_note: OnNote) -> None:
    """What may surprise about the ledger: that it is for simulations, or that none was named."""
    simulated = asked.simulated_by_config and setup.plan is not None
    if simulated and asked.ledger is not None and opened.found() is None:
        on_note(
            f"this is a simulation, so {shown(asked.ledger)}, which the config names, becomes a "
            "ledger of simulated accounts, which no real run can use; --ledger names another"
        )
    if asked.ledger is None and opened.asked is not None:
        new = ", which is new there" if opened.new_project else ""
        on_note(f"charged to {shown(opened.asked)}, project {opened.project!r}{new}")


def _named(**given: Any) -> list[str]:
    """The names of those that are not None."""
    return [name for name, value in given.items() if value is not None]


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """A misspelt name, of whichever kind of run."""
    known = [*signature(train).parameters, *OPTIONS, *TABLE_OPTIONS]
    only("train", options, [name for name in dict.fromkeys(known) if name != "options"])


def _refuse_mixture(
    config: bool, clients: bool, of_arrays: Sequence[str], of_config: Sequence[str]
) -> None:
    """A run is from a config or from arrays; each has arguments of its own."""
    if config == clients:
        raise InvalidInput(
            "train needs a config, or clients with a model and a plan; give exactly one"
        )
    if config and of_arrays:
        raise InvalidInput(
            f"{of_arrays[0]}: model, test and training options are for clients=...; a config sets "
            "these itself"
        )
    if clients and "grid" in of_config:
        raise InvalidInput('a grid is for a config with engine.name = "flower"; drop it')
    if clients and of_config:
        raise InvalidInput(f"{of_config[0]} is for a config, and clients=... has none; drop it")


def _refuse_without_resume(
    output: str | Path | None, *, resume: bool, replan: bool, moved: bool
) -> None:
    if replan and not resume:
        raise InvalidInput(
            "--replan replans the rest of an interrupted run, so it needs --resume; add it"
        )
    if moved and not resume:
        raise InvalidInput(
            "--moved says that the directory of an interrupted run was moved, so it needs "
            "--resume; add it"
        )
    if resume and output is None:
        raise InvalidInput(
            "--resume goes on with the run in a run directory; name it with --output"
        )


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
    *,
    moved: bool,
) -> Setup:
    """The setup of a config: with the plan of the run that goes on in `folder`, the `given` plan,
    or a new one.

    With `replanning`, which is called with notes, lost rounds are made up for.
    """
    book, begun = ledger.found(), None if folder is None else StoredRun(folder).plan()
    if folder is None:
        refuse_other_kind(settings, book)
    if grid is not None and settings.engine.slices is not None and begun is None and given is None:
        given = offered_plan(settings.engine.slices)
    stored = begun if given is None else approved(given, begun, settings)
    if replanning is not None and folder is not None and book is not None and stored is not None:
        rounds = needed(settings.train.rounds, "train.rounds")
        with one_at_a_time(folder):  # a round that another process is running is not lost
            stored = plan_anew(folder, book, stored, rounds, replanning, moved=moved)
    secret = secret_of(settings, folder)
    setup = from_config(settings, book, stored, begun=begun is not None, secret=secret, grid=grid)
    if ledger.asked is not None and setup.plan is not None:
        check_names_last(setup.plan, setup, settings)
    return setup
