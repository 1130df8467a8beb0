"""Train: plan, verify, run the rounds, keep the account.

Guarantee: nothing is trained under a plan that the independent verifier does not pass. What was
used for randomness is stamped on certificate, metrics and model.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedspend
from fedspend import data
from fedspend.basics.files import one_at_a_time
from fedspend.budgets.identity import as_mapping, hint_alike
from fedspend.budgets.population import numbered
from fedspend.client.shaping import Shape
from fedspend.client.state import FolderStates, MemoryStates, States, folder_beside
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import Config, any_config, needed
from fedspend.configuration.data_inputs import refuse_nameless
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.record_plans import check_lasting_numbers
from fedspend.engines.base import Engine
from fedspend.engines.local import make_engine
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import OWN, new_run_id, stored_location
from fedspend.ledger.participants import check_planned_on, plan_fits
from fedspend.ledger.rules import check_kind, refuse_lost
from fedspend.ledger.sqlite import check_place
from fedspend.ledger.storage import holds_ledger, is_url, path_of
from fedspend.models import check_module
from fedspend.models.evaluation import evaluate
from fedspend.models.flat import layer_sizes, parameter_count
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.records.policies import METHODS as RECORD_METHODS
from fedspend.report.groups import Grouping, group_clients
from fedspend.report.tensorboard import tensorboard_writer
from fedspend.runs.directory import RunDirectory
from fedspend.runs.norm_states import adopt_norms, norm_budgets, refuse_leftovers
from fedspend.runs.replanning import plan_anew
from fedspend.runs.setup import Setup, flat_parameters, from_config, noise_terms
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import (
    FOR_THE_OPERATOR,
    Kept,
    MetricsLine,
    Server,
    Statistics,
    Store,
    Training,
    TrainingState,
    begin,
    run_rounds,
)
from fedspend.server.student import NAME as VOTES
from fedspend.verification.verify import verify

OnRound = Callable[[MetricsLine, int], None]  # (metrics of the round, number of rounds)
OnNote = Callable[[str], None]
# (features, labels) by client id; or of "0", "1", ...
Clients = Mapping[Any, tuple[Any, Any]] | Iterable[tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run gives back. `model` carries the final parameters."""

    metrics: list[MetricsLine]
    model: torch.nn.Module
    plan: AnyPlan | None
    folder: Path | None

    @property
    def accuracy(self) -> float:
        return float(self.metrics[-1]["accuracy"])


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


def check_names_last(plan: AnyPlan, setup: Setup, config: Config) -> None:
    """A ledger outlives the run, so whoever has an account there needs a name that does."""
    if plan.unit == "record":
        check_lasting_numbers(config, setup.federation)
    elif "ledger" not in plan.parameters:
        refuse_nameless(config, setup.settings["data.partition"])


def approved(plan: AnyPlan, stored: AnyPlan | None, config: Config) -> AnyPlan:
    """A plan that was made and checked before, if it is for this config and this run; of records
    more is asked later.
    """
    method, rounds = config.method.name or "dp-fedavg", config.train.rounds
    if stored is not None:
        if stored.hash != plan.hash:
            raise InvalidInput(
                "the run was begun under another plan; drop --plan, or choose another folder"
            )
        return plan
    unit = "record" if method in RECORD_METHODS else "client"
    if plan.unit != unit:
        raise InvalidInput(
            f"the plan is for {plan.unit}s, and the config's method {method!r} for {unit}s; make "
            "them agree"
        )
    if plan.parameters.get("method", method) != method:
        raise InvalidInput(
            f"the plan is for method {plan.parameters['method']!r}, and the config says "
            f"{method!r}; make them agree"
        )
    if config.ledger.spend == "remaining" and "ledger" not in plan.parameters:
        raise InvalidInput(
            "the plan was made for budgets of one run, and --remaining spends what a ledger has "
            "left; drop --remaining, or make the plan with fedspend plan --ledger"
        )
    if plan.rounds != rounds:
        raise InvalidInput(
            f"the plan has {plan.rounds} rounds, and the config says {rounds}; make them agree"
        )
    return plan


@contextmanager
def prepared(
    folder: Path | None, ledger: str | None, *, resume: bool
) -> Iterator[tuple[Ledger | None, AnyPlan | None]]:
    """What is there before planning: the ledger, if there is one yet, and the plan of the run to be
    resumed.
    """
    stored = None
    if folder is not None and resume and (folder / "run.json").exists():
        directory = RunDirectory(folder)
        stored, ledger = directory.stored_plan(), directory.ledger_location(ledger)
    if folder is None or ledger is None or not holds_ledger(ledger):
        yield None, stored
        return
    with Ledger.open(ledger, write=True) as book:
        yield book, stored


