"""`fedspend plan` for a config with a record-level method: every record's rates, before training.

Reads the config's data to know which client holds which record; looks at no feature and no label.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedspend.basics.arrays import IntArray
from fedspend.basics.words import counted
from fedspend.cli.records_views import named
from fedspend.cli.tables import Column, change, figures, percent, spread, table
from fedspend.configuration.config import Config, load_config
from fedspend.configuration.record_plans import BY_CURVES
from fedspend.errors import InvalidInput
from fedspend.report.groups import Grouping
from fedspend.report.record_numbers import Silo, levels_of_plan, silos

if TYPE_CHECKING:
    from fedspend.records.planning import RecordPlan

# Flags that override a config value; the other flags of `fedspend plan` are for whole clients.
SETS = {
    "epsilon": "privacy.epsilon",
    "budgets": "privacy.budgets",
    "clients": "data.clients",
    "rounds": "train.rounds",
    "rate": "privacy.rate",
    "delta": "privacy.delta",
    "clip": "privacy.clip",
    "transition": "privacy.transition",
    "method": "method.name",
}
OTHERS = (
    "policy",
    "saving_rate",
    "permute_rates",
    "weights",
    "clip_schedule",
    "contraction",
    "influence",
    "tail",
    "accountant",
    "compare",
)
MOST_CLIENTS = 12  # in a table; --json has all


def read(args: argparse.Namespace, ledger: str | None) -> Config:
    """The config with the flags applied; refuses those for whole clients."""
    for flag in OTHERS:
        if getattr(args, flag):
            why = f": {BY_CURVES}" if flag == "accountant" else ""
            raise InvalidInput(
                f"--{flag.replace('_', '-')} is for client-level methods{why}; drop it, or name "
                "one with --method"
            )
    return read_config(args, ledger)


def read_config(args: argparse.Namespace, ledger: str | None) -> Config:
    """The config with the flags applied. Errors name the flag, not the `--set` it becomes."""
    given = {flag: value for flag in SETS if (value := getattr(args, flag)) is not None}
    texts = {
        flag: f"{SETS[flag]}={json.dumps(value) if flag == 'budgets' else value}"
        for flag, value in given.items()
    }
    try:
        return load_config(
            args.config,
            [*args.set, *texts.values(), *(["ledger.spend=remaining"] if ledger else [])],
        )
    except InvalidInput as error:
        flag = next(
            (flag for flag, text in texts.items() if str(error).startswith(f"--set {text}:")), None
        )
        if flag is None:
            raise
        raise InvalidInput(
            str(error).replace(f"--set {texts[flag]}", f"--{flag} {given[flag]}", 1)
        ) from None


def show(out: Console, plan: RecordPlan, grouping: Grouping) -> None:
    """One line per level of budgets, and one per client."""
    out.print(table(level_columns(plan, grouping)), "", sep="\n")
    clients = silos(plan)
    out.print(table(client_columns(plan, clients[:MOST_CLIENTS])), "", sep="\n")
    idle = [plan.records[n] for n in plan.left_out]
    notes = []
    if grouping.banded:
        notes.append("Many budgets: records are shown in bands of similar budget.")
    if len(clients) > MOST_CLIENTS:
        notes.append(f"There are {len(clients) - MOST_CLIENTS:,} more clients; --json has all.")
    notes.append(
        "Batch: expected number of records sampled in a step. Noise of a step: per coordinate, in "
        "units of the clip, at the largest batch."
    )
    if plan.by_norm:
        notes.append(
            "Steps: how many gradients of full clip length a record can pay for; shorter ones cost "
            "less, so it may last longer."
        )
    elif plan.filters:
        notes.append(
            f"Steps: the number of steps, of {plan.rounds * plan.terms.local_steps:,}, after which "
            "a record stops or the run ends."
        )
    if plan.terms.client_rate == 1:
        notes.append(
            "Every client takes part in every round, so a server that picks who takes part learns "
            "no more than other observers."
        )
    for note in notes:
        out.print(Text(note, style="dim"))
    if idle:
        out.print(
            Text(
                f"At rate 0 in every round, {why_idle(plan)}: {counted(len(idle), 'record')}: "
                f"{named(idle)}.",
                style="bold",
            )
        )


def why_idle(plan: RecordPlan) -> str:
    if plan.parameters["method"] == "dropout":
        return "below the mean budget"
    return (
        "with too little left"
        if "ledger" in plan.parameters
        else "since no rate can meet their budgets"
    )


def lasting(plan: RecordPlan, members: IntArray) -> str:
    """Steps after which a level's records stop; by norms, the full-clip gradients they can pay."""
    lasts = plan.steps.sum(axis=0)[plan.schedules.of_client[members]]
    low, high = (
        figures(float(end)) if plan.by_norm else f"{end:,.0f}" for end in (lasts.min(), lasts.max())
    )
    return low if low == high else f"{low} to {high}"


def level_columns(plan: RecordPlan, grouping: Grouping) -> list[Column]:
    levels = levels_of_plan(plan, grouping)
    columns: list[Column] = [
        ("budget", [spread(level.group.budget, 0, ".4g") for level in levels]),
        ("records", [f"{level.group.clients:,}" for level in levels]),
        ("at rate 0", [f"{level.left_out:,}" if level.left_out else "" for level in levels]),
    ]
    if plan.filters:  # a rate that falls to 0 would not show when a record stops
        columns.append(("rate", [spread(level.group.rate, 0, ".3g") for level in levels]))
        columns.append(("steps", [lasting(plan, members) for members in grouping.members]))
    else:
        columns.append(("rate", [change(level.group.rate, ".3g", spread) for level in levels]))
    columns.append(("epsilon\npublic", [spread(level.group.spent, -1) for level in levels]))
    if plan.terms.client_rate < 1:
        columns.append(
            ("epsilon if the\nserver picks", [spread(level.picked, 0) for level in levels])
        )
    if "ledger" not in plan.parameters:  # with a ledger, past and plan together spend the budget
        columns.append(("unspent", [percent(level.group.unspent) for level in levels]))
    return columns


def client_columns(plan: RecordPlan, clients: list[Silo]) -> list[Column]:
    noise = plan.terms.noise_multiplier
    return [
        ("client", [silo.client for silo in clients]),
        ("records", [f"{silo.records:,}" for silo in clients]),
        ("at rate 0", [f"{silo.left_out:,}" if silo.left_out else "" for silo in clients]),
        ("batch", [batches(silo) for silo in clients]),
        ("noise of\na step", [figures(noise * silo.step_noise) for silo in clients]),
    ]


def batches(silo: Silo) -> str:
    first, last = (figures(float(silo.batch[at])) for at in (0, -1))
    return first if first == last else f"{first} → {last}"
