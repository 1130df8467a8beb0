"""The independent check of a ledger: is it whole, is it the one that others have seen, and is nobody over budget?

Guarantee: if `Audit.ok`, the chain is unbroken from the first entry to the last and contains every head that was shown to it, and
every balance was recomputed with the second accountant, which shares no code with the first, and is within its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.arrays import FloatArray
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger.account import HEAD
from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.state import UNITS, State
from fedspend.second_accountant import epsilon_at, pld_epsilon, renyi_divergence

TOLERANCE = 1e-6
PLD_TOLERANCE = 1e-3


@dataclass
class Audit:
    """What was checked, each with a sentence."""

    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    head: str | None = None

    @property
    def ok(self) -> bool:
        return all(good for _, good, _ in self.checks)

    def add(self, name: str, good: bool, words: str) -> None:
        self.checks.append((name, good, words))

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "head": self.head,
            "checks": [{"check": name, "ok": good, "detail": words} for name, good, words in self.checks],
        }


def audit(location: str, *, heads: Sequence[str] = (), runs: Sequence[str] = ()) -> Audit:
    """Check the ledger at `location`, also against heads (`ENTRIES:HASH` or files) and heads kept in run directories."""
    result = Audit()
    wanted = [_head(text) for text in heads] + [_run_head(folder) for folder in runs]
    try:
        ledger = Ledger.open(location)
    except InvalidInput:
        raise
    except FedspendError as error:
        if error.exit_code != 1:
            raise
        result.add("chain", False, str(error))
        return result
    with ledger:
        result.head = str(ledger.state.head)
        result.add("chain", True, f"{ledger.state.entries} entries, each continuing the one before")
        _guarded(result, "database", ledger.check_storage)
        _guarded(result, "heads", lambda: _check_heads(ledger, wanted))
        for unit in UNITS:
            if len(ledger.accounts(unit)):
                _guarded(result, f"{unit} balances", partial(_check_balances, ledger, unit))
    return result


def _guarded(result: Audit, name: str, check: Callable[[], str]) -> None:
    try:
        result.add(name, True, check())
    except FedspendError as error:
        result.add(name, False, str(error))


def _head(text: str) -> tuple[Head, str]:
    path = Path(text)
    return (Head.load(path), text) if path.exists() else (Head.parse(text), "--head")


def _run_head(folder: str) -> tuple[Head, str]:
    path = Path(folder) / HEAD
    if not path.exists():
        raise InvalidInput(f"{folder!r} keeps no head of a ledger: there is no {HEAD} in it")
    return Head.load(path), str(path)


def _check_heads(ledger: Ledger, wanted: list[tuple[Head, str]]) -> str:
    """Against what was asked for, the head beside the file, and the heads in run directories that are still there."""
    for head, where in wanted:
        ledger.check_head(head, where)
    seen = len(wanted) + int(ledger.head_file is not None and ledger.head_file.exists())  # that one was checked on opening
    for run in ledger.state.runs.values():
        path = Path(run.about["folder"] or "") / HEAD
        if run.about["folder"] and path.exists():
            head = Head.load(path)
            if head.ledger == ledger.state.id:
                ledger.check_head(head, str(path))
                seen += 1
    if not seen:
        return "no head was found elsewhere, so a cut-off tail would not be noticed; give --head or --runs"
    return f"all {seen} heads that were found elsewhere are in the chain"


def _check_balances(ledger: Ledger, unit: str) -> str:
    """Every account once for what it spent and once for what it will have spent, equal ones together."""
    state, balances = ledger.state, ledger.balances(unit)
    checked: dict[tuple[Any, ...], float] = {}
    runs = state.runs_of(unit)
    position = [dict(zip(run.accounts.tolist(), run.of_class.tolist(), strict=True)) for run in runs]
    for held, claims, orders in ((False, balances.spent, balances.order), (True, balances.total, balances.total_order)):
        for n, name in enumerate(balances.names):
            classes = tuple(classes.get(n, -1) for classes in position)
            key = (held, float(balances.delta[n]), float(orders[n]), classes)
            if key not in checked:
                checked[key] = _recomputed(state, unit, classes, held=held, order=float(orders[n]), delta=float(balances.delta[n]))
            epsilon, claim = checked[key], float(claims[n])
            tolerance = TOLERANCE if orders[n] > 0 else PLD_TOLERANCE
            if not abs(epsilon - claim) <= tolerance * max(claim, 1e-3):
                raise FedspendError(f"{unit} {name!r} is said to have spent {claim:.9g}; the second accountant reads {epsilon:.9g}")
            if not epsilon <= balances.budget[n] * (1 + tolerance):
                raise FedspendError(f"{unit} {name!r} has a budget of {balances.budget[n]:g} and {epsilon:.9g} is spent or held")
    return (
        f"{len(balances.names)} accounts, {len(checked)} distinct balances recomputed by the second accountant, all within budget"
    )


def _recomputed(state: State, unit: str, classes: tuple[int, ...], *, held: bool, order: float, delta: float) -> float:
    rates, noises, client_rates, steps = (np.zeros(0) for _ in range(4))
    for run, own in zip(state.runs_of(unit), classes, strict=True):
        if own >= 0:
            upto = run.planned if held and run.closed is None else run.next_round
            rates, noises = np.append(rates, run.rate[:upto, own]), np.append(noises, run.noise[:upto, own])
            client_rates = np.append(client_rates, np.full(upto, run.client_rate))
            steps = np.append(steps, np.full(upto, run.steps))
    if not (rates > 0).any():
        return 0.0
    if order == 0:
        pairs, counts = np.unique(np.stack([rates, noises]), axis=1, return_counts=True)
        return pld_epsilon(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), delta)
    return float(epsilon_at(_divergence(rates, noises, client_rates, steps, order), order, delta))


def _divergence(rates: FloatArray, noises: FloatArray, client_rates: FloatArray, steps: FloatArray, order: float) -> float:
    """Sum over rounds of `log(1 - p + p exp((a-1) steps R)) / (a-1)`."""
    used = rates > 0  # a round at rate 0 is none
    distinct, counts = np.unique(np.stack([rates, noises, client_rates, steps])[:, used], axis=1, return_counts=True)
    q, s, p, k = distinct
    exponent = (order - 1) * k * renyi_divergence(q, s, order)
    with np.errstate(divide="ignore"):
        grown = np.where(p == 1, exponent, np.logaddexp(np.log1p(-p), np.log(p) + exponent))
    return float(counts @ grown / (order - 1))
