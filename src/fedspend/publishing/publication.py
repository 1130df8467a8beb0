"""What a publication says, made from a finished run.

Guarantee: a run directory that does not verify (`runs.verifying`) is not published. Of the plan a
publication shows one bound that covers everyone (`AnyPlan.bound`); of the run, its model and the
digests of its releases. Budgets, schedules, ids, how many budgets there are, the plan's hash and
the ledger's head are behind commitments or not there at all: a hash of few unknown numbers would
let anyone try them. Metrics are not published, and the model only without the plan's hash that the
run's own file carries.
"""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.data.loading import DATA_SETS
from fedspend.errors import Refused
from fedspend.ledger.account import RunAccount
from fedspend.ledger.chain import Head
from fedspend.ledger.looking import open_to_look
from fedspend.ledger.state import Run
from fedspend.planning.plan_json import Content, canonical, hash_of, to_runs
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.verifying import verify_run
from fedspend.signing.commitments import sealed
from fedspend.stored.files import CERTIFICATE, MODEL, RUN, SEEN_HEAD, TUNE
from fedspend.stored.run import Facts, StoredRun

FORMAT, VERSION = "fedspend-publication", 1
SAME_NOISE = 1e-9  # two clients' readings of one round's noise, relative
READING = 1e-3  # two readings of one schedule by PLD, relative


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run, with everything that is published from it, checked to belong together."""

    folder: Path
    facts: Facts
    plan: AnyPlan
    certificate: dict[str, Any]
    account: Run
    head: Head
    arrays: dict[str, Any]  # the model

    @property
    def simulation(self) -> bool:
        return self.facts.simulation is True


def finished(folder: Path, ledger: str | None) -> Finished:
    """The run in `folder`; refuses one that cannot be published. `ledger` is where its ledger is,
    if not in it.
    """
    _refuse_tuned(folder)
    stored = StoredRun(folder)
    facts, plan, certificate = stored.facts(), stored.plan(), stored.certificate()
    if plan is None or facts.ledger is None:
        raise Refused(f"the run in {folder} has no plan, so there is no guarantee to publish")
    if facts.simulation is None:
        raise Refused(f"{RUN.of(folder)} does not say whether the run is a simulation")
    if certificate is None or not (
        certificate.get("ok") is True
        and certificate.get("plan_hash") == plan.hash == facts.plan_hash
    ):
        raise Refused(
            f"{CERTIFICATE.of(folder)} does not say that the run's plan was verified; nothing is "
            "published"
        )
    _refuse_private_simulation(facts, folder)
    refuse_showing_others(plan, facts, folder)
    account, head = _account(folder, facts, plan, ledger)
    arrays = _model(folder, plan)
    _refuse_unverified(folder, ledger)
    return Finished(folder, facts, plan, certificate, account, head, arrays)


def refuse_showing_others(plan: AnyPlan, facts: Facts, folder: Path) -> None:
    """Refuse a run of which a bound, or one client's part, would tell budgets of others."""
    why = plan.shows_others()
    if plan.unit == "record" and facts.settings.get("privacy.noise_multiplier") is None:
        why = (
            "the noise of all records was chosen by all of their budgets; name it when planning: "
            "privacy.noise_multiplier"
        )
    if why is not None:
        raise Refused(f"the run in {folder} cannot be published: {why}")


def _refuse_tuned(folder: Path) -> None:
    if TUNE.of(folder).exists():
        raise Refused(
            f"{folder} holds a private tune: what it promises is not in the plan of its winner, so "
            f"it cannot be published like a run; hand out {MODEL} with the epsilon of its report"
        )


def _refuse_unverified(folder: Path, ledger: str | None) -> None:
    """A run directory whose parts do not belong together has nothing to state."""
    checked = verify_run(folder, ledger=ledger)
    wrong = next((one for one in checked.checks if one.good is False), None)
    if wrong is not None:
        raise Refused(
            f"the run in {folder} does not verify ({wrong.check}: {wrong.words}), so nothing is "
            "published; see fedspend verify"
        )


def _refuse_private_simulation(facts: Facts, folder: Path) -> None:
    """A simulation's noise can be computed from its seed, so its model is no release."""
    name = facts.settings.get("data.name")
    public = isinstance(name, str) and name in DATA_SETS and DATA_SETS[name].public
    if facts.simulation and not public:
        raise Refused(
            f"the run in {folder} is a simulation on rows that are not known to be public: anyone "
            "can undo its noise, so nothing of it may be published"
        )


def _account(folder: Path, facts: Facts, plan: AnyPlan, ledger: str | None) -> tuple[Run, Head]:
    assert facts.ledger is not None
    named = facts.ledger
    with open_to_look(named.location, folder, ledger, project=named.project) as book:
        mine = RunAccount(book, named.run, folder)
        mine.check_head()
        run = mine.run
        if book.simulation is not facts.simulation or run.about["plan"] != plan.hash:
            raise Refused(f"the ledger {book.location} has another plan for the run in {folder}")
    if run.closed is None or not (run.stopped or run.next_round == run.planned):
        raise Refused(
            f"the run in {folder} is not finished: {run.next_round} of {run.planned} rounds are "
            "done; continue it with fedspend train --resume"
        )
    return run, Head.load(SEEN_HEAD.of(folder))