def from_arrays(
    clients: Clients,
    model: torch.nn.Module | None,
    plan: AnyPlan | None,
    test: tuple[Any, Any] | None,
    *,
    lr: float,
    batch_size: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    momentum: float = 0.0,
    blur: float = 0.0,
    lus: float = 0.0,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    tail_average: int = 1,
    clipping: str = "flat",
    noise: str = "central",
    bits: int = 32,
    randomness: str = "os",
    seed: int = 0,
    engine: str = "local",
    workers: int | None = None,
) -> Setup:
    """A run on arrays that are already in memory: (features, labels) by client id, or one pair per
    client of the plan.
    """
    if model is None or plan is None or test is None:
        raise InvalidInput(
            "train(clients=...) also needs model=, plan= and test=(features, labels)"
        )
    plan = Plan.expect(
        plan,
        "train(clients=...) is for plans of clients; a plan of records goes with the config that "
        "it was made for",
    )
    if plan.parameters.get("method") == VOTES:
        raise InvalidInput(
            f"the plan is for method {VOTES!r}, which needs public rows; train it from a config"
        )
    check_module(model)
    shape = Shape(blur, lus)
    shape.check_lr(lr)
    place, on_bits = noise_terms(noise, bits, plan, parameter_count(model))
    source = Randomness(seed, randomness)  # type: ignore[arg-type]
    rows = rows_of(clients, plan, simulation=source.simulation)
    with torch.no_grad():
        classes = int(
            model(torch.as_tensor(np.asarray(test[0])[:1], dtype=torch.float32)).shape[-1]
        )
    federation = data.of_named(rows, test=test, classes=classes)
    return Setup(
        federation=federation,
        module=model,
        plan=plan,
        labels=None,
        method=Planned(plan, str(plan.parameters.get("method", "idp-fedavg"))),
        training=Training(
            server=Server(plan.rounds, server_lr, server_momentum, min(plan.rounds, tail_average)),
            clients=federation.clients,
            local=LocalTraining(batch_size, local_steps, local_epochs, momentum, shape),
            client_lr=lambda _: lr,
            noise=place,
            layers=layer_sizes(model) if clipping == "per-layer" else None,
            bits=on_bits,
            plan=plan.hash,
        ),
        randomness=source,
        engine=engine,
        workers=workers,
        settings={
            "plan": plan.hash,
            "train.seed": seed,
            "train.lr": lr,
            "train.batch_size": batch_size,
            "shape.blur": blur,
            "shape.lus": lus,
        },
    )


def rows_of(clients: Clients, plan: Plan, *, simulation: bool) -> dict[str, tuple[Any, Any]]:
    """Every client of the plan with its rows, found by id. A list has no ids, so real rows are not
    taken from one by position.
    """
    named = as_mapping(clients)
    if named is not None:
        listed = set(plan.clients)
        raw_ids = clients if isinstance(clients, Mapping) else getattr(clients, "index", ())
        # A plan of an older version may have names that are written in another way today.
        given = {
            raw if raw in listed else name: rows
            for raw, (name, rows) in zip(raw_ids, named.items(), strict=True)
        }
        stranger = next((client for client in given if client not in listed), None)
        if stranger is not None:
            raise InvalidInput(
                f"client {stranger!r} has rows and is not in the "
                f"plan{hint_alike(stranger, listed)}; give it a budget in another plan, or leave "
                "its rows out"
            )
        return {client: given.get(client, ([], [])) for client in plan.clients}
    pairs = list(clients)
    if len(pairs) != len(plan.clients):
        raise InvalidInput(
            f"the plan is for {len(plan.clients)} clients, but there are {len(pairs)}; make them "
            "agree"
        )
    if not simulation and plan.clients != numbered(len(pairs)):
        raise InvalidInput(
            f"the plan names its clients ({plan.clients[0]!r}, ...) and a list has no names, so "
            "rows could go to another's budget; give clients as a dict of id: (features, labels)"
        )
    return dict(zip(plan.clients, pairs, strict=True))


