"""Records whose budgets never leave their silo: what a server offers, what a silo hands in, and the
plan that everybody may see.

Guarantee: the plan of the server holds public terms and one certificate from each silo, and nothing
that depends on any record or its budget. What it claims is the cost of a record that is sampled in
every step, so no record of any silo can cost more, whatever its rate. That each record stays within
its own budget is planned, verified and accounted at its silo; a server cannot check it. A
certificate is a commitment to the silo's own plan, which only the silo can open: a plain hash would
let anybody try budgets.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspend.budgets.identity import read_ids
from fedspend.errors import FedspendError, InvalidInput
from fedspend.planning.clipping import check_clip
from fedspend.planning.disclosure import rounded_up
from fedspend.planning.plan_json import built, canonical, check_size, parsed_text
from fedspend.planning.protocol import AnyPlan
from fedspend.planning.schedules import Schedules
from fedspend.records.planning import OFFER, SILOS, RecordPlan, claims
from fedspend.records.policies import Wanted, round_shares
from fedspend.records.terms import Terms
from fedspend.signing.commitments import opens, sealed

FORMAT = "fedspend offer 1"
KIND = "silo"  # of the commitment
# A rule that needs only a record's own budget, and keeps every silo in every round.
METHOD = "rpdp"
_SHOWN = 12  # characters of a certificate in the name of an account


@dataclass(frozen=True)
class Offer:
    """The public terms of a run over silos. `id` is drawn anew for every run."""

    id: str
    terms: Terms
    clip: float
    wanted: Wanted
    silos: tuple[str, ...]

    @classmethod
    def new(cls, terms: Terms, clip: float, wanted: Wanted, silos: Sequence[str]) -> Offer:
        return cls(secrets.token_hex(16), terms, clip, wanted, tuple(silos))

    def to_text(self) -> str:
        return canonical(
            {
                "format": FORMAT,
                "id": self.id,
                "terms": vars(self.terms),
                "clip": self.clip,
                "wanted": vars(self.wanted),
                "silos": list(self.silos),
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Offer:
        """The inverse of `to_text`; anything else is refused."""
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT:
                raise InvalidInput("an offer is of another version; use the same fedspend")
            made = cls(
                content.pop("id"),
                Terms.checked(**content.pop("terms")),
                check_clip(content.pop("clip")),
                Wanted(**content.pop("wanted")),
                read_ids(content.pop("silos"), what="silo"),
            )
            check_size(made.terms.rounds * made.terms.local_steps, 1)
            sound = not content and checked_id(made.id) and made.silos
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FedspendError):
                raise
            raise InvalidInput("an offer is damaged; send it again") from None
        if not sound or made.wanted.method != METHOD:
            raise InvalidInput("an offer is damaged, or is not one that a silo can plan for")
        return made


def silo_plan(offer: Offer, certificates: Mapping[str, str]) -> RecordPlan:
    """What everybody may know: the terms, who takes part, and what each handed in.

    Each silo stands for any one of its records, at the highest rate that there is.
    """
    silos = offer.silos
    shares = np.ones(offer.terms.rounds)
    if offer.wanted.saving_share is not None:
        shares = round_shares(offer.terms.rounds, offer.wanted)
    rate = shares[:, None]
    epsilon, order = claims(rate, offer.terms)
    handed_in = {silo: checked_certificate(certificates.get(silo)) for silo in silos}
    return RecordPlan(
        records=tuple(f"any record of {silo} ({handed_in[silo][:_SHOWN]})" for silo in silos),
        owner=np.arange(len(silos)),
        clients=silos,
        budget=np.full(len(silos), rounded_up(float(epsilon[0]))),
        schedules=Schedules(
            noise_multiplier=np.full(rate.shape, offer.terms.noise_multiplier),
            sampling_rate=rate,
            clip_norm=np.full(rate.shape, offer.clip),
            epsilon=epsilon,
            order=order,
            of_client=np.zeros(len(silos), dtype=np.int64),
        ),
        terms=offer.terms,
        clip=offer.clip,
        parameters=offer.wanted.parameters() | {SILOS: handed_in, OFFER: offer.id},
    )


def checked_silo_plan(plan: AnyPlan, offer: Offer) -> RecordPlan:
    """The plan, if it is what the terms of `offer` and its own certificates give; else refused."""
    made = RecordPlan.expect(plan, "the plan is not one of records at silos")
    if made.silos is None:
        raise InvalidInput("the plan is not one of records at silos; start another run")
    again = replace(offer, id=str(made.parameters.get(OFFER)))
    if silo_plan(again, made.silos).hash != made.hash:
        raise InvalidInput(
            "the plan has other terms or silos than the config; make them agree, or start another "
            "run"
        )
    return made


def plan_text(plan: RecordPlan) -> str:
    """A plan as one line of JSON, with its hash."""
    return canonical(plan.content() | {"hash": plan.hash})


def read_plan_text(text: str) -> RecordPlan:
    return built(RecordPlan.kind(), parsed_text(text.encode(errors="surrogatepass")))


def certify(own: RecordPlan, offer: Offer) -> tuple[str, dict[str, Any]]:
    """A silo's certificate for its own verified plan, and what opens it, which stays at the silo.

    Only for a plan that the second accountant has passed.
    """
    (silo,) = own.clients
    return sealed(KIND, {"offer": offer.id, "silo": silo, "plan": own.hash, "verified": True})


def certified(certificate: str, opening: Mapping[str, Any], own: RecordPlan) -> bool:
    """Whether a silo's certificate is for this plan of its own: for whoever the silo lets see."""
    found = opens(KIND, certificate, opening)
    return (
        found is not None
        and found.get("plan") == own.hash
        and found.get("verified") is True
        and (found.get("silo"),) == own.clients
    )


def checked_id(found: object) -> str:
    """The id of an offer, which names a folder at every silo."""
    if not _is_hex(found, 32):
        raise InvalidInput("an offer has an id that is not one")
    return str(found)


def checked_certificate(found: object) -> str:
    if not _is_hex(found, 64):
        raise InvalidInput("a silo handed in no certificate, or one that is not SHA-256")
    return str(found)


def _is_hex(text: object, length: int) -> bool:
    return isinstance(text, str) and len(text) == length and set(text) <= set("0123456789abcdef")
