"""The plan that a config asks for, of clients or of records: `fedspend plan` and `fedspend.plan`.

Guarantee: a ledger is read and not changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import AnyConfig, Config, any_config
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.plan_inputs import NO_FLAGS, Flags, resolve
from fedspend.configuration.record_plans import record_federation, record_plan
from fedspend.data import SOURCES, find
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.ledger.book import Ledger, known_project
from fedspend.ledger.default import default_ledger
from fedspend.ledger.participants import plan_within, registered
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.server.methods.table import protects_records

OnNote = Callable[[str], None]
Labels = tuple[str, ...] | None  # each client's group, if the budgets name groups


def planned(
    config: Config,
    flags: Flags,
    ledger: str | None,
    project: str,
    on_note: OnNote,
    progress: OnProgress | None = None,
) -> tuple[AnyPlan, Labels]:
    """The plan, within what a ledger has left if one is named, and the groups of its clients."""
    refuse_without_effect(config, flags.changes())
    if protects_records(flags.method or config.method.name or ""):
        opened = (
            nullcontext() if ledger is None else known_project(Ledger.open(ledger, project=project))
        )
        with opened as book:
            return record_plan(config, record_federation(Source(config)), book), None
    if ledger is not None:
        return _within(config, flags, ledger, project)
    inputs = resolve(config, by_number(config, flags, on_note))
    plan = inputs.request.plan(progress)
    return plan, inputs.population.groups_of(plan.clients)


def _within(config: Config, flags: Flags, location: str, project: str) -> tuple[Plan, Labels]:
    """Plan with what the ledger has left of every budget, counting what was spent before."""
    with known_project(Ledger.open(location, project=project)) as ledger:
        who = registered(ledger)
        if flags.delta is None and config.privacy.delta is None:
            flags = replace(flags, delta=float(ledger.accounts().delta[0]))
        inputs = resolve(config, flags, who)
        plan = plan_within(
            ledger, inputs.request, spend="remaining", exhausted=config.ledger.exhausted
        )
    return plan, inputs.population.groups_of(plan.clients)


def ledger_of(
    config: Config, ledger: str | None = None, project: str | None = None
) -> tuple[str | None, str]:
    """The ledger whose rest the plan spends, if it does, and the project in it."""
    if ledger is None and config.ledger.spend == "remaining":
        ledger = config.ledger.location
        if ledger is None and is_real(config):
            ledger = default_ledger()
    if project is not None and ledger is None:
        raise InvalidInput(
            "--project is for plans that spend what a ledger has left; name it with --ledger, or "
            "drop --project"
        )
    return ledger, project or config.ledger.project or ""


def by_number(config: Config, flags: Flags, on_note: OnNote) -> Flags:
    """Number the clients of a benchmark that is not on this machine: a preview needs no ids."""
    name, count = config.data.name, config.data.clients
    counted = flags.clients is not None or (flags.epsilon is not None and ":" in flags.epsilon)
    if (
        counted
        or flags.budgets is not None
        or config.given("privacy.budgets")
        or name is None
        or count is None
    ):
        return flags
    here = name not in SOURCES or all(
        find(need) is not None for need in (name, *SOURCES[name].needs)
    )
    if here or not Source(config).natural:
        return flags
    on_note(
        f"data set {name!r} is not on this machine, so its clients are numbered; train makes its "
        "own plan with their ids"
    )
    return replace(flags, clients=count)


def plan_of_config(
    config: AnyConfig, overrides: Sequence[str], progress: OnProgress | None
) -> AnyPlan:
    """The plan that `fedspend plan CONFIG` makes."""
    settings = any_config(config, overrides)

    def on_note(note: str) -> None:
        warnings.warn(note, FedspendWarning, stacklevel=2)

    return planned(settings, NO_FLAGS, *ledger_of(settings), on_note, progress)[0]