def _model(folder: Path, plan: AnyPlan) -> dict[str, Any]:
    from fedspend.basics.tensors import read_tensors

    path = MODEL.of(folder)
    if not path.exists():
        raise Refused(f"the run in {folder} has no model yet; continue it with train --resume")
    arrays, about = read_tensors(path)
    if about.get("plan") != plan.hash:
        raise Refused(f"{path} was not trained under the plan of the run in {folder}")
    return arrays


# --- what is written ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Publication:
    """The public document, without its files and its signature; and what opens its commitments."""

    document: Content
    openings: dict[str, Content]  # by client
    owner: Content  # for the owner, and for an auditor whom the owner trusts
    bound: AnyPlan


def made(run: Finished) -> Publication:
    """The publication of a run, under fresh openings."""
    id, plan = secrets.token_hex(16), run.plan
    bound = _verified_bound(plan)
    noise = _noise(plan)
    stated_noise, noise_opening = sealed("noise", {"publication": id, "deviation": to_runs(noise)})
    commitments, openings = {}, {}
    for number, client in enumerate(plan.clients):
        stated, opening = sealed("client", _own(plan, bound, number, id))
        commitments[client] = stated
        openings[client] = _file("fedspend-opening", id, opening | {"noise": noise_opening})
    stated_plan, plan_opening = sealed("plan", {"publication": id, "hash": plan.hash})
    stated_head, head_opening = sealed(
        "ledger", {"publication": id, "head": str(run.head), "ledger": run.head.ledger}
    )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "id": id,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "simulation": run.simulation,
        "guarantee": {
            **plan_guarantee(bound),
            "epsilon": float(bound.budget[0]),
            "lifetime": "ledger" in plan.parameters,
        },
        "bound": with_hash(bound.content()),
        "run": _about(run),
        "certificate": _certificate(run.certificate),
        "releases": [run.account.releases.get(round) for round in range(run.account.planned)],
        "commitments": {
            # sorted, so that their order says nothing about who is who
            "clients": sorted(commitments.values()),
            "noise": stated_noise,
            "plan": stated_plan,
            "ledger": stated_head,
        },
    }
    owner = _file("fedspend-owner-opening", id, {"plan": plan_opening, "ledger": head_opening})
    return Publication(document, openings, owner, bound)


def _verified_bound(plan: AnyPlan) -> AnyPlan:
    """The bound over all schedules, as it passes the independent accountants."""
    for slack in (0.0, READING):
        bound = plan.bound(slack)
        if bound.verify().ok:
            return bound
    raise Refused("the bound over all schedules failed verification; nothing is published")


def plan_guarantee(plan: AnyPlan) -> Content:
    """Unit, adjacency, observer and delta, as the plan's file states them."""
    stated = plan.content()["guarantee"]
    return {name: stated[name] for name in ("unit", "adjacency", "observer", "delta")}


def with_hash(content: Content) -> Content:
    """A plan's content as its file has it."""
    return content | {"hash": hash_of(canonical(content))}


def _noise(plan: AnyPlan) -> FloatArray:
    """The deviation of each round's noise on updates: every client finds the same, its clip times
    the noise multiplier of its update.
    """
    table = plan.schedules
    found = table.clip_norm * plan.update_noise
    found = found[:, np.flatnonzero(table.clients_of > 0)]
    deviation: FloatArray = found[:, 0]
    if not np.all(np.abs(found / deviation[:, None] - 1) <= SAME_NOISE):
        raise Refused("the plan's clips do not belong to its noise; nothing is published")
    return deviation


def _own(plan: AnyPlan, bound: AnyPlan, client: int, id: str) -> Content:
    """What a client's commitment holds: its part of the plan, and its clip in every round."""
    part, public = plan.part_of(client).content(), bound.content()
    if part["orders"] == public["orders"]:  # a long list that everyone has
        del part["orders"]
    unit = int(np.flatnonzero(plan.owner == client)[0])
    clip = plan.schedules.clip_norm[:, plan.schedules.of_client[unit]]
    return {
        "publication": id,
        "client": plan.clients[client],
        "plan": part,
        "clip_norm": to_runs(clip),
    }


def _file(format: str, id: str, content: Content) -> Content:
    return {"format": format, "version": VERSION, "publication": id} | content


def _about(run: Finished) -> Content:
    settings = run.facts.settings
    stated = {
        "method": run.plan.parameters.get("method"),
        "policy": run.plan.policy,
        "noise": settings.get("privacy.noise"),
        "fedspend": run.facts.environment.get("fedspend"),
    }
    return {name: value for name, value in stated.items() if isinstance(value, str)} | {
        "rounds": run.account.planned,
        # rounds without a release: lost, or left out by a rule that stopped the run early
        "lost": run.account.planned - len(run.account.releases),
    }


def _certificate(certificate: dict[str, Any]) -> Content:
    """Which checks the whole plan passed; how many schedules it has, and their numbers, are left
    out.
    """
    checks = certificate.get("checks")
    return {
        "ok": True,
        "checks": [
            {"check": str(one.get("name")), "by": str(one.get("accountant"))}
            for one in (checks if isinstance(checks, list) else [])
            if isinstance(one, dict) and one.get("passed") is True
        ],
    }
