"""The independent check of a ledger: is it complete, is it unaltered, and is nobody over budget?

Guarantee: if `LedgerAudit.ok`, the chain is unbroken from the first entry to the last and contains
every head that it was compared with, and every balance was recomputed with the second accountant,
which shares no code with the first, and is within its budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import FloatArray
from fedspend.basics.findings import Finding, guarded, none_failed
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.spending import Balances
from fedspend.ledger.spending import balances as balances_of
from fedspend.ledger.state import UNITS, Run, State
from fedspend.stored.run import StoredRun
from fedspend.verification.second_accountant import epsilon_at, pld_epsilon, renyi_divergence

TOLERANCE = 1e-6
PLD_TOLERANCE = 1e-3


@dataclass
class LedgerAudit:
    """What was checked, with a sentence about each check."""

    checks: list[Finding] = field(default_factory=list)
    head: str | None = None

    @property
    def ok(self) -> bool:
        return none_failed(self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "head": self.head,
            "checks": [finding.to_dict() for finding in self.checks],
        }


def audit(location: str, *, heads: Sequence[str] = (), runs: Sequence[str] = ()) -> LedgerAudit:
    """Check the ledger at `location`.

    It must contain `heads` (`ENTRIES:HASH` or files) and the heads kept in the run directories
    `runs`.
    """
    result = LedgerAudit()
    wanted = [named_head(text) for text in heads] + [_run_head(folder) for folder in runs]
    try:
        ledger = Ledger.open(location)
    except InvalidInput:
        raise
    except FedspendError as error:
        if error.exit_code != 1:
            raise
        result.checks.append(Finding("chain", False, str(error)))
        return result
    with ledger:
        result.head = str(ledger.state.head)
        entries = f"{ledger.state.entries} entries, each linked to the one before"
        result.checks = [
            Finding("chain", True, entries),
            guarded("database", lambda: (True, ledger.check_storage())),
            guarded("heads", lambda: _check_heads(ledger, wanted)),
            *(
                finding
                for project in ("", *ledger.state.projects)
                for finding in _of_project(ledger.state.of(project))
            ),
        ]
    return result


def _of_project(state: State) -> list[Finding]:
    """The balances of one project, and whether they can be relied on at all."""
    units = [unit for unit in UNITS if len(state.accounts[unit])]
    where = f", {state.project}" if state.project else ""
    found = [
        guarded(f"{unit} balances{where}", partial(recheck_balances, state, unit)) for unit in units
    ]
    if len(units) > 1:  # refused today; ledgers of version 0.1 may have both
        words = (
            "clients and records have accounts side by side: what client-level runs gave away of a "
            "record is not in the record's balance"
        )
        found.append(Finding(f"one unit{where}", None, words))
    return found


def named_head(text: str) -> tuple[Head, str]:
    path = Path(text)
    return (Head.load(path), text) if path.exists() else (Head.parse(text), "--head")


def _run_head(folder: str) -> tuple[Head, str]:
    path = StoredRun(Path(folder)).head_file
    if not path.exists():
        raise InvalidInput(f"{folder!r} keeps no head of a ledger: there is no {path.name} in it")
    return Head.load(path), str(path)


def _check_heads(ledger: Ledger, wanted: list[tuple[Head, str]]) -> tuple[bool | None, str]:
    """Check the heads that were given, the one beside the file, and those in run directories."""
    for head, where in wanted:
        ledger.check_head(head, where)
    # the head beside the file was checked on opening
    seen = len(wanted) + int(ledger.head_file is not None and ledger.head_file.exists())
    missing = 0
    for run in list(ledger.state.runs.values()):
        kept = _head_of_run(run)
        if kept is None:
            missing += 1
        else:
            ledger.check_head(kept, f"the run directory {run.about['folder']}")
            seen += 1
    note = f"; not found: {missing} of the run directories" if missing else ""
    if not seen:
        return (
            None,
            "no head was found elsewhere, so missing last entries would go unnoticed: give --head "
            f"or --runs{note}",
        )
    heads = "the head" if seen == 1 else f"all {seen} heads"
    return True, f"{heads} found elsewhere {'is' if seen == 1 else 'are'} in the chain{note}"


def _head_of_run(run: Run) -> Head | None:
    """The head in a run's directory, if it can be read and still belongs to that run."""
    if not run.about["folder"]:
        return None
    found = StoredRun(Path(run.about["folder"]))
    try:
        named = found.facts().ledger
        here = named is not None and named.run == run.id and found.head_file.exists()
    except (InvalidInput, OSError):
        return None
    return Head.load(found.head_file) if here else None


