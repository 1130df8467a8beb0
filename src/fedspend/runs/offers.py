"""The slices of a run with clients on other machines: made before it, and binding for it.

Guarantee: a run that has slices is the one they were made for: its id, plan and terms are theirs,
and its tasks name their root, never the plan's own hash, from which budgets could be guessed. The
root is fixed before the first round: it is among the settings of the run, and the ledger has the
digest of the file that they are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.approval.slices import Offer, Terms, load_offer, new_offer
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.account import new_run_id
from fedspend.models.flat import parameter_count
from fedspend.planning.plan import Plan
from fedspend.server.methods.guarded import Guarded, Measured
from fedspend.server.methods.planned import Planned

if TYPE_CHECKING:
    from fedspend.ledger import Ledger
    from fedspend.runs.setup import Setup
    from fedspend.server.methods.base import Method


def offer_of(setup: Setup, keys: Mapping[str, str]) -> Offer:
    """Fresh slices for a new run; `keys` are fingerprints of the clients' node keys."""
    terms = terms_of(setup, new_run_id())
    return new_offer(terms, _plan(setup), keys)


def _plan(setup: Setup) -> Plan:
    return Plan.expect(setup.plan, "slices are of plans of clients; this method has no such plan")


def terms_of(setup: Setup, run: str) -> Terms:
    """What every client of the run is told."""
    plan, training = _plan(setup), setup.training
    if plan.discrete and plan.grid_steps is None:
        raise InvalidInput("the plan is of version 0.1, which says too little; make a new one")
    student = training.server.student
    kind = ("discrete" if plan.discrete else "", "distributed" if _distributed(setup) else "")
    return Terms(
        run=run,
        simulation=setup.randomness.simulation,
        method=setup.method.name,
        clients=len(plan.clients),
        rounds=plan.rounds,
        size=parameter_count(setup.module) if student is None else student.ballot.size,
        noise="-".join(filter(None, kind)) or "central",
        bits=training.bits,
        grid_steps=training.grid_steps,
        planned_clips=isinstance(_inside(setup.method), Planned),
        votes=student is not None,
        own_coins=training.ask_everyone,
        bit_noise=_stated_bit(setup, plan),
        metric_noise=plan.metric_noise,
    )


def _distributed(setup: Setup) -> bool:
    return setup.training.noise_place == "distributed"


def _inside(method: Method) -> Method:
    """The method itself, without what holds it to its plan."""
    while isinstance(method, Guarded | Measured):
        method = method.method
    return method


def _stated_bit(setup: Setup, plan: Plan) -> float | None:
    asked = setup.method.terms(0, setup.method.start()).bit_deviation
    if asked != plan.bit_noise:
        raise InvalidInput(
            f"method {setup.method.name!r} has noise of deviation {asked!r} on bits, but the plan "
            f"states {plan.bit_noise!r}; make a new plan from this config"
        )
    return plan.bit_noise


def bound_to(setup: Setup, folder: str | None, known: Mapping[str, Sequence[str]]) -> Setup:
    """The setup of a run with clients on other machines, bound to the slices in `folder`; without
    any, its tasks name no plan, and real nodes refuse them. `known` are the keys that the ledger
    has of each client, those that were given up too.
    """
    there = setup.elsewhere
    assert there is not None
    if folder is None:
        return replace(setup, training=replace(setup.training, plan=""))
    offer = load_offer(folder)
    if offer.plan.hash != _plan(setup).hash:
        raise Refused(
            f"the slices in {folder} are of another plan than this run's, and clients take part "
            "only in what they have approved; a run with slices cannot be replanned"
        )
    said, now = asdict(offer.terms), asdict(terms_of(setup, offer.terms.run))
    for name, then in said.items():
        if now[name] != then:
            raise Refused(
                f"the slices in {folder} were made with {name} {then!r}, and it is now "
                f"{now[name]!r}; make them agree, or make new slices"
            )
    if there.keys is not None:
        refuse_other_fingerprints(offer, there.keys, known)
    return replace(
        setup,
        offer=offer,
        training=replace(setup.training, plan=offer.root),
        elsewhere=replace(there, plan=offer.root),
        settings=setup.settings | {"engine.slices": offer.root},
    )


def refuse_other_fingerprints(
    offer: Offer, keys: Mapping[str, str], known: Mapping[str, Sequence[str]]
) -> None:
    """Slices name the key that a client's node had when they were made, which it has now, or which
    the ledger says it has rotated since.
    """
    from fedspend.engines.flower.keys import short

    for client, key in keys.items():
        if offer.keys.get(client) not in [short(one) for one in (key, *known.get(client, ()))]:
            raise Refused(
                f"the slice of client {client!r} was made for another key than engine.keys has; "
                "make new slices"
            )


def run_id_of(setup: Setup) -> str:
    """The id of a new run: the one that its slices name, if it has some."""
    return new_run_id() if setup.offer is None else setup.offer.terms.run


def refuse_used(setup: Setup, book: Ledger) -> None:
    """Slices are for one run."""
    if setup.offer is not None and setup.offer.terms.run in book.state.runs:
        raise Refused(
            f"these slices are of run {setup.offer.terms.run}, which has begun; resume it, or make "
            "new slices for a new run: fedspend flower slices"
        )


def offered_plan(folder: str | Path) -> Plan:
    """The plan that slices are of."""
    return load_offer(folder).plan
