"""Makes the record-level plan that a config describes.

Budgets come from a file, a column, a distribution, one number for all, or a ledger.

Guarantee: every training row has exactly one budget, or nothing is planned. Records are joined by
id where the data has a column for it (`data.record`); by row number in simulations and within one
run only. Where the config names no noise multiplier, it is suggested from the budgets alone. Which
records a ledger leaves out is decided by budgets and past spending, never by data. A plan that was
made before is taken as it is, if it is for these records, clients, budgets and terms.

The roster of records is fixed before rows are read where a file of budgets lists them with their
clients: a listed record without a row has its place in the plan all the same, so that nobody's
rates, noise or batches tell whether it has one. Else the roster is the records in the data. What a
record holds never decides whether it is on the roster of a real run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.budgets.identity import hint_alike
from fedspend.budgets.population import numbered
from fedspend.configuration.config import BUDGET_SOURCES, Config, any_config, needed
from fedspend.configuration.data_inputs import Source, clients_of, federation_of, is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.data import Federation
from fedspend.data.dataset import HOLD_OUT, SAMPLES, without_tests_of
from fedspend.data.loading import OWN
from fedspend.data.partition import ABSENT
from fedspend.data.row_choice import chosen_ids
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.participants import plan_fits
from fedspend.ledger.rules import account_numbers
from fedspend.ledger.spending import histories
from fedspend.noise.randomness import Randomness
from fedspend.planning.protocol import AnyPlan
from fedspend.planning.request_checks import warn_of_delta
from fedspend.records.agreement import check_agrees
from fedspend.records.budget_file import RecordBudgets, read_record_budgets
from fedspend.records.noise_choice import suggest_noise
from fedspend.records.planning import RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.records.preferences import PREFERENCES
from fedspend.records.remaining import Past
from fedspend.records.terms import Terms

# Settings that record-level methods do not use, and the values they may have: a setting without
# effect would look as if it had one.
CLIENT_LEVEL: dict[str, tuple[Any, ...]] = {
    "privacy.noise": ("central",),
    "privacy.clipping": ("flat",),
    "privacy.accountant": (AUTO, "rdp"),
    "privacy.policy": (None,),
    "privacy.saving_rate": (None,),
    "privacy.weights": (None,),
    "shape.blur": (0.0,),
    "shape.lus": (0.0,),
}
# no privacy loss distribution is proven for the two samplings together
BY_CURVES = "records are read by Rényi curves, because clients are sampled around them"


@dataclass(frozen=True, eq=False)
class Asked:
    """What a config says about a plan besides budgets and terms; records come client by client."""

    records: tuple[str, ...]
    owner: IntArray
    clients: tuple[str, ...]
    clip: float
    wanted: Wanted

    def plan(
        self,
        budget: FloatArray,
        terms: Terms,
        left_out: BoolArray | None = None,
        past: Past | None = None,
    ) -> RecordPlan:
        return plan_records(budget, terms=terms, **vars(self), left_out=left_out, past=past)


def plan_of(
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    ledger: str | Path | None = None,
) -> RecordPlan:
    """The plan that training with this config would make, to look at and check beforehand.

    The config is a TOML file or a dict of sections. With a `ledger`, the plan spends what is left
    there of every record's lifetime budget; the ledger is read, not changed.
    """
    settings = any_config(
        config, [*overrides, *([] if ledger is None else ["ledger.spend=remaining"])]
    )
    refuse_without_effect(settings)
    project = settings.ledger.project or ""
    with nullcontext() if ledger is None else Ledger.open(ledger, project=project) as book:
        return record_plan(settings, record_federation(Source(settings)), book)


def record_federation(source: Source) -> Federation:
    """Which client holds which records. A client without any record to train on has no part in a
    plan of records.
    """
    if ENGINES[source.config.engine.name].elsewhere:
        raise InvalidInput(
            "the records and their budgets are at the silos, so there is nothing to plan before a "
            "run has begun: each silo then plans its own"
        )
    refuse_choice_by_content(source)
    listed = listed_budgets(source)
    federation = federation_of(source) if listed is None else of_listed(source, listed)
    if listed is not None or not source.natural:
        return federation
    kept = [
        (client, rows)
        for client, rows in zip(federation.clients, federation.shards, strict=True)
        if len(rows)
    ]
    return replace(
        federation,
        clients=tuple(client for client, _ in kept),
        shards=tuple(rows for _, rows in kept),
    )


def refuse_choice_by_content(source: Source) -> None:
    """Refuse a hold-out, or a sample, of real records without ids: each would be chosen by what it
    holds, and everybody's plan would show it.
    """
    config = source.config
    if not (source.name in OWN and is_real(config)) or source.rows.record_of is not None:
        return
    for name, usual in (("data.validation", 0.0), ("data.share", 1.0)):
        if config.value(name) != usual:
            raise InvalidInput(
                f"{name} = {config.value(name)!r} chooses records without ids by what they hold, "
                "and who is in the plan would tell it; name a column with each record's id "
                "(data.record), or do without it"
            )


def listed_budgets(source: Source) -> RecordBudgets | None:
    """The file of budgets, if it says which records there are and whose they are."""
    config = source.config
    if config.privacy.budgets is None or config.given("data.budget"):
        return None
    if not source.natural or source.rows.record_of is None:
        return None
    found = read_record_budgets(config.privacy.budgets)
    return found if found.named and found.clients is not None else None


def of_listed(source: Source, found: RecordBudgets) -> Federation:
    """The records that a file lists, in its order: each with its row, or with none. Who is held
    out, or not in the sample, is known by id, so that it is the same with a row and without.
    """
    config, rows = source.config, source.rows
    assert rows.client_of is not None
    assert rows.record_of is not None
    assert found.clients is not None
    out = set(source.left_out)
    clients = clients_of(
        source, tuple(client for client in dict.fromkeys(found.clients) if client not in out)
    )
    owner_of = dict(zip(found.records, found.clients, strict=True))
    out.update(set(found.clients).difference(clients))
    for client, record in zip(
        map(str, rows.client_of.tolist()), rows.record_of.tolist(), strict=True
    ):
        owner = owner_of.get(record, client)
        if owner != client and not {owner, client} <= out:
            raise InvalidInput(
                f"record {record!r} is a record of client {owner!r} in {config.privacy.budgets}, "
                f"and of {client!r} in the data; make them agree"
            )
    dataset = without_tests_of(source.dataset, source.left_out)
    assert dataset.client_of is not None
    assert dataset.record_of is not None
    row_of = {
        record: row
        for row, (client, record) in enumerate(
            zip(dataset.client_of.tolist(), dataset.record_of.tolist(), strict=True)
        )
        if str(client) not in out
    }
    refuse_unlisted(config, row_of, owner_of)
    kept = _in_training(source, found)
    places: dict[str, list[tuple[str, int]]] = {client: [] for client in clients}
    for record, client, used in zip(found.records, found.clients, kept.tolist(), strict=True):
        if used and client in places:
            places[client].append((record, row_of.get(record, ABSENT)))
    full = {client: own for client, own in places.items() if own}
    return Federation(
        dataset,
        tuple(full),
        tuple(np.array([row for _, row in own], dtype=np.int64) for own in full.values()),
        tuple(tuple(record for record, _ in own) for own in full.values()),
    )


def _in_training(source: Source, found: RecordBudgets) -> BoolArray:
    """Which listed records are there to train on, by their ids: no test rows, not held out, and in
    the sample.
    """
    config = source.config
    kept = np.ones(len(found.records), dtype=bool)
    if config.data.validation > 0:
        kept &= ~chosen_ids(
            found.clients or (), found.records, config.data.validation, HOLD_OUT, source.seed
        )
    elif source.rows.test_record_of is not None:
        tested = set(source.rows.test_record_of.tolist())
        kept &= np.array([record not in tested for record in found.records], dtype=bool)
    if config.data.share < 1:
        kept &= chosen_ids(found.clients or (), found.records, config.data.share, SAMPLES[0], 0)
    return kept


def record_plan(
    config: Config,
    federation: Federation,
    ledger: Ledger | None = None,
    stored: AnyPlan | None = None,
) -> RecordPlan:
    """The plan for `federation`, as far as `ledger` allows it.

    A `stored` plan is used unchanged, if it is for this config.
    """
    refuse_client_level(config)
    remaining = config.ledger.spend == "remaining"
    if remaining and not (
        config.given("data.budget")
        or any(config.given(f"privacy.{name}") for name in BUDGET_SOURCES)
    ):
        names, budget = names_of(federation), None  # the ledger has the budgets
    else:
        names, budget = budgets_of(config, federation)
    if federation.records is None:
        rows = np.concatenate(federation.shards)
        names = tuple(names[row] for row in rows)
        budget = None if budget is None else budget[rows]
    asked = Asked(
        records=names,
        owner=np.repeat(
            np.arange(len(federation.clients)), [len(shard) for shard in federation.shards]
        ),
        clients=federation.clients,
        clip=config.privacy.clip,
        wanted=wanted_of(config),
    )
    if stored is not None:
        lifetime = "ledger" in stored.parameters  # then its budgets are the ledger's
        return check_agrees(
            stored,
            **vars(asked),
            terms=terms_given(config),
            budget=None if lifetime else budget,
        )
    warn_of_delta(needed(config.privacy.delta, "privacy.delta"), len(asked.records), "record")
    if budget is None or remaining:
        return _plan_remaining(config, asked, ledger)
    return _plan_given(config, asked, budget, ledger)


def refuse_client_level(config: Config) -> None:
    for name, usual in CLIENT_LEVEL.items():
        if config.value(name) not in (*usual, None):
            why = f": {BY_CURVES}" if name == "privacy.accountant" else ""
            raise InvalidInput(
                f"{name} = {config.value(name)!r} is for client-level methods{why}; drop it, or "
                "choose another method"
            )


def _plan_given(
    config: Config, asked: Asked, budget: FloatArray, ledger: Ledger | None
) -> RecordPlan:
    """A plan with budgets for this run.

    It refuses, or leaves out, records whose lifetime budgets it would exceed.
    """
    if ledger is None or not len(ledger.accounts("record")):  # the run will register its records
        return asked.plan(budget, terms_of(config, budget, asked.owner))
    left_out = ledger.accounts("record").withdrawn[
        account_numbers(ledger.state, "record", asked.records)
    ]
    _refuse_unless_left_out(config, asked, left_out, "withdrew")
    while True:
        here = ~left_out if not left_out.all() else left_out
        terms = terms_of(config, budget[here], asked.owner[here])
        made = asked.plan(budget, terms, left_out)
        over = np.setdiff1d(ledger.over(made.proposal()), np.flatnonzero(left_out))
        if not over.size:
            return made
        # without these, the others may be sampled more often (minimum, dropout), so check again
        left_out[over] = True
        _refuse_unless_left_out(config, asked, left_out, "would exceed their lifetime budgets")


def _refuse_unless_left_out(config: Config, asked: Asked, who: BoolArray, why: str) -> None:
    if who.any() and config.ledger.exhausted == "refuse":
        first, count = asked.records[int(who.argmax())], int(who.sum())
        others = f" and {count - 1:,} more" if count > 1 else ""
        raise Refused(
            f"record {first!r}{others} {why}; lower this run's budgets, spend what is left "
            "(--remaining), or leave them out (ledger.exhausted=leave-out)"
        )


def _plan_remaining(config: Config, asked: Asked, ledger: Ledger | None) -> RecordPlan:
    """A plan that spends all that is left of each lifetime budget.

    Records that have nothing left, or withdrew, get rate 0.
    """
    if ledger is None:
        raise InvalidInput(
            "spending what remains needs a ledger with record accounts: name an existing one with "
            "--ledger"
        )
    if not len(ledger.accounts("record")):
        raise InvalidInput(
            f"the ledger {ledger.location} has no record accounts, so it cannot say what they have "
            "left; name another, or plan without it: a run with --ledger opens accounts"
        )
    accounts, who = (
        ledger.accounts("record"),
        account_numbers(ledger.state, "record", asked.records),
    )
    before = histories(ledger.state, "record", held=True)
    past, budget = Past(before.mechanisms, before.of_account[who]), accounts.budget[who]
    spent = before.mechanisms.best(
        np.full(before.mechanisms.histories, needed(config.privacy.delta, "privacy.delta"))
    )[0]
    # a rough value is enough: it chooses the noise, not the rates
    left = np.where(accounts.withdrawn[who], 0.0, budget - spent[past.of_record])
    if not (left > 0).any():
        raise Refused(
            f"no record has anything left in the ledger {ledger.location}; see fedspend ledger "
            "balance --unit record"
        )
    terms = terms_of(config, left[left > 0], asked.owner[left > 0])
    made = asked.plan(budget, terms, accounts.withdrawn[who], past)
    plan_fits(ledger, made)
    return replace(made, parameters=made.parameters | {"ledger": str(ledger.state.head)})


def names_of(federation: Federation) -> tuple[str, ...]:
    """The id of every training row of the data set: from the id column, or the row's number."""
    ids = federation.dataset.record_of
    return (
        numbered(len(federation.dataset.labels)) if ids is None else tuple(map(str, ids.tolist()))
    )


