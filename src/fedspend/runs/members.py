"""Who takes part in a run, with which rows and under which plan.

Guarantee: rows, budgets and accounts are joined by id, never by position, where clients name
themselves. A plan that was made beforehand has exactly the clients that are listed, but for those
whose accounts have nothing left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.budgets.identity import hint_alike
from fedspend.budgets.population import Population
from fedspend.client.row_digests import digests
from fedspend.configuration.data_inputs import Source, dealt, federation_of, is_real, joined
from fedspend.configuration.plan_inputs import Inputs, resolve
from fedspend.data import Federation
from fedspend.data.loading import OWN
from fedspend.data.partition import by_id, rows_by_id
from fedspend.engines.base import Elsewhere, Patience
from fedspend.engines.table import ENGINES, NO_FLOWER, NO_GRID
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.participants import has_left, plan_within, registered
from fedspend.ledger.rules import names_today, refuse_other_keys
from fedspend.planning.plan import TRIAL, Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.server.methods.table import METHODS, protects_records


@dataclass(frozen=True, eq=False)
class Members:
    """Who takes part, with which rows and under which plan; None where nothing is private."""

    federation: Federation
    plan: AnyPlan | None
    of_clients: Plan | None = None  # the same plan, if it is one of clients
    labels: tuple[str, ...] | None = None


def members_of(
    source: Source,
    method: str,
    grid: Any,
    ledger: Ledger | None,
    stored: AnyPlan | None,
    *,
    begun: bool,
) -> tuple[Members, Elsewhere | None]:
    """Who takes part, and how those on other machines are reached.

    `stored` is the plan of a run that has `begun`, or one made for a new run.
    """
    going_on = begun and stored is not None
    if protects_records(method):
        if ENGINES[source.config.engine.name].elsewhere:
            return _silos(source, grid, ledger, stored, begun=going_on)
        members = _records(source, ledger, stored)
    else:
        members = _clients(source, method, ledger, stored, begun=begun)
    if grid is None:
        return members, None
    return members, _elsewhere(source, grid, members.federation.clients, ledger, begun=going_on)


def _clients(
    source: Source, method: str, ledger: Ledger | None, stored: AnyPlan | None, *, begun: bool
) -> Members:
    wrong = (
        f"the run was started with a record-level method, but the config says {method!r}; choose "
        "another folder"
    )
    begun_with = None if stored is None else Plan.expect(stored, wrong)
    if METHODS[method].unit is None:
        return Members(_federation(source, None, None), None)
    made, inputs = _plan(source, ledger, begun_with, begun)
    labels = _groups_of(inputs.population, made.clients)
    return Members(_federation(source, made, inputs), made, made, labels)


def _records(source: Source, ledger: Ledger | None, stored: AnyPlan | None) -> Members:
    from fedspend.configuration.record_plans import record_federation, record_plan

    federation = record_federation(source)
    return Members(federation, record_plan(source.config, federation, ledger, stored))


def _silos(
    source: Source, grid: Any, ledger: Ledger | None, stored: AnyPlan | None, *, begun: bool
) -> tuple[Members, Elsewhere]:
    """Records that stay at their silos: the terms are offered, and every silo plans its own.

    A run that goes on keeps its plan, with the certificates that were handed in for it.
    """
    from fedspend.configuration.silo_inputs import offer_of, silos_of
    from fedspend.records.silos import checked_silo_plan, plan_text, silo_plan

    config = source.config
    if grid is None:
        raise InvalidInput(NO_GRID)
    if not source.elsewhere:
        raise InvalidInput(
            f"data set {source.name!r} is on this machine, but records stay at their silos: give "
            'the evaluation rows alone (data.name = "csv", data.test_path)'
        )
    if stored is not None and not begun:
        raise InvalidInput(
            "a plan of records at silos is made when their run begins, from what they hand in; "
            "drop --plan"
        )
    keys = None
    if config.engine.keys is not None:
        keys = tuple(_files_of_keys().read_keys(config.engine.keys))
    silos = silos_of(config, keys)
    offer = offer_of(config, silos)
    there = _elsewhere(source, grid, silos, ledger, begun=begun)
    federation = by_id(source.dataset, silos)
    if stored is not None:
        made = checked_silo_plan(stored, offer)
    else:
        simulation = not is_real(config)
        certificates = _flower_silos().handed_in(
            there, silos, offer.to_text(), simulation=simulation
        )
        made = silo_plan(offer, certificates)
    public = replace(there, silo_plan=plan_text(made), certificates=made.silos)
    return Members(federation, made), public


def _elsewhere(
    source: Source, grid: Any, clients: tuple[str, ...], ledger: Ledger | None, *, begun: bool
) -> Elsewhere:
    """How clients on other machines are reached, and whose key is whose; refuses other keys than
    the ledger knows.
    """
    engine, keys = source.config.engine, None
    if not ENGINES[engine.name].elsewhere:
        raise InvalidInput(
            f"clients are to run on other machines, but engine.name is {engine.name!r}; set "
            'engine.name = "flower"'
        )
    if engine.keys is not None:
        keys = _files_of_keys().read_keys(engine.keys)
        _files_of_keys().check_covers(keys, clients, engine.keys)
        if ledger is not None:
            refuse_other_keys(ledger.state.keys, keys)
    patience = Patience(
        engine.deadline,
        engine.retries,
        engine.quorum,
        "stop" if engine.without_quorum == "stop" else "release",
    )
    return Elsewhere(grid, patience, keys, begun, meaning=source.meaning)


def _files_of_keys() -> ModuleType:
    """Reads public keys, with a package that comes with Flower."""
    try:
        from fedspend.engines.flower import keys
    except ModuleNotFoundError:
        raise InvalidInput(NO_FLOWER) from None
    return keys


def _flower_silos() -> ModuleType:
    try:
        from fedspend.engines.flower import silos
    except ModuleNotFoundError:
        raise InvalidInput(NO_FLOWER) from None
    return silos


def _plan(
    source: Source, ledger: Ledger | None, stored: Plan | None, begun: bool
) -> tuple[Plan, Inputs]:
    config = source.config
    remaining, accounts = (
        config.ledger.spend == "remaining",
        ledger is not None and len(ledger.accounts()) > 0,
    )
    if remaining and not accounts:
        raise InvalidInput(
            "spending what remains needs a ledger with client accounts; name one with --ledger"
        )
    # whether budgets come from the ledger
    lifetime = remaining or (stored is not None and "ledger" in stored.parameters)
    inputs = resolve(
        config,
        registered=registered(ledger) if ledger is not None and accounts and lifetime else None,
        source=source,
    )
    request = inputs.request
    if stored is not None:
        listed = set(inputs.roster).difference(source.left_out)
        if begun and inputs.listed_in is None and source.natural:
            # The data's ids became the roster when the plan was made, so clients whose rows are
            # gone are still on it.
            listed.update(client for client in stored.clients if client not in source.left_out)
        check_roster(stored, inputs.population, listed, ledger, begun=begun)
        if "ledger" not in stored.parameters and TRIAL not in stored.parameters:
            check_budgets(stored, inputs.population)
        return stored, inputs
    if ledger is None:
        return request.plan(), inputs
    made = plan_within(
        ledger, request, spend=config.ledger.spend, exhausted=config.ledger.exhausted
    )
    return made, inputs


def check_roster(
    stored: Plan, population: Population, listed: set[str], ledger: Ledger | None, *, begun: bool
) -> None:
    """Check that the plan has all listed clients, except those with nothing left in the ledger."""
    planned = set(stored.clients)
    stranger = next((client for client in stored.clients if client not in listed), None)
    if stranger is not None:
        raise InvalidInput(
            f"the plan has client {stranger!r}, who is not among the listed "
            f"clients{hint_alike(stranger, listed)}; make another plan"
        )
    absent = [client for client in population.clients if client not in planned]
    if ledger is not None and len(ledger.accounts()) and (begun or "ledger" in stored.parameters):
        accounts = {*ledger.accounts().number, *names_today(ledger.accounts())}
        known = [client for client in absent if client in accounts]
        # A run that has begun has spent some of what its members had, so only having an account
        # counts then.
        out = (
            set(known)
            if begun
            else {
                client
                for client, left in zip(known, has_left(ledger, known), strict=True)
                if not left
            }
        )
        absent = [client for client in absent if client not in out]
    if absent:
        raise InvalidInput(
            f"client {absent[0]!r} is not in the plan{hint_alike(absent[0], planned)}; make "
            "another plan, or list it under data.leave_out"
        )


def check_budgets(stored: Plan, population: Population) -> None:
    """Check that budgets are those that the run began with; its clients are already checked."""
    now = dict(zip(population.clients, population.epsilons.tolist(), strict=True))
    for client, then in zip(stored.clients, stored.budget.tolist(), strict=True):
        if now.get(client, then) != then:
            raise InvalidInput(
                f"the plan has a budget of {then:g} for client {client!r}, but the config has "
                f"{now[client]:g}; make them agree, or start another run"
            )


def _federation(source: Source, made: Plan | None, inputs: Inputs | None) -> Federation:
    """The rows of each planned client: by id if clients are natural, else as dealt beforehand."""
    if made is None or inputs is None:
        return federation_of(source)
    if source.natural:
        return joined(source, made.clients, inputs.roster, inputs.listed_in)
    federation = dealt(source, len(inputs.roster))
    if made.clients == tuple(inputs.roster):
        return replace(federation, clients=made.clients)
    shard_of = dict(zip(inputs.roster, federation.shards, strict=True))
    return replace(
        federation, clients=made.clients, shards=tuple(shard_of[client] for client in made.clients)
    )


def _groups_of(population: Population, clients: tuple[str, ...]) -> tuple[str, ...] | None:
    """The group of each client of the plan; those who have withdrawn since have none."""
    if population.groups is None:
        return None
    group_of = dict(zip(population.clients, population.groups, strict=True))
    return tuple(group_of.get(client, "withdrawn") for client in clients)


def behind(source: Source, members: Members) -> dict[str, bytes] | None:
    """Digests of the rows that the plan's units stand for, as they were read: neither hold-out nor
    a sample nor fixed features make other rows of them.
    """
    plan, config = members.plan, source.config
    if plan is None or not is_real(config) or source.name not in OWN or source.elsewhere:
        return None
    if plan.unit == "record":
        held = members.federation
        rows = np.concatenate(held.shards)
        return digests(
            held.dataset.features, held.dataset.labels, np.split(rows, rows.size), plan.names
        )
    found = source.rows
    mine: Sequence[IntArray] = (
        [np.arange(len(found.labels))] * len(plan.clients)  # one silo: the data names no clients
        if found.client_of is None
        else rows_by_id(found.client_of, plan.clients)
    )
    return digests(found.features, found.labels, mine, plan.clients)