def run(
    setup: Setup,
    folder: Path | None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_note: OnNote = lambda _: None,
    ledger: str | None = None,
) -> Result:
    """Verify, open the account, play the rounds that are left, write the model, close the account.

    `ledger` names the ledger to charge; without it there is one in the run directory.
    """
    states: States = MemoryStates() if folder is None else FolderStates(folder_beside(folder))
    engine = open_engine(setup, states)
    try:
        if folder is not None and not (resume and (folder / "run.json").exists()):
            refuse_leftovers(setup, states)
            check_ledger(setup, ledger)
        verdict = examine(setup, folder)
        store: RunDirectory | Memory = (
            Memory() if folder is None else _open(setup, folder, resume, ledger)
        )
        setup = replace(setup, training=replace(setup.training, run=store.run_id))
        budgets = norm_budgets(setup, states)
        if folder is not None:
            adopt_norms(folder, budgets, setup)
        for budget in budgets:
            budget.check()  # what does not fit is refused before a round is charged
        if setup.plan is not None and verdict is not None:
            store.write_certificate(setup.plan, verdict)
        with store.charging(setup.plan, ledger, simulation=setup.randomness.simulation):
            state = store.training_state() or begin(flat_parameters(setup.module), setup.method)
            store.keep_metrics(state.done)
            if resume:
                on_note(store.recovery(state.done, setup.randomness.simulation))
            begun = state.done > 0 or store.was_reserved(0)
            if not begun:
                for budget in budgets:
                    budget.enrol()
            elif any(budget.missing for budget in budgets):
                on_note(
                    "the states of some clients are gone: for them, all rounds so far count as "
                    "paid at the clip"
                )
            state = _play(setup, engine, store, state, folder, on_round)
            store.finish()
    finally:
        engine.close()
    load_parameters(setup.module, state)
    plan_hash = "" if setup.plan is None else setup.plan.hash
    store.write_model(
        named_arrays(setup.module), {"randomness": setup.randomness.source, "plan": plan_hash}
    )
    return Result(store.metrics(), setup.module, setup.plan, folder)


def check_ledger(setup: Setup, ledger: str | None) -> None:
    """Refuse what the ledger would refuse, before anything is written. A run with a ledger of its
    own begins with an empty one.
    """
    if setup.plan is None:
        return
    if ledger is not None and holds_ledger(ledger):
        with Ledger.open(ledger) as book:
            check_kind(book.state, setup.randomness.simulation, book.location)
            plan_fits(book, setup.plan)
        return
    check_planned_on(None, setup.plan)
    if ledger is not None and not is_url(ledger):
        refuse_lost(Path(path_of(ledger)))
        check_place(Path(path_of(ledger)))


def _play(
    setup: Setup,
    engine: Engine,
    store: RunDirectory | Memory,
    state: TrainingState,
    folder: Path | None,
    on_round: OnRound | None,
) -> TrainingState:
    observer = Observer.of(setup)
    log = tensorboard_writer(folder) if setup.tensorboard and folder is not None else None
    rounds = run_rounds(
        state, setup.method, engine, setup.training, setup.randomness, store, observer.line
    )
    for after, line in rounds:
        state = after
        if log is not None:
            log(line)
        if on_round is not None:
            on_round(line, setup.training.server.rounds)
    return state


def open_engine(setup: Setup, states: States) -> Engine:
    """Where the config says, unless the plan needs its tasks to run client by client."""
    name = "reference" if setup.plan is not None and setup.plan.client_by_client else setup.engine
    return make_engine(name, setup.workload(states), setup.workers)


def _open(setup: Setup, folder: Path, resume: bool, ledger: str | None) -> RunDirectory:
    labels = setup.federation.dataset.test_labels
    about = {
        "settings": setup.settings,
        "simulation": setup.randomness.simulation,
        # what guessing the commonest class would score
        "majority": float(np.bincount(labels).max() / labels.size),
        "groups": None if setup.labels is None else list(setup.labels),
        "environment": environment(),
    }
    # a run that was killed before its first file begins anew
    if resume and (folder / "run.json").exists():
        return RunDirectory.resume(folder, about)
    if setup.plan is not None:
        location = stored_location(ledger or str(folder / OWN), folder)
        about["ledger"] = {"location": location, "run": new_run_id()}
    return RunDirectory.create(folder, about)