def budgets_of(config: Config, federation: Federation) -> tuple[tuple[str, ...], FloatArray]:
    """A name and a budget for every training row of the data set; or for every listed record."""
    if federation.records is not None:
        listed = tuple(chain.from_iterable(federation.records))
        found = read_record_budgets(needed(config.privacy.budgets, "privacy.budgets"))
        budget_of = dict(zip(found.records, found.budget.tolist(), strict=True))
        return listed, np.array([budget_of[record] for record in listed])
    rows = len(federation.dataset.labels)
    names = names_of(federation)
    if config.given("data.budget"):
        column = federation.dataset.budget_of
        if (
            column is None
            or config.given("privacy.budgets")
            or config.given("privacy.epsilon")
            or config.given("privacy.preferences")
        ):
            raise InvalidInput(
                "data.budget names a column of your own data, so nothing else may give budgets; "
                "drop one of them"
            )
        return names, column
    if config.privacy.budgets is not None:
        found = read_record_budgets(config.privacy.budgets)
        if federation.dataset.record_of is not None:
            return names, budgets_by_id(config, found, names, np.concatenate(federation.shards))
        if is_real(config) and not federation.dataset.public:
            raise InvalidInput(
                f"{config.where('privacy.budgets')}: budgets would go to your own records by "
                "position, which is for simulations; name the column of the data that holds each "
                "record's id with data.record"
            )
        if len(found.records) != rows:
            raise InvalidInput(
                f"{config.privacy.budgets} has {len(found.records)} budgets, but there are {rows} "
                "training records; every record needs one, in the order of the data's rows"
            )
        return found.records, found.budget
    if config.privacy.preferences is not None:
        generator = Randomness(config.train.seed).generator("budgets")
        return names, PREFERENCES[config.privacy.preferences].draw(rows, generator)
    if config.privacy.epsilon is not None:
        return names, np.full(rows, config.privacy.epsilon)
    raise InvalidInput(
        "the records have no budgets: set preferences, budgets (a CSV file) or epsilon under "
        "[privacy], or budget under [data]"
    )


