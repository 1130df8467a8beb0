"""Makes the slices of a new run with clients on other machines, from the config of the run.

Guarantee: the plan is verified, fits the ledger and is the one that the run will have; a folder
that holds slices already is left alone, because clients may have approved them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspend.approval.slices import OFFER_FILE, Offer
from fedspend.configuration.config import any_config
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.certifying import examine
from fedspend.runs.checks import approved, check_ledger, refuse_other_kind
from fedspend.runs.offers import offer_of
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.setup import Setup, from_config


def make_slices(
    config: str | Path | Mapping[str, Any],
    output: str | Path,
    *,
    plan: AnyPlan | None = None,
    ledger: str | Path | None = None,
    project: str | None = None,
) -> tuple[Offer, list[Path]]:
    """Plan a run of this config, or take a `plan` made beforehand, and write everybody's slice to
    the folder `output`; the offer, and the slices' files in the order of the plan.

    `ledger` and `project` mean what they mean to `fedspend.train`.
    """
    settings, folder = any_config(config), Path(output)
    if not ENGINES[settings.engine.name].elsewhere:
        raise InvalidInput(
            "slices are for clients on machines of their own, but engine.name is "
            f'{settings.engine.name!r}; set engine.name = "flower"'
        )
    refuse_without_effect(settings)
    if (folder / OFFER_FILE).exists():
        raise InvalidInput(
            f"{folder} holds slices already, which clients may have approved; name another folder"
        )
    if plan is not None:
        approved(plan, None, settings)
    where = str(ledger) if ledger is not None else settings.ledger.location
    named = project if project is not None else settings.ledger.project
    charged = is_real(settings)
    with RunLedger.of_run(None, where, resume=False, project=named, charged=charged) as opened:
        refuse_other_kind(settings, opened.found())
        setup = from_config(settings, opened.found(), plan, begun=False)
        check_ledger(setup, opened)
    examine(setup, None)
    why = None if setup.plan is None else setup.plan.shows_others()
    if why is not None and not setup.randomness.simulation:
        raise Refused(f"no slices were made, since they would tell other clients' budgets: {why}")
    offer = offer_of(setup, fingerprints(settings.engine.keys, setup))
    return offer, offer.save(folder)


def fingerprints(keys: str | None, setup: Setup) -> dict[str, str]:
    """Of the clients' node keys; a real run needs them."""
    from fedspend.engines.flower.keys import check_covers, read_keys, short

    if keys is None:
        if not setup.randomness.simulation:
            raise InvalidInput(
                "a real run needs the nodes' public keys: name a file of keys with engine.keys"
            )
        return {}
    found = read_keys(keys)
    check_covers(found, setup.federation.clients, keys)
    return {client: short(key) for client, key in found.items()}
