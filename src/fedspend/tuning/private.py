"""A private tune: a random number of trials, of which only the best is kept.

Guarantee: each trial draws a setting at random and trains under its plan; how many there are is
drawn from the distribution that the plan names. Everything that can be refused is refused, both
accountants have agreed on the price, and every client is charged for the whole tune, before the
first trial. The number of trials is kept in memory alone. If a tune is interrupted, it stays
charged and nothing of its trials remains. (Papernot and Steinke 2022; docs/how-to/tuning.md.)
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.trials import BITS, NegativeBinomial
from fedspend.basics.files import make_folder, one_at_a_time
from fedspend.basics.words import counted
from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.method_name import known_method
from fedspend.configuration.plan_inputs import resolve
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.account import RunAccount, new_run_id
from fedspend.ledger.participants import has_left, registered
from fedspend.ledger.rules import (
    account_numbers,
    check_kind,
    members,
    refuse_lost,
    refuse_mixed,
    refuse_overdrawn,
)
from fedspend.ledger.storage import is_url, path_of
from fedspend.planning.request import PlanRequest
from fedspend.report.html import write_report
from fedspend.runs.checks import check_names_last
from fedspend.runs.hold_out_key import secret_of
from fedspend.runs.result import OnNote
from fedspend.runs.row_checks import refuse_other_rows, seal_rows
from fedspend.runs.run_ledger import RunLedger, shown
from fedspend.runs.setup import Setup
from fedspend.server.methods.table import METHODS
from fedspend.stored.files import LEDGER, REPORT
from fedspend.stored.run import MetricsLine
from fedspend.tuning.checking import verify_tune
from fedspend.tuning.grid import Setting, check_metric
from fedspend.tuning.plan import TunePlan
from fedspend.tuning.planning import plan_tune
from fedspend.tuning.trial import Outcome, play, prepared
from fedspend.tuning.winner import begin, charge_of, hide_times, refuse_used, write_winner


@dataclass(frozen=True, eq=False)
class PrivateTune:
    """What a private tune returns."""

    plan: TunePlan
    setting: tuple[str, ...]
    score: float | None
    metrics: list[MetricsLine]
    folder: Path
    ledger: str
    project: str
    run: str


def price(
    settings: Sequence[Setting],
    trials: NegativeBinomial,
    ledger: Ledger | None,
    secret: bytes | None = None,
) -> TunePlan:
    """The plan of the tune, within what the ledger allows. Nothing is trained or charged."""
    for setting in settings:
        _refuse_unfit(setting.config)
    requests = [_request(setting.config, ledger, secret) for setting in settings]
    past, head = None, None
    if settings[0].config.ledger.spend == "remaining":
        requests, past, head = _on_top(ledger, requests)
    overrides = [setting.overrides for setting in settings]
    return plan_tune(overrides, requests, trials, past, head)


@dataclass(frozen=True, eq=False)
class Price:
    """What a tune would cost, and `noise`: how much more of it a trial has than a run that is not
    tuned has (ratio of root mean squares over rounds, first setting).
    """

    plan: TunePlan
    noise: float

    def rows(self) -> list[dict[str, Any]]:
        """By budget: how many clients have it, what they pay, and what one trial may cost."""
        plan = self.plan
        first, of_client = np.unique(plan.budget, return_inverse=True)
        out = []
        for n, budget in enumerate(first.tolist()):
            mine = of_client == n
            out.append(
                {
                    "budget": budget,
                    "clients": int(mine.sum()),
                    "tune": float(plan.epsilon[mine].max()),
                    "trial": float(plan.inner[mine].max()),
                }
            )
        return out

    def words(self) -> str:
        trials, settings = self.plan.trials, len(self.plan.settings)
        seldom = trials.draw(int(0.95 * 2**BITS))
        return (
            f"{trials.mean:.4g} trials expected, more than {seldom} in one tune of twenty; "
            f"each of one of {counted(settings, 'setting')}, drawn at random"
        )

    def document(self) -> dict[str, Any]:
        return {
            "trials": self.plan.trials.content() | {"expected": self.plan.trials.mean},
            "settings": [list(one) for one in self.plan.settings],
            "delta": self.plan.delta,
            "budgets": self.rows(),
            "noise": self.noise,
        }


def price_tag(
    settings: Sequence[Setting],
    trials: NegativeBinomial,
    *,
    ledger: str | None = None,
    project: str | None = None,
) -> Price:
    """What the tune would cost. The ledger, if one is named, is only read."""
    config = settings[0].config
    where = ledger if ledger is not None else config.ledger.location
    named = project if project is not None else config.ledger.project
    with RunLedger.of_run(None, where, resume=False, project=named) as opened:
        book = opened.found()
        plan = price(settings, trials, book)
        asked = _request(config, book, None)
        if config.ledger.spend == "remaining":
            [asked], past, _ = _on_top(book, [asked])
            asked = replace(asked, past=past)
    untuned, trial = asked.plan(), plan.plans[0]
    ratio = np.mean(np.square(trial.round_noise)) / np.mean(np.square(untuned.round_noise))
    return Price(plan, float(np.sqrt(ratio)))


def tune_private(
    settings: Sequence[Setting],
    trials: NegativeBinomial,
    folder: Path,
    *,
    ledger: str | None = None,
    project: str | None = None,
    on_note: OnNote = lambda _: None,
) -> PrivateTune:
    """Plan, check, charge, run the trials, and keep the best with its report."""
    found = _tune_privately(settings, trials, folder, ledger, project, on_note)
    if found.setting is not None:
        write_report([folder], REPORT.of(folder))
    hide_times(folder)
    return found


def _tune_privately(
    settings: Sequence[Setting],
    trials: NegativeBinomial,
    folder: Path,
    ledger: str | None,
    project: str | None,
    on_note: OnNote,
) -> PrivateTune:
    refuse_used(folder)
    config = settings[0].config
    where = ledger if ledger is not None else config.ledger.location
    named = project if project is not None else config.ledger.project
    real = is_real(config)
    with RunLedger.of_run(None, where, resume=False, project=named, charged=real) as opened:
        secret = secret_of(config, None)
        plan = price(settings, trials, opened.found(), secret)
        verdicts = _verified(plan, config)
        setup = _checked(settings, plan, opened, secret, real=real)
        location = opened.asked or str(LEDGER.of(folder))
        if where is None and opened.asked is not None:
            on_note(f"charged to {shown(opened.asked)}, project {opened.project!r}")
        make_folder(folder, private=True)
        folder.chmod(0o700)  # it may have been there, empty
        with one_at_a_time(folder):
            refuse_used(folder)  # nobody came first while we were planning
            run = new_run_id()
            files = begin(folder, plan)
            book = opened.to_charge(location, None, simulation=not real)
            account = RunAccount(book, run, folder)
            account.admit(plan.proposal(), files, simulation=not real)
            seal_rows(setup, folder, opened)
            best = _best(settings, plan, secret, book, run)
            trial = plan.plans[best.setting]
            won = prepared(settings[best.setting].config, trial, secret, book)
            charged = charge_of(opened.asked, folder, run, opened.project)
            written = write_winner(folder, plan, best, won, verdicts[trial.hash], charged)
            account.close("finished", written)
        return PrivateTune(
            plan,
            plan.settings[best.setting],
            best.score if np.isfinite(best.score) else None,
            best.metrics,
            folder,
            book.location,
            opened.project,
            run,
        )


# --- before ---


def _refuse_unfit(config: Config) -> None:
    """What cannot be tuned privately."""
    check_metric(config)
    method = known_method(config)
    unit = METHODS[method].unit
    if unit != "client":
        why = (
            "it protects records, whose accounts cannot be charged with a curve"
            if unit == "record"
            else "it protects nobody, so there is no budget to pay from"
        )
        raise InvalidInput(
            f"method {method!r} cannot be tuned privately: {why}; choose a method for whole clients"
        )
    if ENGINES[config.engine.name].elsewhere:
        raise InvalidInput(
            f"engine {config.engine.name!r} runs clients on other machines, which would see how "
            "many trials there are; a private tune runs on one machine: drop engine.name"
        )
    if config.privacy.accountant not in (None, AUTO, "rdp"):
        raise InvalidInput(
            f"a private tune is read by Rényi curves, not by {config.privacy.accountant!r}; set "
            'privacy.accountant to "rdp" or "auto"'
        )
    if config.ledger.exhausted != "refuse":
        raise InvalidInput(
            "a private tune leaves nobody out by itself; drop ledger.exhausted, and list clients "
            "with too little left under data.leave_out"
        )


def _request(config: Config, ledger: Ledger | None, secret: bytes | None) -> PlanRequest:
    remaining = config.ledger.spend == "remaining"
    accounts = ledger is not None and len(ledger.accounts()) > 0
    if remaining and not accounts:
        raise InvalidInput(
            "spending what remains needs a ledger with client accounts; name one with --ledger"
        )
    return resolve(
        config,
        registered=registered(ledger) if remaining and ledger is not None else None,
        source=Source(config, secret),
    ).request


def _on_top(
    ledger: Ledger | None, requests: Sequence[PlanRequest]
) -> tuple[list[PlanRequest], Mechanisms, str]:
    """The requests with lifetime budgets, and what was spent of these before."""
    assert ledger is not None  # `_request` has refused
    clients = requests[0].clients
    left = has_left(ledger, clients)
    if not left.all():
        name = clients[int(np.flatnonzero(~left)[0])]
        raise Refused(
            f"client {name!r} cannot take part: by Rényi curves its lifetime budget is used up, or "
            "it has withdrawn; nothing was changed. List it under data.leave_out"
        )
    lifetime = ledger.accounts().budget[account_numbers(ledger.state, "client", clients)]
    asked = [replace(one, epsilons=lifetime) for one in requests]
    return asked, ledger.past(clients), str(ledger.state.head)


def _verified(plan: TunePlan, config: Config) -> dict[str, dict[str, Any]]:
    """The verdict on every trial's plan, by its hash; refuses a price that does not hold."""
    found = verify_tune(plan)
    if found.failures:
        raise Refused(f"the tune failed verification, so nothing is trained: {found.failures[0]}")
    source = {"randomness": "os" if is_real(config) else "seeded"}
    return {hash: verdict.to_dict() | source for hash, verdict in found.plans.items()}


