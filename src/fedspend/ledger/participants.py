"""Planning within a ledger: who can take part, with which budget, and on top of which past.

Guarantee: budgets, withdrawals and past spending alone decide who is left out, never data. Clients
are left out by name: their rows are not used, and everyone else keeps their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedspend.basics.arrays import BoolArray
from fedspend.budgets.population import Population, Registered
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.rules import (
    account_numbers,
    members,
    names_today,
    refuse_mixed,
    refuse_overdrawn,
)
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.planning.request import PlanRequest


def registered(ledger: Ledger) -> Registered:
    """Everyone who has an account, and the lifetime budgets of those who have not withdrawn."""
    accounts = ledger.accounts()
    active = np.flatnonzero(~accounts.withdrawn)
    if not active.size:
        raise InvalidInput(
            f"nobody is registered in the ledger {ledger.location}"
            f"{of_project(ledger)}, or all have withdrawn; see fedspend ledger register --help"
        )
    names = names_today(accounts)
    population = Population(tuple(names[int(n)] for n in active), accounts.budget[active])
    return Registered(population, tuple(names), ledger.location)


def of_project(ledger: Ledger) -> str:
    """Which project of the ledger was looked at, in case another one was meant."""
    if ledger.project:
        return f" under project {ledger.project!r}"
    if ledger.state.projects:
        named = ", ".join(map(repr, ledger.state.projects))
        return f" outside of its projects ({named}; name one with --project)"
    return ""


def plan_within(ledger: Ledger, request: PlanRequest, *, spend: str, exhausted: str) -> Plan:
    """The plan for `request`, as far as the ledger allows it.

    If `spend` is `config`, the budgets in `request` are for this run. If it is `remaining`, they
    are ignored, and all that is left of each lifetime budget is spent. `exhausted` says whether to
    refuse if a client has too little left, or to leave that client out.
    """
    accounts = ledger.accounts()
    if not len(accounts):  # the run will register its clients
        return request.plan()
    if spend == "remaining":
        return _plan_remaining(ledger, request, exhausted)
    here = ~accounts.withdrawn[account_numbers(ledger.state, "client", request.clients)]
    request = _without(request, here, exhausted, "it has withdrawn")
    while True:
        made = request.plan()
        over = ledger.over(made.proposal())
        if not over.size:
            return made
        # Without the strictest client the others may need less noise (dp-fedavg), so check again.
        fits = np.ones(len(made.clients), dtype=bool)
        fits[over] = False
        request = _without(
            request, fits, exhausted, "the plan would exceed its lifetime budget", "--remaining"
        )


def check_planned_on(ledger: Ledger | None, made: AnyPlan) -> None:
    """Refuse a plan that was made to spend what is left in another ledger."""
    if "ledger" in made.parameters:
        if ledger is None:
            raise Refused(
                "the plan spends what is left in a ledger, and there is none here; name that "
                "ledger with --ledger"
            )
        ledger.check_head(Head.parse(str(made.parameters["ledger"])), "the plan")
        # otherwise its budgets would become lifetime budgets that nobody agreed to
        if not len(ledger.accounts(made.unit)):
            raise Refused(
                f"the plan spends what is left in {ledger.location}, which has no {made.unit} "
                "accounts; make a new plan"
            )


def plan_fits(ledger: Ledger, made: AnyPlan) -> None:
    """Refuse a plan that the ledger would not admit, before anything is written."""
    check_planned_on(ledger, made)
    proposal = made.proposal()
    refuse_mixed(ledger.state, proposal.unit)
    if len(ledger.accounts(proposal.unit)) and not proposal.own:
        refuse_overdrawn(
            ledger.state,
            proposal.as_run("", members(ledger.state, proposal)),
            joining=True,
            hint=proposal.order,
        )


def _plan_remaining(ledger: Ledger, request: PlanRequest, exhausted: str) -> Plan:
    usable = has_left(ledger, request.clients)
    request = _without(
        request,
        usable,
        exhausted,
        "by Rényi curves its lifetime budget is used up, or it has withdrawn",
    )
    accounts, who = ledger.accounts(), account_numbers(ledger.state, "client", request.clients)
    made = replace(request, epsilons=accounts.budget[who], past=ledger.past(request.clients)).plan()
    plan_fits(ledger, made)
    return made.replace(parameters=made.parameters | {"ledger": str(ledger.state.head)})


def has_left(ledger: Ledger, names: Any) -> BoolArray:
    """Whether each client has anything left that some amount of noise could spend."""
    accounts, who = ledger.accounts(), account_numbers(ledger.state, "client", names)
    floor, _ = ledger.past(names).best(accounts.delta[who])
    usable: BoolArray = (accounts.budget[who] > floor * (1 + 1e-5)) & ~accounts.withdrawn[who]
    return usable


def _without(
    request: PlanRequest, keep: BoolArray, exhausted: str, why: str, way_out: str | None = None
) -> PlanRequest:
    """The request for the clients marked in `keep`; refuses if nobody may be left out."""
    clients = request.clients
    if keep.all():
        return request
    first, count = clients[int(np.flatnonzero(~keep)[0])], int((~keep).sum())
    others = f" and {count - 1} more" if count > 1 else ""
    if exhausted == "refuse":
        instead = "" if way_out is None else f"plan with what is left ({way_out}), or "
        raise Refused(
            f"client {first!r}{others} cannot take part: {why}; nothing was changed. See fedspend "
            f"ledger balance; {instead}leave such clients out (ledger.exhausted=leave-out)"
        )
    if not keep.any():
        raise Refused(f"nobody can take part: for each of the {len(clients)} clients, {why}")
    return request.of(keep)
