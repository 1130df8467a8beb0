"""A node whose records each have a budget of their own: it plans them itself.

Guarantee: budgets, rates, and how many records there are stay here. For the public terms of an
offer the silo plans its records within their budgets and its own ledger, has the plan verified by
the second accountant, and hands in a certificate; one offer gets one answer, however often it
comes. A task is done only under a plan that names this certificate, with the very terms that were
offered, and after its round is charged to every record's account here. A task that asks for
anything but a noised update is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.approval.node_ledger import UNLIKELY, NodeLedger, chance_of, refuse_passed
from fedspend.basics.files import in_turn, write_whole
from fedspend.basics.json_values import read_object
from fedspend.client.declining import Declined
from fedspend.client.row_digests import digests
from fedspend.client.task import ClientTask, RecordTerms
from fedspend.configuration.config import Config
from fedspend.configuration.silo_inputs import own_plan
from fedspend.data import Federation
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.row_seals import RowSeals
from fedspend.ledger.rules import APPROVED, account_numbers
from fedspend.ledger.state import Run
from fedspend.ledger.storage import may_hold_ledger
from fedspend.records.planning import OFFER, RecordPlan
from fedspend.records.silos import (
    Offer,
    certified,
    certify,
    checked_id,
    checked_silo_plan,
    read_plan_text,
)
from fedspend.server.methods.record_level import RecordLevel
from fedspend.stored.files import PLAN

FORMAT = "fedspend silo 1"
FOLDER = "plans"  # in the node's state, one folder for each offer
ABOUT = "about.json"
MOST_OFFERS = 8  # that are kept and that no plan has come for


@dataclass(frozen=True)
class Kept:
    """What a silo keeps of one offer: its own plan, and what it handed in for it."""

    folder: Path
    offer: Offer
    plan: RecordPlan
    certificate: str
    opening: dict[str, Any]
    bound: str  # hash of the server's plan that named the certificate; "" before there is one

    def save(self) -> None:
        about = {
            "format": FORMAT,
            "offer": self.offer.to_text(),
            "certificate": self.certificate,
            "opening": self.opening,
            "bound": self.bound,
        }
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not PLAN.of(self.folder).exists():
            self.plan.save(PLAN.of(self.folder))
        write_whole(self.folder / ABOUT, json.dumps(about).encode())

    @classmethod
    def read(cls, folder: Path) -> Kept:
        """What was kept; refused unless the certificate opens to the plan beside it."""
        about = read_object(folder / ABOUT) or {}
        try:
            if about["format"] != FORMAT:
                raise KeyError("format")
            plan = RecordPlan.load(PLAN.of(folder))
            made = cls(
                folder,
                Offer.from_text(about["offer"]),
                plan,
                about["certificate"],
                about["opening"],
                about["bound"],
            )
        except (KeyError, TypeError):
            raise InvalidInput(f"{folder / ABOUT} is damaged; restore it from a copy") from None
        if not (certified(made.certificate, made.opening, plan) and isinstance(made.bound, str)):
            raise InvalidInput(f"{folder}: the certificate is not for this plan; restore a copy")
        return made


@dataclass(frozen=True, eq=False)
class Silo:
    """One silo's plans and accounts."""

    client: str
    config: Config
    federation: Federation
    books: NodeLedger  # the accounts of its records

    @property
    def folder(self) -> Path:
        """The node's state."""
        return self.books.folder

    @property
    def simulation(self) -> bool:
        return self.books.simulation

    # --- before a run ---

    def hand_in(self, text: str) -> str:
        """The certificate for the terms of an offer."""
        try:
            offer = Offer.from_text(text)
            place = self.folder / FOLDER / offer.id
            with in_turn(self.folder / FOLDER):
                if (place / ABOUT).exists():
                    kept = Kept.read(place)
                    if kept.offer != offer:
                        raise InvalidInput("the same offer came with other terms")
                    return kept.certificate
                made = self._planned(offer)
                kept = Kept(place, offer, made, *certify(made, offer), bound="")
                kept.save()
                self._forget(place)
                return kept.certificate
        except FedspendError as error:
            raise Declined("offer", str(error)) from None

    def _forget(self, latest: Path) -> None:
        """Drop the oldest offers that came to nothing, so that no server can fill this disk. One
        that is dropped is one that was never answered: a plan for it is refused.
        """
        waiting = [
            place
            for place in (self.folder / FOLDER).glob(f"*/{ABOUT}")
            if place.parent != latest and (read_object(place) or {}).get("bound") == ""
        ]
        waiting.sort(key=lambda place: place.stat().st_mtime_ns)
        for place in waiting[: max(0, len(waiting) + 1 - MOST_OFFERS)]:
            shutil.rmtree(place.parent)

    def _planned(self, offer: Offer) -> RecordPlan:
        with self._found_ledger() as ledger:
            made = own_plan(self.config, offer, self.federation, ledger)
        verdict = made.verify()
        if not verdict.ok:
            raise InvalidInput(f"the plan of this silo did not verify: {verdict.failures[0]}")
        return made

    def bind(self, text: str) -> str:
        """The certificate again, for a plan of the server's that names it: its tasks may come."""
        try:
            plan = read_plan_text(text)
            place = self.folder / FOLDER / checked_id(plan.parameters.get(OFFER))
            with in_turn(self.folder / FOLDER):
                if not (place / ABOUT).exists():
                    raise InvalidInput("the plan is for an offer that this silo never answered")
                kept = Kept.read(place)
                checked_silo_plan(plan, kept.offer)
                if (plan.silos or {}).get(self.client) != kept.certificate:
                    raise InvalidInput("the plan names another certificate for this silo")
                if kept.bound not in ("", plan.hash):
                    raise InvalidInput("another plan has used this silo's certificate already")
                if not kept.bound:
                    replace(kept, bound=plan.hash).save()
                return kept.certificate
        except (FedspendError, OSError) as error:
            raise Declined("certificate", str(error)) from None

    # --- in a run ---

    def plan_for(self, server_plan: str) -> RecordPlan:
        """The silo's own plan under the server's plan of this hash."""
        for place in sorted((self.folder / FOLDER).glob(f"*/{ABOUT}")):
            if (read_object(place) or {}).get("bound") == server_plan != "":
                return Kept.read(place.parent).plan
        raise Declined(
            "certificate", f"a task of plan {server_plan[:19]} came, which this silo has not"
        )

    def check(self, task: ClientTask) -> None:
        """Refuse what is not planned, before anything is charged or drawn."""
        check_plain(task, self.plan_for(task.shared.plan))

    def own_task(self, task: ClientTask) -> ClientTask:
        """The task with the rates of this silo's own records, which the server does not know."""
        plan = self.plan_for(task.shared.plan)
        if plan.records != names_here(self.federation, plan):
            raise Declined("failed", "the silo's records are not those that it planned for")
        terms = RecordLevel(plan).terms(task.shared.round, {}).records
        assert terms is not None
        return replace(task, records=self._divided(terms(0)))

    def _divided(self, terms: RecordTerms) -> RecordTerms:
        """With the silo's own number to divide by, if it has named one."""
        if self.config.node.batch is None:
            return terms
        return replace(terms, batch=np.where(terms.batch > 0, self.config.node.batch, 0.0))

    # --- the account ---

    def join(self, plan: str) -> None:
        """Nothing to allow here: `bind` has, or no task will be done."""

    def admit(self, task: ClientTask) -> None:
        """Charge every round up to the task's to each record, or refuse."""
        run = task.shared.run
        if not run:  # a simulation that leaves nothing on disk
            return
        plan = self.plan_for(task.shared.plan)
        try:
            with self.books.opened(create=True) as ledger:
                files = {APPROVED: plan.hash.removeprefix("sha256:")}
                ledger.admit(run, plan.proposal(), simulation=self.simulation, files=files)
                mine = ledger.run(run)
                if mine.about["plan"] != plan.hash:
                    raise InvalidInput(f"run {run} was begun under another plan")
                self._seal(ledger, plan)
                refuse_passed(mine, task.shared.round)
                self._refuse_oversampled(mine, task.shared.round, plan.terms.client_rate)
                ledger.reserve_through(run, task.shared.round)
        except Declined:
            raise
        except FedspendError as error:
            raise Declined("account", str(error)) from None

    def _refuse_oversampled(self, run: Run, round: int, rate: float) -> None:
        """Decline when the silo is asked more often than the rate of the terms can explain. One
        that plans as if it always took part need not care: its own rate is 1.
        """
        asked = 1 + sum(run.rounds.get(t) == "committed" for t in range(round))
        if chance_of(asked, round + 1, rate) < UNLIKELY:
            raise Declined(
                "oversampled",
                f"asked in {asked} of {round + 1} rounds of run {run.id}, at a rate of {rate:g}: "
                "the server does not sample as it says",
            )

    def sent(self, task: ClientTask, body: bytes) -> None:
        """Note what was sent, and close the account of a run that is over."""
        run, round = task.shared.run, task.shared.round
        if not run:
            return
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
        with self.books.opened() as ledger:
            ledger.commit(run, round, digest)
            mine = ledger.run(run)
            if mine.closed is None and round + 1 == mine.planned:
                ledger.leave(run, reason="finished")

    def _seal(self, ledger: Ledger, plan: RecordPlan) -> None:
        """Rows behind an account stay the same from run to run, or the silo says so."""
        if self.simulation:
            return
        data, (shard,) = self.federation.dataset, self.federation.shards
        found = digests(data.features, data.labels, np.split(shard, shard.size), plan.records)
        names = ledger.accounts("record").names
        who = account_numbers(ledger.state, "record", list(found))
        sealed = {names[n]: one for n, one in zip(who, found.values(), strict=True)}
        ledger.seal_rows("record", sealed, RowSeals.of(ledger.state.id, ledger.location))

    @contextmanager
    def _found_ledger(self) -> Iterator[Ledger | None]:
        """The ledger, if there is one already; an offer that is refused leaves none behind."""
        if may_hold_ledger(self.books.location):
            with self.books.opened(write=False) as book:
                yield book
        else:
            self.books.refuse_lost()
            yield None


