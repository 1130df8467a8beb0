"""Checks before a run writes anything.

Guarantee: a refused run leaves nothing behind: no run directory, no ledger, no ledger entry.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import is_real, refuse_nameless
from fedspend.configuration.learning_rates import relative_rates
from fedspend.configuration.method_name import known_method, method_of
from fedspend.configuration.noise_kind import noise_of
from fedspend.configuration.record_plans import check_lasting_numbers
from fedspend.configuration.sections import PRIVATE
from fedspend.errors import InvalidInput
from fedspend.ledger.book import Ledger
from fedspend.ledger.default import is_default
from fedspend.ledger.participants import check_planned_on, plan_fits
from fedspend.ledger.rules import check_kind, refuse_lost
from fedspend.ledger.sqlite import check_place
from fedspend.ledger.storage import is_url, path_of
from fedspend.planning.clipping import round_clips
from fedspend.planning.plan import Plan, refuse_trial
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.offers import refuse_used
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.setup import Setup
from fedspend.server.methods.table import METHODS, protects_records


def check_ledger(setup: Setup, ledger: RunLedger) -> None:
    """Refuse what the ledger would refuse, before anything is written.

    A run with its own ledger begins with an empty one.
    """
    if setup.plan is None:
        return
    book = ledger.found()
    if book is not None:
        check_kind(book.state, setup.randomness.simulation, book.location)
        refuse_used(setup, book)
        plan_fits(book, setup.plan)
        return
    check_planned_on(None, setup.plan)
    if ledger.asked is not None and not is_url(ledger.asked):
        path = Path(path_of(ledger.asked))
        refuse_lost(path)
        if not is_default(ledger.asked):  # whose folder is made with it
            check_place(path)


def refuse_other_kind(config: Config, book: Ledger | None) -> None:
    """Refuse a ledger of simulated accounts for a real run, and the other way round, before its
    balances are planned with: they say nothing about such a run.
    """
    if book is not None and METHODS[known_method(config)].unit is not None:
        check_kind(book.state, not is_real(config), book.location)


def check_names_last(plan: AnyPlan, setup: Setup, config: Config) -> None:
    """A ledger outlives the run, so accounts in it need names that do too."""
    if plan.unit == "record":
        if not plan.proposal().own:  # accounts of a run of its own outlive nothing
            check_lasting_numbers(config, setup.federation)
    elif "ledger" not in plan.parameters:
        refuse_nameless(config, setup.settings["data.partition"])


def approved(plan: AnyPlan, stored: AnyPlan | None, config: Config) -> AnyPlan:
    """A plan made beforehand, if it fits this config and run; records are checked further later."""
    if stored is not None:
        if stored.hash != plan.hash:
            raise InvalidInput(
                "the run was started with another plan; drop --plan, or choose another folder"
            )
    else:
        _check_for_config(plan, config)
    return plan


def _check_for_config(plan: AnyPlan, config: Config) -> None:
    refuse_trial(plan)
    method, rounds = method_of(config), config.train.rounds
    unit = "record" if protects_records(method) else "client"
    if plan.unit != unit:
        raise InvalidInput(
            f"the plan is for {plan.unit}s, but the config's method {method!r} is for {unit}s; "
            "make them agree"
        )
    if plan.parameters.get("method", method) != method:
        raise InvalidInput(
            f"the plan is for method {plan.parameters['method']!r}, but the config says "
            f"{method!r}; make them agree"
        )
    if config.ledger.spend == "remaining" and "ledger" not in plan.parameters:
        raise InvalidInput(
            "the plan was made for one run's budgets, but --remaining spends what a ledger has "
            "left; drop --remaining, or make the plan with fedspend plan --ledger"
        )
    of_clients = Plan.expect(plan, "a plan of clients") if plan.unit == "client" else None
    dropped = 0 if of_clients is None else of_clients.dropped_rounds
    if plan.rounds + dropped != rounds:
        raise InvalidInput(
            f"the plan has {plan.rounds} rounds, but the config says {rounds}; make them agree"
        )
    if of_clients is not None:
        _check_terms(of_clients, config)
        _check_clips(of_clients, config)


def _check_terms(plan: Plan, config: Config) -> None:
    """The same plan means the same terms. Plans of records are compared where they are read."""
    privacy = config.privacy
    for name, planned, said in (
        ("delta", plan.delta, privacy.delta),
        ("rate", plan.parameters.get("rate"), privacy.rate),
        ("clip", plan.clip, privacy.clip),
    ):
        if said is not None and planned is not None and planned != said:
            raise InvalidInput(
                f"the plan has {name} {planned:g}, but the config says {said:g}; make them agree"
            )
    for name, stated, wanted in (
        ("bit_noise", plan.bit_noise, config.method.bit_noise),
        ("evaluation.noise", plan.metric_noise, config.evaluation.noise),
    ):
        if stated is not None and wanted is not None and stated != wanted:
            raise InvalidInput(
                f"the plan has {name} {stated:g}, but the config says {wanted:g}; make them agree"
            )
    if (plan.metric_noise is not None) != (config.evaluation.mode == PRIVATE):
        states = "no private metric" if plan.metric_noise is None else "a private metric"
        raise InvalidInput(
            f"the plan states {states}, but the config's evaluation.mode is "
            f"{config.evaluation.mode!r}; make them agree"
        )
    noise = noise_of(config, plan)
    if plan.discrete != noise.startswith("discrete"):
        kind = "discrete" if plan.discrete else "continuous"
        raise InvalidInput(
            f"the plan is for {kind} noise, but the config's noise is {noise!r}; make them agree"
        )


def _check_clips(plan: Plan, config: Config) -> None:
    """The clip schedule that the config states must be the plan's; a default gives way to it."""
    asked = config.privacy.clip_schedule
    rounds = plan.rounds + plan.dropped_rounds
    rates = relative_rates(config.train, rounds)
    if plan.dropped_rounds and (rates is None or any(rates[plan.rounds :])):
        raise InvalidInput(
            f"the plan leaves out {plan.dropped_rounds} of {rounds} rounds, since their learning "
            "rate is 0, but the config has another; make them agree"
        )
    if asked is None:
        return
    wanted = round_clips(asked, rounds, np.array(rates or [1.0] * rounds), config.method.name)
    if wanted.factors.tolist() != plan.clip_factors.tolist():
        raise InvalidInput(
            f"the plan has other clips by round than clip_schedule {asked!r} of the config; make "
            "them agree"
        )