def _checked(
    settings: Sequence[Setting],
    plan: TunePlan,
    ledger: RunLedger,
    secret: bytes | None,
    *,
    real: bool,
) -> Setup:
    """Refuse what must not begin, in any setting; returns the parts of the first."""
    book = ledger.found()
    if book is not None:
        check_kind(book.state, not real, book.location)
        refuse_mixed(book.state, "client")
        asked = plan.proposal()
        if len(book.accounts()):
            who = members(book.state, asked)
            refuse_overdrawn(book.state, asked.as_run("", who), joining=True, hint=asked.order)
    elif ledger.asked is not None and not is_url(ledger.asked):
        refuse_lost(Path(path_of(ledger.asked)))
    first: Setup | None = None
    for setting, one in zip(settings, plan.plans, strict=True):
        setup = prepared(setting.config, one, secret, book)
        if ledger.asked is not None:
            check_names_last(one, setup, setting.config)
        refuse_other_rows(setup, None, ledger)
        first = first or setup
    assert first is not None
    return first


# --- the trials ---


def _best(
    settings: Sequence[Setting], plan: TunePlan, secret: bytes | None, book: Ledger, run: str
) -> Outcome:
    """The best of a random number of trials. The number is not returned."""
    config = settings[0].config
    draws = _Draws(None if is_real(config) else config.train.seed)
    best: Outcome | None = None
    for _ in range(plan.trials.draw(draws.word())):
        at = draws.below(len(settings))
        setup = prepared(settings[at].config, plan.plans[at], secret, book)
        found = play(setup, at, draws.below(2**31), run)
        if best is None or found.score > best.score:
            best = found
    assert best is not None, "there is always a first trial"
    return best


class _Draws:
    """How many trials, and which settings: from the operating system, or, in a simulation, from the
    seed.
    """

    def __init__(self, seed: int | None) -> None:
        self._generator = None if seed is None else np.random.default_rng([seed, 0x74756E65])

    def word(self) -> int:
        size = BITS // 8
        if self._generator is None:
            return int.from_bytes(secrets.token_bytes(size))
        return int.from_bytes(self._generator.bytes(size))

    def below(self, limit: int) -> int:
        if self._generator is None:
            return secrets.randbelow(limit)
        return int(self._generator.integers(limit))