def recheck_balances(state: State, unit: str, computed: Balances | None = None) -> tuple[bool, str]:
    """Recompute what each account has spent and will have spent; equal histories only once."""
    balances = balances_of(state, unit) if computed is None else computed
    checked: dict[tuple[Any, ...], float] = {}
    position = [
        dict(zip(run.accounts.tolist(), run.of_class.tolist(), strict=True))
        for run in state.runs_of(unit)
    ]
    held_over = closed_over = 0
    for held, claims, orders in (
        (False, balances.spent, balances.order),
        (True, balances.total, balances.total_order),
    ):
        for n, name in enumerate(balances.names):
            classes = tuple(classes.get(n, -1) for classes in position)
            own = float(state.accounts[unit].order[n])
            key = (held, float(balances.delta[n]), float(orders[n]), own, classes)
            if key not in checked:
                checked[key] = _recomputed(
                    state,
                    unit,
                    classes,
                    held=held,
                    order=float(orders[n]),
                    delta=float(balances.delta[n]),
                    own=own,
                )
            epsilon, claim = checked[key], float(claims[n])
            tolerance = TOLERANCE if orders[n] > 0 else PLD_TOLERANCE
            if not abs(epsilon - claim) <= tolerance * max(claim, 1e-3):
                raise FedspendError(
                    f"{unit} {name!r} has spent {claim:.9g} by the first accountant, but "
                    f"{epsilon:.9g} by the second"
                )
            within = epsilon <= balances.budget[n] * (1 + tolerance)
            if within:
                continue
            if held:
                held_over += claim > balances.spent[n]
                continue
            began = _recomputed(
                _as_begun(state),
                *(unit, classes),
                held=False,
                order=float(orders[n]),
                delta=float(balances.delta[n]),
                own=own,
            )
            if not began <= balances.budget[n] * (1 + tolerance):
                raise FedspendError(
                    f"{unit} {name!r} has a budget of {balances.budget[n]:g} but has spent "
                    f"{epsilon:.9g}"
                )
            closed_over += 1
    words = (
        f"{len(balances.names)} accounts, {len(checked)} distinct sums recomputed by the second "
        "accountant, none overspent"
    )
    # A budget may be lowered under an open run, which can then begin no further round, and counts
    # with rounds that never began once it is closed.
    if held_over:
        words += f"; open runs hold more than the budget of {held_over} of them, and cannot go on"
    if closed_over:
        words += (
            f"; {closed_over} of them had a budget lowered under a run that was then closed, and "
            "are over it only by rounds that never began"
        )
    return True, words


def _as_begun(state: State) -> State:
    """The state in which every run counts with the rounds that have begun, and no others."""
    return replace(state, runs={run.id: replace(run, closed=None) for run in state.runs.values()})


def _recomputed(
    state: State,
    unit: str,
    classes: tuple[int, ...],
    *,
    held: bool,
    order: float,
    delta: float,
    own: float,
) -> float:
    """Epsilon of an account that is of these classes in the runs of its unit; -1: not in the run.

    With `held`, as if all open runs had finished. `order` 0 means by PLD; `own` is the account's.
    """
    mine = [(run, at) for run, at in zip(state.runs_of(unit), classes, strict=True) if at >= 0]
    spending = [run for run, at in mine if _spends(run, at, held=held)]
    several = len(spending) > 1 and any(run.by_order for run in spending)
    base = _composed(mine, held=held, order=own if several else order, delta=delta, own=own)
    # what was given back is free, but as a statement only the plan as a whole holds
    early = [(run, at) for run, at in mine if _gave_back(run) and _spends(run, at, held=held)]
    return max([base, *(_whole_plan(run, at, delta) for run, at in early)])