def names_here(federation: Federation, plan: RecordPlan) -> tuple[str, ...]:
    """The ids of the records as they are now, in the order of a plan."""
    if federation.records is not None:
        return federation.records[0]
    ids = federation.dataset.record_of
    return plan.records if ids is None else tuple(map(str, ids.tolist()))


def check_plain(task: ClientTask, plan: RecordPlan) -> None:
    """Refuse a task that is not the planned one, or that asks for more than a noised update."""
    shared, terms = task.shared, task.records
    if terms is None or not terms.at_silo:
        raise Declined("records", "a task came that does not leave the rates to this silo")
    if not (terms.clip == plan.clip and terms.noise_multiplier == plan.terms.noise_multiplier):
        raise Declined("planned", "a task came with another clip or noise than was offered")
    if not 0 <= shared.round < plan.rounds:
        raise Declined("planned", f"a task came for round {shared.round + 1} of {plan.rounds}")
    if task.coin is not None:
        raise Declined(
            "planned", "a task came that asks everyone, which records are not planned for"
        )
    extra = shared.bit_grid, shared.metric, shared.asked, shared.grid, shared.layers
    if shared.bit or any(one is not None for one in extra) or shared.own_deviation != 0:
        raise Declined("planned", "a task came that asks for more than a noised update")
