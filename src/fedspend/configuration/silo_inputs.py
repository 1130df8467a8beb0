"""Records that stay at their silos: the offer that a server's config makes, and the plan that a
silo's own config makes of it.

Guarantee: nothing in an offer depends on a record or on its budget; a rule that would need the
budgets of several silos is refused with one line. A silo plans with its own budgets, for the delta
that its own config states, within its own ledger; whatever else its config states of the terms must
be what is offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedspend import data
from fedspend.budgets.identity import read_ids
from fedspend.configuration.config import BUDGET_SOURCES, Config, needed
from fedspend.configuration.data_inputs import Source
from fedspend.configuration.method_name import known_method
from fedspend.configuration.record_plans import (
    check_lasting_numbers,
    record_plan,
    refuse_client_level,
    refuse_unlisted,
    terms_given,
    wanted_of,
)
from fedspend.data import Federation, Rows
from fedspend.data.partition import ABSENT
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.records.budget_file import read_record_budgets
from fedspend.records.planning import RecordPlan
from fedspend.records.silos import METHOD, Offer
from fedspend.records.terms import Terms

# Why a method for records does not run where the budgets stay at their silos.
_WHY = {
    "minimum": "it needs the strictest budget of all records",
    "dropout": "it needs the mean budget of all records",
    "filter": "a silo would fall silent, for all to see, when its records' budgets are used up",
}


def offer_of(config: Config, silos: tuple[str, ...]) -> Offer:
    """The public terms of a run, from the server's config alone."""
    refuse_client_level(config)
    name = known_method(config)
    if name != METHOD:
        raise InvalidInput(
            f"method {name!r} does not run over silos, which keep their records' budgets to "
            f"themselves: {_WHY.get(name, 'it may need the budgets of several silos')}; use "
            f"{METHOD!r}, or train on one machine"
        )
    for key in (*(f"privacy.{one}" for one in BUDGET_SOURCES), "data.budget"):
        if config.given(key):
            raise InvalidInput(
                f"{config.where(key)}: records' budgets stay at their silos, so {key} belongs in "
                "the config of each node; drop it here"
            )
    for key in ("ledger.spend", "ledger.exhausted"):
        if config.given(key):
            raise InvalidInput(
                f"{config.where(key)}: each silo keeps the account of its own records; drop {key} "
                "here, and set it at the nodes that want it"
            )
    given = terms_given(config)
    if given["noise_multiplier"] is None:
        raise InvalidInput(
            "noise_multiplier is missing: it would be suggested from everybody's budgets, which "
            "stay at their silos; set privacy.noise_multiplier (fedspend records noise helps to "
            "choose one)"
        )
    return Offer.new(Terms.checked(**given), config.privacy.clip, wanted_of(config), silos)


def silos_of(config: Config, with_keys: tuple[str, ...] | None) -> tuple[str, ...]:
    """Who takes part: the silos that the config lists, or those of the file of keys."""
    if config.engine.silos is not None:
        return read_ids(config.engine.silos, what="engine.silos: silo")
    if with_keys is None:
        raise InvalidInput(
            "nothing says which silos take part: name a file of their keys (engine.keys), or, in a "
            "simulation, list them under engine.silos"
        )
    return with_keys


# --- at a silo ------------------------------------------------------------------------------------


def own_records(source: Source, rows: Rows, silo: str) -> Federation:
    """The silo's records: those of its file of budgets, each with its row or with none; else those
    of its data.
    """
    config = source.config
    dataset = data.load(source.name, rows=rows, untested=True)
    if config.privacy.budgets is None or config.given("data.budget") or rows.record_of is None:
        made = Federation(dataset, (silo,), (np.arange(len(rows.labels)),))
        check_lasting_numbers(config, made)
        return made
    found = read_record_budgets(config.privacy.budgets)
    stranger = next((name for name in found.clients or () if name != silo), None)
    if stranger is not None or not found.named:
        raise InvalidInput(
            f"{config.privacy.budgets} must list the records of silo {silo!r} alone, by id "
            "(column record); make such a file"
        )
    row_of = {record: row for row, record in enumerate(rows.record_of.tolist())}
    refuse_unlisted(config, row_of, set(found.records))
    shard = np.array([row_of.get(record, ABSENT) for record in found.records], dtype=np.int64)
    return Federation(dataset, (silo,), (shard,), (found.records,))


def own_plan(
    config: Config, offer: Offer, federation: Federation, ledger: Ledger | None
) -> RecordPlan:
    """The plan of a silo's records under the terms of an offer. Refuses what its budgets, its
    ledger or its own config do not allow.
    """
    needed(config.privacy.delta, "privacy.delta")  # a budget means nothing without it
    if federation.clients[0] not in offer.silos:
        raise Refused(f"the offer is for other silos than {federation.clients[0]!r}")
    values = {section: dict(given) for section, given in config.values.items()}
    for name, offered in _offered(offer):
        section, key = name.split(".")
        if config.given(name) and config.value(name) != offered:
            raise Refused(
                f"the server offers {name} = {offered!r}, but {config.where(name)} says "
                f"{config.value(name)!r}; this silo does not take part"
            )
        if offered is not None:
            values.setdefault(section, {})[key] = offered
    if config.node.sampling == "ignored":  # safe against a server that picks who takes part
        values["privacy"]["rate"] = 1.0
    return record_plan(replace(config, values=values), federation, ledger)


def _offered(offer: Offer) -> Iterator[tuple[str, Any]]:
    """The terms, as a config would say them."""
    terms, wanted = offer.terms, offer.wanted
    yield "privacy.delta", terms.delta
    yield "privacy.rate", terms.client_rate
    yield "privacy.noise_multiplier", terms.noise_multiplier
    yield "privacy.clip", offer.clip
    yield "privacy.transition", wanted.transition
    yield "train.rounds", terms.rounds
    yield "train.local_steps", terms.local_steps
    yield "method.name", wanted.method
    yield "method.rates", wanted.rates
    yield "method.saving_share", wanted.saving_share