def _composed(
    mine: Sequence[tuple[Run, int]], *, held: bool, order: float, delta: float, own: float
) -> float:
    """Epsilon of these classes of these runs together."""
    tuned = [(run, at) for run, at in mine if run.is_tune]
    tables = [(run, _rounds(run, at, held=held)) for run, at in mine if not run.is_tune]
    rounds = [(run, table) for run, table in tables if table.size]
    if not (tuned or rounds):
        return 0.0
    if order == 0:
        if tuned:
            raise FedspendError(
                f"an account with a private tune (run {tuned[0][0].id}) was read by PLD, which "
                "proves nothing"
            )
        return _by_pld(np.concatenate([table for _, table in rounds], axis=1), delta)
    total = sum(_tuned_divergence(run, at, order) for run, at in tuned)
    for run, table in rounds:
        total += _divergence(table, _proven_order(run, order, own if order == own else 0.0))
    return float(epsilon_at(total, order, delta))


def _by_pld(table: FloatArray, delta: float) -> float:
    pairs, counts = np.unique(table[:2], axis=1, return_counts=True)
    return pld_epsilon(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), delta)


def _gave_back(run: Run) -> bool:
    early = run.closed is not None and 0 < run.next_round < run.planned
    return early and run.by_order and not run.alone


def _whole_plan(run: Run, own: int, delta: float) -> float:
    """Epsilon of all rounds that were planned for a class, by the run's accountant."""
    table = _columns(run, own, run.planned)
    if not table.size:
        return 0.0
    least = min(float(epsilon_at(_divergence(table, a), a, delta)) for a in ORDERS)
    return least if run.accountant == "rdp" else min(least, _by_pld(table, delta))


def _spends(run: Run, own: int, *, held: bool) -> bool:
    """Whether a class has spent anything in a run, or, with `held`, may."""
    return run.is_tune or _rounds(run, own, held=held).size > 0


def _proven_order(run: Run, order: float, own: float) -> float:
    """At which order a run's rounds are read: discrete noise of version 0.1 at whole ones only, of
    which the next is a bound where the account's `own` order lies between two.
    """
    if not run.discrete or (order >= 2 and order == int(order)):
        return order
    if own:
        return max(2.0, float(np.ceil(order)))
    raise FedspendError(
        f"an account with discrete noise (run {run.id}) was read at order {order:g}, which proves "
        "nothing"
    )


def _rounds(run: Run, own: int, *, held: bool) -> FloatArray:
    """The rounds that count, (4, rounds): rate, noise, client rate and steps of each."""
    if run.closed is None:
        whole = held
    elif run.by_order:
        whole = run.alone and run.next_round > 0
    else:
        whole = run.stopped  # a run that its own rule has stopped has spent all of its rounds
    return _columns(run, own, run.planned if whole else run.next_round)


def _columns(run: Run, own: int, upto: int) -> FloatArray:
    client_rate = np.full(upto, run.client_rate)
    table = np.stack(
        [run.rate[:upto, own], run.noise[:upto, own], client_rate, run.steps[:upto, own]]
    )
    return table[:, table[0] > 0]  # a round at rate 0 does not count


def _tuned_divergence(run: Run, own: int, order: float) -> float:
    """The curve of a tune at an order: the smallest that it lists at this order or above."""
    curve = () if run.curves is None else zip(run.orders.tolist(), run.curves[own], strict=True)
    return min((float(value) for listed, value in curve if listed >= order), default=math.inf)


def _divergence(rounds: FloatArray, order: float) -> float:
    """Sum over rounds of `log(1 - p + p exp((a-1) steps R)) / (a-1)`."""
    distinct, counts = np.unique(rounds, axis=1, return_counts=True)
    q, s, p, k = distinct
    exponent = (order - 1) * k * renyi_divergence(q, s, order)
    with np.errstate(divide="ignore"):
        grown = np.where(p == 1, exponent, np.logaddexp(np.log1p(-p), np.log(p) + exponent))
    return float(counts @ grown / (order - 1))
