"""The record-level plan that a config asks for: budgets from a file, a column, a distribution or one number for all.

Guarantee: every training row has exactly one budget, or nothing is planned. Where the config names no noise multiplier, it is
suggested from the budgets alone. Which records a ledger leaves out is decided by budgets and past spending, never by data.
"""

from __future__ import annotations

import numpy as np

from fedspend.arrays import BoolArray, FloatArray, IntArray
from fedspend.config import Config
from fedspend.data import Federation
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.randomness import Randomness
from fedspend.records.budget_file import read_record_budgets
from fedspend.records.noise_choice import suggest_noise
from fedspend.records.planning import AnyPlan, RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.records.preferences import PREFERENCES
from fedspend.records.terms import Terms


def record_plan(config: Config, method: str, federation: Federation, ledger: Ledger | None, stored: AnyPlan | None) -> RecordPlan:
    """A `stored` plan is taken as it is, if it is for the same records and budgets."""
    for name, usual in (("privacy.noise", "central"), ("privacy.clipping", "flat"), ("ledger.spend", "config")):
        if config.get(name) != usual:
            raise InvalidInput(f"{name} = {config.get(name)!r} is for client-level methods; drop it, or choose another method")
    names, budget = budgets_of(config, federation)
    rows = np.concatenate(federation.shards)
    owner = np.repeat(np.arange(len(federation.clients)), [len(shard) for shard in federation.shards])
    mine, ids = budget[rows], tuple(names[row] for row in rows)
    if stored is not None:
        if not (isinstance(stored, RecordPlan) and stored.records == ids and np.array_equal(stored.budget, mine)):
            raise InvalidInput("the run was begun for other records or budgets; make them agree, or start another run")
        return stored
    terms = terms_of(config, mine, owner)
    wanted = Wanted(
        method=method,
        rates=config.get("method.rates"),
        saving_share=config.get("method.saving_share"),
        transition=config.get("privacy.transition"),
        common_rate=config.get("method.common_rate"),
        charge=config.get("method.charge"),
    )
    clip = float(config.get("privacy.clip"))

    def make(left_out: BoolArray | None) -> RecordPlan:
        return plan_records(
            mine, owner, terms, clients=federation.clients, records=ids, clip=clip, wanted=wanted, left_out=left_out
        )

    made = make(None)
    if ledger is None or not len(ledger.accounts("record")):
        return made
    over = ledger.over(made.proposal())
    if over.size and config.get("ledger.exhausted") == "refuse":
        raise Refused(
            f"record {made.records[int(over[0])]!r} and {over.size - 1} more would exceed their lifetime budgets; lower this "
            "run's budgets, or leave them out (ledger.exhausted=leave-out)"
        )
    left_out = np.zeros(mine.size, dtype=bool)
    left_out[over] = True
    return make(left_out) if over.size else made


def budgets_of(config: Config, federation: Federation) -> tuple[list[str], FloatArray]:
    """A name and a budget for every training row of the data set."""
    rows = len(federation.dataset.labels)
    numbered = [str(row) for row in range(rows)]
    if config.given("data.budget"):
        column = federation.dataset.budget_of
        if (
            column is None
            or config.given("privacy.budgets")
            or config.given("privacy.epsilon")
            or config.given("privacy.preferences")
        ):
            raise InvalidInput(
                "data.budget names a column of your own data, and then nothing else may give budgets; drop one of them"
            )
        return numbered, column
    if config.given("privacy.budgets"):
        found = read_record_budgets(config.get("privacy.budgets"))
        if len(found.records) != rows:
            raise InvalidInput(
                f"{config.get('privacy.budgets')} has {len(found.records)} budgets, but there are {rows} training records; every "
                "record needs one, in the order of the data's rows"
            )
        return list(found.records), found.budget
    if config.given("privacy.preferences"):
        generator = Randomness(int(config.get("train.seed"))).generator("budgets")
        return numbered, PREFERENCES[config.get("privacy.preferences")].draw(rows, generator)
    if config.given("privacy.epsilon"):
        return numbered, np.full(rows, float(config.get("privacy.epsilon")))
    raise InvalidInput(
        "the records have no budgets: set preferences, budgets (a CSV file) or epsilon under [privacy], or budget under [data]"
    )


def terms_of(config: Config, budget: FloatArray, owner: IntArray) -> Terms:
    needed = {"delta": "privacy.delta", "rounds": "train.rounds", "local_steps": "train.local_steps"}
    values = {}
    for name, key in needed.items():
        values[name] = config.get(key)
        if values[name] is None:
            section, short = key.split(".")
            raise InvalidInput(f"{short} is missing: set {short} under [{section}] in the config, or give --set {key}=VALUE")
    values["client_rate"] = config.get("privacy.rate") or 1.0
    noise = config.get("privacy.noise_multiplier")
    if noise is None:
        noise = suggest_noise(budget, **values, clients=owner).noise_multiplier
    return Terms.checked(**values, noise_multiplier=noise)