def budgets_by_id(
    config: Config, found: RecordBudgets, names: Sequence[str], used: IntArray
) -> FloatArray:
    """The budget of every row, found by its id.

    Rows of clients that take no part need no budget, and there may be budgets without a row.
    """
    place = config.privacy.budgets
    if not found.named:
        raise InvalidInput(
            f"{place} has no column 'record', but data.record joins records by id; add that column"
        )
    budget_of = dict(zip(found.records, found.budget.tolist(), strict=True))
    refuse_unlisted(config, (names[row] for row in used), budget_of)
    return np.array([budget_of.get(name, np.nan) for name in names])


def refuse_unlisted(config: Config, records: Iterable[str], listed: Collection[str]) -> None:
    missing = next((record for record in records if record not in listed), None)
    if missing is not None:
        raise InvalidInput(
            f"record {missing!r} has no budget in {config.privacy.budgets}"
            f"{hint_alike(missing, listed)}; give it one, or remove it from the data"
        )


def check_lasting_numbers(config: Config, federation: Federation) -> None:
    """Refuse lasting accounts if a number may be another person in the next run.

    Benchmarks are exempt: they protect nobody.
    """
    if federation.dataset.public or federation.dataset.record_of is not None:
        return
    for name, usual in (("data.validation", 0.0), ("data.share", 1.0)):
        if config.value(name) != usual:
            raise InvalidInput(
                f"{name} = {config.value(name)!r} draws only some of the rows, so a record would "
                "not keep its number from run to run; name a column with each record's id "
                "(data.record), or simulate without --ledger"
            )
    if is_real(config):
        raise InvalidInput(
            "a ledger that outlives the run would know records by row number, which belongs to "
            "another person once a row is added or removed; name a column with each record's id "
            '(data.record), or simulate (privacy.randomness = "seeded")'
        )


def wanted_of(config: Config) -> Wanted:
    return Wanted(
        method=needed(config.method.name, "method.name"),
        rates=config.method.rates,
        saving_share=config.method.saving_share,
        transition=config.privacy.transition,
        common_rate=config.method.common_rate,
        charge=config.method.charge,
    )


def terms_given(config: Config) -> dict[str, Any]:
    """The terms that the config gives; if the noise multiplier is None, one is suggested later."""
    return {
        "delta": needed(config.privacy.delta, "privacy.delta"),
        "rounds": needed(config.train.rounds, "train.rounds"),
        "local_steps": needed(config.train.local_steps, "train.local_steps"),
        "client_rate": config.privacy.rate or 1.0,
        "noise_multiplier": config.privacy.noise_multiplier,
    }


def terms_of(config: Config, budget: FloatArray, owner: IntArray) -> Terms:
    given = terms_given(config)
    noise = given.pop("noise_multiplier")
    if noise is None:
        noise = suggest_noise(budget, **given, clients=owner).noise_multiplier
    return Terms.checked(**given, noise_multiplier=noise)
