"""What a client or record has spent, and gets back, if it leaves after some round.

Guarantee: the numbers are the ledger's own. Leaving is simulated on a copy of its state, with the
entries that really leaving would add (`open`, `reserve`, `close` or `stop`) and the same rules, and
read as `fedspend ledger balance` reads it. Nothing is written. Rounds that have begun are spent.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.tables import Table
from fedspend.errors import InvalidInput, Refused
from fedspend.explanation.units import unit_number
from fedspend.ledger import rules
from fedspend.ledger.chain import START, Body
from fedspend.ledger.spending import Balances, balances, epsilons, histories
from fedspend.ledger.state import FORMAT, Run, State
from fedspend.planning.protocol import AnyPlan

IMAGINED = "what-if"  # the run's id if the ledger has no run of this plan


@dataclass(frozen=True, repr=False)
class Leaving:
    """One account when it leaves. Epsilons are at `delta`, composed over all the account's runs."""

    unit: str
    name: str
    begun: int  # number of rounds begun when it leaves
    rounds: int
    budget: float
    delta: float
    elsewhere: float  # spent and held by other runs
    spent: float
    if_it_stays: float  # spent, if the run is finished
    if_closed: float  # spent, if the run is closed and other open runs are finished
    left: float  # the largest claim of a new plan like this one, once the run is closed
    left_if_open: float  # and as long as it is not
    stops_the_run: bool  # whether withdrawing stops the run
    keeps_all: bool  # whether the run, once it has begun, keeps all of its rounds spent

    @property
    def given_back(self) -> float:
        """By how much closing the run raises what a new plan could claim."""
        return max(0.0, self.left - self.left_if_open)

    def numbers(self) -> dict[str, Any]:
        """All of it, as `fedspend explain --leaves --json` prints it."""
        return vars(self) | {"given_back": self.given_back}

    def __repr__(self) -> str:
        return (
            f"<{self.title}: spent {self.spent:.4g} of {self.budget:g}, "
            f"gets back {self.given_back:.4g}, then has {self.left:.4g} left>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("budget", self.budget),
            ("spent; rounds that have begun stay spent", self.spent),
            ("spent in the end, if it stays", self.if_it_stays),
            ("given back, when the run is closed", self.given_back),
            ("then left: the most that a plan like this could claim", self.left),
            ("spent and held by other runs", self.elsewhere),
        ]
        note = "Withdrawing stops the run for everyone." if self.stops_the_run else ""
        title = f"{self.title}; epsilon at delta {self.delta:g}"
        return Table(("", "epsilon"), rows, note).html(title)

    @property
    def title(self) -> str:
        """Who leaves, and when."""
        when = (
            f"after round {self.begun} of {self.rounds}" if self.begun else "before the first round"
        )
        return f"{self.unit} {self.name} leaves {when}"


def leaving(
    plan: AnyPlan, unit: str, name: str, begun: int, ledger: State | None = None
) -> Leaving:
    """The account of `name` if it leaves after `begun` rounds; a `ledger` adds its other runs."""
    unit_number(plan, unit, name)
    if not 0 <= begun <= plan.rounds:
        raise InvalidInput(
            f"--leaves must be a round from 0 (before the first) to {plan.rounds}, the plan's "
            f"last; got {begun}"
        )
    if ledger is None and "ledger" in plan.parameters:
        raise InvalidInput(
            "the plan was made with a ledger, whose past spending counts; name it with --ledger"
        )
    state = _registered(plan, ledger)
    run = _opened(state, plan)
    if begun < run.next_round:
        raise InvalidInput(
            f"--leaves {begun}: run {run.id} has begun {run.next_round} rounds, which are spent; "
            f"give a round from {run.next_round} on"
        )
    account = int(rules.account_numbers(state, unit, [name])[0])
    if state.accounts[unit].withdrawn[account]:
        raise Refused(
            f"{unit} {name!r} has already withdrawn; fedspend ledger balance shows its account"
        )
    for round in range(run.next_round, begun):
        _reserve(state, run, round)
    now = balances(state, unit)
    keeps_all = run.keeps_all
    ending = "stop" if keeps_all and not run.by_order else "close"
    _add(state, {"kind": ending, "run": run.id, "reason": IMAGINED})
    then = balances(state, unit)
    return Leaving(
        unit=unit,
        name=name,
        begun=begun,
        rounds=plan.rounds,
        budget=float(now.budget[account]),
        delta=float(now.delta[account]),
        elsewhere=_without(state, run.id, unit, account),
        spent=_value(now, "spent", account),
        if_it_stays=_value(now, "total", account),
        if_closed=_value(then, "total", account),
        left=_value(then, "remaining", account),
        left_if_open=_value(now, "remaining", account),
        stops_the_run=bool(np.any(run.rate[begun:, run.of_class[_member(run, account)]] > 0)),
        keeps_all=keeps_all,
    )


def _registered(plan: AnyPlan, ledger: State | None) -> State:
    """A copy of the ledger, or a new one, with accounts."""
    state = State() if ledger is None else copy.deepcopy(ledger)
    if ledger is None:
        _add(state, {"kind": "ledger", "format": FORMAT, "ledger": "", "simulation": False})
    if not len(state.accounts[plan.unit]):
        if state.project and state.project not in state.projects:
            _add(state, {"kind": "project", "name": state.project})
        _add(state, plan.proposal().registration(state.by_order))
    return state


def _opened(state: State, plan: AnyPlan) -> Run:
    """The open run of this plan, or a new one."""
    mine = [one for one in state.runs_of(plan.unit) if one.about["plan"] == plan.hash]
    found = [one for one in mine if one.closed is None]
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} open runs use this plan: {', '.join(one.id for one in found)}; close "
            "those that were abandoned (fedspend ledger close-run)"
        )
    if found:
        return found[0]
    if mine:
        raise InvalidInput(
            f"run {mine[-1].id} of this plan was closed ({mine[-1].closed}), so nobody can leave "
            "it; fedspend ledger balance shows what was spent"
        )
    proposal = plan.proposal()
    who = rules.members(state, proposal)
    asked = proposal.as_run(IMAGINED, who)
    alone = rules.refuse_overdrawn(state, asked, joining=True, hint=proposal.order)
    opening = proposal.opening(who, alone)
    _add(state, {"kind": proposal.kind, "run": IMAGINED, "folder": ""} | opening)
    return state.runs[IMAGINED]


def _reserve(state: State, run: Run, round: int) -> None:
    """Begin a round, unless the ledger would refuse it."""
    if run.disturbed:
        members = run.accounts[rules.busy(run.rate[round:], run.of_class)]
        rules.refuse_withdrawn(state, run.unit, members)
        rules.refuse_overdrawn(state, run, joining=False)
    _add(state, {"kind": "reserve", "run": run.id, "round": round})


def _without(state: State, run: str, unit: str, account: int) -> float:
    """What other runs have spent and hold on the account."""
    past = histories(state, unit, held=True, without=run)
    mine = past.read.take(past.of_account[[account]])
    delta, budget = (
        column[account : account + 1]
        for column in (state.accounts[unit].delta, state.accounts[unit].budget)
    )
    return float(epsilons(mine, delta, past.by_pld[past.of_account[[account]]], budget)[0][0])


def _member(run: Run, account: int) -> int:
    return int(np.flatnonzero(run.accounts == account)[0])


def _value(found: Balances, name: str, account: int) -> float:
    return float(getattr(found, name)[account])


def _add(state: State, body: Body) -> None:
    state.apply(state.entries + 1, rules.said_of(state.project, body), START)