def environment() -> dict[str, str]:
    return {
        "fedspend": fedspend.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def examine(setup: Setup, folder: Path | None) -> dict[str, Any] | None:
    """The verdict to keep beside the plan, None if it is there. Refuses a plan that does not
    verify, before anything is written.
    """
    if setup.plan is None or (
        folder is not None and RunDirectory(folder).certified(setup.plan.hash)
    ):
        return None
    verdict = verify(setup.plan)
    if not verdict.ok:
        raise Refused(f"the plan does not verify, so nothing is trained: {verdict.failures[0]}")
    return verdict.to_dict() | {"randomness": setup.randomness.source}


@dataclass(frozen=True, eq=False)
class Observer:
    """Turns a round into the line that `metrics.jsonl` keeps."""

    setup: Setup
    grouping: Grouping | None

    @classmethod
    def of(cls, setup: Setup) -> Observer:
        return cls(setup, None if setup.plan is None else group_clients(setup.plan, setup.labels))

    def line(self, state: TrainingState, statistics: Statistics) -> MetricsLine:
        dataset = self.setup.federation.dataset
        loss, accuracy = evaluate(
            self.setup.module,
            torch.from_numpy(state.model),
            torch.from_numpy(dataset.test_features),
            torch.from_numpy(dataset.test_labels),
        )
        line: MetricsLine = {
            "round": state.done,
            "accuracy": accuracy,
            "loss": loss if np.isfinite(loss) else None,
            "epsilon": self.spent(state.done - 1),
            "randomness": self.setup.randomness.source,
        }
        if self.setup.plan is not None:
            line |= self.setup.plan.planned_facts(state.done - 1)
            hidden = self.setup.plan.hidden_statistics
            statistics = {name: value for name, value in statistics.items() if name not in hidden}
        if self.setup.randomness.simulation:
            return line | statistics
        self._tell(state.done, statistics)
        return line | {
            name: value for name, value in statistics.items() if name not in FOR_THE_OPERATOR
        }

    @staticmethod
    def _tell(round: int, statistics: Statistics) -> None:
        """What the operator of a real run should hear, and the metrics must not keep."""
        reports: dict[str, str] = statistics.get("reports") or {}
        zeroed = int(statistics.get("discarded", 0)) - int(statistics.get("lost", 0))
        if zeroed > 0:
            message = f"round {round}: {zeroed} updates were not finite and counted as zero"
            warnings.warn(message, FedspendWarning, stacklevel=3)
        for client, why in reports.items():
            warnings.warn(f"round {round}, client {client!r}: {why}", FedspendWarning, stacklevel=3)

    def spent(self, round: int) -> dict[str, float]:
        """Largest epsilon spent so far in each group."""
        if self.setup.plan is None or self.grouping is None:
            return {}
        spent, of_client = (
            self.setup.plan.spent_by_schedule()[round],
            self.setup.plan.schedules.of_client,
        )
        return {
            label: float(spent[of_client[members]].max())
            for label, members in zip(self.grouping.labels, self.grouping.members, strict=True)
        }


def load_parameters(module: torch.nn.Module, state: TrainingState) -> None:
    torch.nn.utils.vector_to_parameters(torch.from_numpy(state.model), module.parameters())


def named_arrays(module: torch.nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.named_parameters()}


class Memory(Store):
    """A run that leaves nothing on disk: for notebooks and tests."""

    def __init__(self) -> None:
        self._metrics: list[MetricsLine] = []

    run_id = ""

    @contextmanager
    def charging(
        self,
        plan: AnyPlan | None,  # noqa: ARG002
        ledger: str | None,  # noqa: ARG002
        *,
        simulation: bool,  # noqa: ARG002
    ) -> Iterator[None]:
        yield

    def recovery(self, done: int, simulation: bool) -> str:  # noqa: ARG002
        return "nothing to recover"

    def finish(self) -> None: ...

    def reserve(self, round: int) -> None: ...

    def lose(self, round: int) -> None: ...

    def was_reserved(self, round: int) -> bool:  # noqa: ARG002
        return False

    def keep(self, round: int, kept: Kept) -> None: ...

    def memory(self) -> None:
        return None

    def kept(self, round: int) -> None:  # noqa: ARG002
        return None

    def commit(self, round: int, state: TrainingState, line: MetricsLine) -> None:  # noqa: ARG002
        self._metrics.append(line)

    def training_state(self) -> TrainingState | None:
        return None

    def write_certificate(self, plan: AnyPlan, verdict: dict[str, Any]) -> None: ...

    def metrics(self) -> list[MetricsLine]:
        return list(self._metrics)

    def keep_metrics(self, rounds: int) -> None: ...

    def write_model(self, tensors: dict[str, Any], about: dict[str, str]) -> None: ...
