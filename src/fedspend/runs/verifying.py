"""`fedspend verify RUN_DIR`: whether everything in a run directory belongs together.

Guarantee: if `RunVerification.ok`, the plan passes the independent accountants; plan, settings,
certificate, account, releases, checkpoint, metrics, model and report are those of one run, as far
as each is tied to the others; and the account, recomputed by the second accountant, is within every
budget. What could not be checked is listed with its reason. Whatever the files hold, it does not
raise, it writes nothing, and it opens no ledger that the directory chose (`ledger.looking`).

What ties what (docs/how-to/ledger.md has the same list for people):

    ledger, `open`: SHA-256 of run.json, plan.json and certificate.json; the plan's tables and ids
    ledger, `commit`: digest of each release, and of the file that keeps the last one
    ledger, `reserve` and `close`: digest of the checkpoint, which has the digest of the metrics
    ledger, `close`: digest of the model, which must also be the checkpoint's
    report.html: written again from the other files, and compared

The chain of the ledger is no signature: whoever can rewrite the ledger and every head of it can
make another run that passes.
"""

from __future__ import annotations

import hashlib
import html
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import Float32Array
from fedspend.basics.door import public
from fedspend.basics.files import one_at_a_time
from fedspend.basics.findings import Finding, guarded, none_failed, summed_up, table_of
from fedspend.basics.tensors import Sealed, read_sealed
from fedspend.basics.words import counted
from fedspend.budgets.identity import normal
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger import Ledger
from fedspend.ledger.account import is_inside, place_of
from fedspend.ledger.audit import recheck_balances
from fedspend.ledger.chain import Head
from fedspend.ledger.looking import open_to_look
from fedspend.ledger.state import FINISHED, STOPPED_EARLY, Run, steps_table
from fedspend.planning.protocol import AnyPlan
from fedspend.records.planning import SILOS
from fedspend.report.dates import Dates, begun
from fedspend.report.html import render
from fedspend.report.run_data import RunData, load_run
from fedspend.report.sections import NO_BREAK, spent
from fedspend.runs.checkpoints import StoredRelease, StoredState, read_kept, read_state
from fedspend.runs.directory import FIRST
from fedspend.runs.signed import check_signature
from fedspend.runs.standing import wrong_checkpoint, wrong_release
from fedspend.signing.keys import public_key
from fedspend.stored.files import (
    CERTIFICATE,
    CHECKPOINT,
    FILES,
    LEDGER,
    LEDGER_HEAD,
    LOGS,
    METRICS,
    MODEL,
    PLAN,
    RELEASE,
    REPORT,
    RUN,
    SEEN_HEAD,
    TUNE,
)
from fedspend.stored.run import Facts, MetricsLine, StoredRun
from fedspend.verification.findings import Verification

Verdict = tuple[bool | None, str]  # None: it could not be checked
WITHOUT_A_RUN = {PLAN, LEDGER, LEDGER_HEAD, REPORT}  # may lie in any folder
OLD = "version 0.1 did not record it"


@dataclass(repr=False)
class RunVerification:
    """What was checked in a run directory, with a sentence about each check."""

    folder: str
    checks: list[Finding] = field(default_factory=list)
    plan: Verification | None = None  # what the independent accountants found
    simulation: bool | None = None

    @property
    def ok(self) -> bool:
        return none_failed(self.checks)

    def __repr__(self) -> str:
        return f"<run {self.folder}: {summed_up(self.checks)}>"

    def _repr_html_(self) -> str:
        return table_of(self.checks).html(repr(self).strip("<>"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.folder,
            "ok": self.ok,
            "simulation": self.simulation,
            "checks": [one.to_dict() for one in self.checks],
            "plan": None if self.plan is None else self.plan.to_dict(),
        }


@public
def verify_run(
    folder: str | Path, *, ledger: str | Path | None = None, key: str | Path | None = None
) -> RunVerification:
    """Check the run directory `folder`: for its owner, who may see budgets.

    Arguments:
        folder: a run directory, or the winner's of a private tune.
        ledger: where the run's ledger is. Needed unless it is in the run directory: what a
            directory says about a ledger elsewhere is not followed.
        key: a file with a public key: the run must be signed by that key.

    Returns:
        A `RunVerification`: `.ok`, and `.checks` with a finding each. What is wrong with the run is
        said there and raises nothing.

    Raises:
        InvalidInput: there is no run in `folder`, or `key` is no public key.

    `fedspend.verify_run("runs/first").ok`
    """
    signer = None if key is None else public_key(key)
    there = {file for file in FILES if file.of(Path(folder)).exists()}
    if PLAN in there and not there - WITHOUT_A_RUN:
        alone = shlex.join(["fedspend", "verify", str(PLAN.of(Path(folder)))])
        raise InvalidInput(f"{folder} holds a plan and no run; to verify the plan: {alone}")
    if not there:
        raise InvalidInput(f"{folder} holds no run: name a run directory")
    checker = _checker_for(Path(folder), None if ledger is None else str(ledger))
    result = RunVerification(
        str(folder), [guarded("run", partial(_with_account, checker.check_run))]
    )
    if not result.ok:
        return result
    try:
        with one_at_a_time(Path(folder)):  # the files of a run that is going on change
            result.checks += [
                guarded(name, partial(_with_account, check)) for name, check in checker.checks()
            ]
    except (FedspendError, OSError) as error:
        result.checks.append(Finding("run", False, f"cannot be checked now: {error}"))
    finally:
        checker.close()
    result.checks.append(check_signature(Path(folder), signer, checker.named))
    result.plan, result.simulation = checker.verification, checker.simulation
    return result


def _checker_for(folder: Path, ledger: str | None) -> Checker:
    if not TUNE.of(folder).exists():
        return Checker(folder, ledger)
    from fedspend.tuning.verifying import TunedChecker

    return TunedChecker(folder, ledger)


def _with_account(check: Callable[[], Verdict]) -> Verdict:
    try:
        return check()
    except _NoAccount:
        return None, "not checked, because the ledger cannot be read"


class _NoAccount(Exception):
    """The ledger cannot be read; its own check says why, and fails."""


class Checker:
    """One verification in progress: each part is read once, when a check first needs it."""

    def __init__(self, folder: Path, ledger: str | None) -> None:
        self.folder, self.stored, self.named = folder, StoredRun(folder), ledger
        self.verification: Verification | None = None
        self._book: Ledger | None = None

    def checks(self) -> list[tuple[str, Callable[[], Verdict]]]:
        """All checks but that of the run itself, without which there is nothing to check."""
        return [
            ("plan", self.check_plan),
            ("accountants", self.check_accountants),
            *([("silos", self.check_silos)] if self._at_silos() else []),
            ("certificate", self.check_certificate),
            ("settings", self.check_settings),
            ("ledger", self.check_ledger),
            ("account", self.check_account),
            ("balances", self.check_balances),
            ("first files", self.check_first_files),
            ("release", self.check_release),
            ("checkpoint", self.check_checkpoint),
            ("metrics", self.check_metrics),
            ("model", self.check_model),
            ("report", self.check_report),
            ("place", self.check_place),
            ("other files", self.check_others),
        ]

    def close(self) -> None:
        if self._book is not None:
            self._book.close()

    # --- the parts ---

    @cached_property
    def facts(self) -> Facts:
        return self.stored.facts()

    @cached_property
    def plan(self) -> AnyPlan:
        found = self.stored.plan()
        if found is None:
            raise FedspendError(f"there is no {PLAN}")
        return found

    @cached_property
    def metrics(self) -> list[MetricsLine]:
        return self.stored.metrics()

    @cached_property
    def state(self) -> StoredState | None:
        return read_state(self.folder, sealed=self.facts.sealed)

    @cached_property
    def release(self) -> StoredRelease | None:
        return read_kept(self.folder, sealed=self.facts.sealed)

    @property
    def book(self) -> Ledger:
        if self._book is None:
            raise _NoAccount
        return self._book

    def open_book(self) -> Ledger:
        named = self.facts.ledger
        if named is None:
            raise FedspendError(f"{RUN} names no ledger, so its rounds were charged nowhere")
        return open_to_look(named.location, self.folder, self.named, project=named.project)

    @cached_property
    def run(self) -> Run:
        named = self.facts.ledger
        return self.book.run("" if named is None else named.run)

    @property
    def simulation(self) -> bool | None:
        try:
            return self.facts.simulation
        except (FedspendError, OSError):
            return None

    @property
    def done(self) -> int:
        return 0 if self.state is None else self.state.state.done

    def sealed(self, name: str) -> Sealed:
        return read_sealed(self.folder / name, demanded=self.facts.sealed)

    # --- what is checked ---

    def check_run(self) -> Verdict:
        facts = self.facts
        if facts.plan_hash is None:
            return False, "the run has no plan: its method promises nothing, so nothing is verified"
        stamps: dict[str, bool | None] = {RUN.name: facts.simulation}
        if "privacy.randomness" in facts.settings:  # those of runs on arrays do not have it
            stamps["settings"] = facts.settings["privacy.randomness"] == "seeded"
        stamps |= {
            f"round {line['round']}": line.get("randomness") == "seeded" for line in self.metrics
        }
        odd = next((name for name, stamp in stamps.items() if stamp is not facts.simulation), None)
        if odd is not None:
            return False, f"{odd} and {RUN} do not agree on whether this is a simulation"
        kind = "a simulation, which protects nobody" if facts.simulation else "a real run"
        return True, f"{kind}; every file says so"

    def check_plan(self) -> Verdict:
        if self.plan.hash != self.facts.plan_hash:
            return False, f"{PLAN} is not the plan that {RUN} names"
        return True, f"{self.plan.hash[7:19]} for {self.plan.who}, as {RUN} says"

    def check_accountants(self) -> Verdict:
        self.verification = found = self.plan.verify()
        if not found.ok:
            return False, f"the plan fails: {'; '.join(found.failures[:1])}"
        if self._at_silos():
            return True, "the cost of a record in every step was reproduced independently"
        return True, "the plan's claims were reproduced independently and are within the budgets"

    def _at_silos(self) -> bool:
        try:
            return SILOS in self.plan.parameters
        except (FedspendError, OSError):
            return False  # the check of the plan says so

    def check_silos(self) -> Verdict:
        """Not a failure: what a server cannot check."""
        listed = ", ".join(
            f"{silo} {certificate[:12]}"
            for silo, certificate in self.plan.parameters[SILOS].items()
        )
        return None, (
            "records' budgets and accounts are at their silos, which verified their own plans and "
            f"handed in certificates ({listed}); only they can open them"
        )

    def check_certificate(self) -> Verdict:
        found = self.stored.certificate()
        if found is None:
            return False, f"there is no {CERTIFICATE}"
        if found.get("plan_hash") != self.plan.hash:
            return False, f"{CERTIFICATE} belongs to another plan"
        if found.get("ok") is not True:
            return False, f"{CERTIFICATE} does not say that the plan was verified"
        if (found.get("randomness") == "seeded") is not self.facts.simulation:
            return False, f"{CERTIFICATE} and {RUN} do not agree on whether this is a simulation"
        return True, "says that this plan was verified before training"

    def check_settings(self) -> Verdict:
        settings, plan = self.facts.settings, self.plan
        for name, planned in (
            ("method.name", plan.parameters.get("method")),
            ("privacy.delta", plan.delta),
            ("privacy.clip", plan.clip),
        ):
            stated = settings.get(name)
            if stated is not None and planned is not None and stated != planned:
                return False, f"{RUN} has {name} {stated!r}, but the plan has {planned!r}"
        rounds = settings.get("train.rounds", plan.rounds)
        lost = sum(bool(line.get("skipped")) for line in self.metrics)
        planned = plan.rounds + plan.parameters.get("dropped_rounds", 0)
        if not rounds <= planned <= rounds + lost:  # lost rounds may have been made up for
            return False, f"{RUN} has {rounds} rounds, but the plan has {planned}"
        noise = settings.get("privacy.noise")
        if isinstance(noise, str) and noise.startswith("discrete") != plan.discrete:
            return False, f"{RUN} has noise {noise!r}, but the plan is for another kind"
        groups = self.facts.groups
        if groups is not None and len(groups) != len(plan.clients):
            return False, f"{RUN} lists the groups of {len(groups)} clients, not of {plan.who}"
        return True, "method, rounds, delta, clip and noise are those of the plan"

    def check_ledger(self) -> Verdict:
        self._book = book = self.open_book()
        words = ""
        if book.simulation is not self.facts.simulation:
            return False, f"the ledger and {RUN} do not agree on whether this is a simulation"
        if not SEEN_HEAD.of(self.folder).exists():
            return False, f"there is no {SEEN_HEAD}, so a ledger that was cut off would not show"
        for path in (SEEN_HEAD.of(self.folder), book.head_file):
            if path is not None and path.exists():
                head = Head.load(path)
                if path.read_bytes() != head.body:
                    return False, f"{path} is not as it was written"
                book.check_head(head, str(path))
            elif path is not None:
                words = f"; there is no {path.name} beside it"
        found = f"{book.state.entries:,} entries in an unbroken chain"
        return True, f"{found} with the head that the run has seen; {book.check_storage()}{words}"

    def check_account(self) -> Verdict:
        run, asked = self.run, self.plan.proposal()
        if run.about["plan"] != self.plan.hash:
            return False, "the ledger has charged another plan to this run"
        names = self.book.accounts(run.unit).names
        if [normal(names[n]) for n in run.accounts] != [normal(name) for name in asked.names]:
            return False, f"the ledger has charged other {run.unit}s than those of the plan"
        steps = steps_table(asked.steps, asked.rate)
        tables = ((run.rate, asked.rate), (run.noise, asked.noise), (run.steps, steps))
        same = all(
            np.array_equal(mine[:, run.of_class], planned[:, asked.of_class])
            for mine, planned in tables
        ) and all(
            getattr(run, name) == getattr(asked, name)
            for name in ("unit", "client_rate", "discrete", "grid_steps")
        )
        # a replanned run claims by Rényi curves; its account is read as it was when it was admitted
        replanned = "planned_anew_after" in self.plan.parameters
        read_by = (run.accountant, "rdp") if replanned else (run.accountant,)
        if not (same and asked.accountant in read_by):
            return False, "the ledger has charged other rates, noise or steps than the plan's"
        by_rule = self.state is not None and self.state.state.watched.stopped
        # whoever ended it, the account is charged alike, whatever the rule says
        by_hand = run.stopped and not run.stopped_itself
        by_hand |= run.by_order and run.closed not in (FINISHED, STOPPED_EARLY)
        early = by_rule and self.done < run.planned
        if run.closed is not None and not by_hand and run.stopped is not early:
            return False, f"the ledger and {CHECKPOINT} do not agree on whether it stopped early"
        count = f"{run.charged(held=False)} of {counted(run.planned, 'round')}"
        over = "is open" if run.closed is None else f"is closed ({run.closed})"
        return True, f"run {run.id} {over}: {count} charged to the ids of the plan, as planned"

    def check_balances(self) -> Verdict:
        return recheck_balances(self.book.state, self.run.unit)

    def check_first_files(self) -> Verdict:
        if not self.run.files and not self.facts.sealed:
            return None, f"not tied to the ledger by digests: {OLD}"
        if set(self.run.files) != {file.name for file in FIRST}:
            return False, "the ledger does not have the digests that the run was admitted with"
        for name, digest in self.run.files.items():
            if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != digest:
                return False, f"{name} is not the file that the run was admitted with"
        return True, f"{', '.join(self.run.files)} are byte for byte what the ledger has admitted"

    def check_release(self) -> Verdict:
        wrong = wrong_release(self.run, self.release)
        if wrong is not None:
            return False, wrong
        if self.release is None:
            return True, "no round has released anything yet"
        if not self.sealed(RELEASE.name).as_written:
            return False, f"{RELEASE} is not as it was written"
        others = sum(state == "committed" for state in self.run.rounds.values()) - 1
        earlier = f"the {counted(others, 'earlier round')}"
        known = "" if others < 1 else f"; for {earlier} the ledger keeps only digests"
        if self.release.round not in self.run.releases:
            return None, f"the release of round {self.release.round + 1} is not in the ledger yet"
        return True, f"the release of round {self.release.round + 1} is the ledger's last{known}"

    def check_checkpoint(self) -> Verdict:
        wrong = wrong_checkpoint(self.run, self.state)
        if wrong is not None:
            return False, wrong
        if self.state is None:
            return True, "no round is done yet"
        if not self.sealed(CHECKPOINT.name).as_written:
            return False, f"{CHECKPOINT} is not as it was written"
        if self.state.digest is None:
            return None, f"after round {self.done}; its digest is not known: {OLD}"
        if self.state.digest not in (
            self.run.states.get(self.done),
            self.run.ending.get(CHECKPOINT.name),
        ):
            return None, (
                f"after round {self.done}, undamaged; the ledger will have its digest when the "
                "next round begins"
            )
        return True, f"after round {self.done}, with the digest that is in the ledger"

    def check_metrics(self) -> Verdict:
        # a round that was told and then killed before its checkpoint is told again
        lines = [line for line in self.metrics if line["round"] <= self.done]
        if [line["round"] for line in lines] != list(range(1, self.done + 1)):
            return False, f"{METRICS} does not tell the {self.done} rounds of {CHECKPOINT}"
        lost = [t + 1 for t, state in self.run.rounds.items() if state == "lost"]
        skipped = [line["round"] for line in lines if line.get("skipped")]
        if skipped != [t for t in lost if t <= self.done]:
            return False, f"{METRICS} and the ledger do not agree on which rounds were lost"
        if lines:
            wrong = self.run_data.disagreement()
            if wrong is not None:
                return False, wrong
        if self.state is None or self.state.metrics is None:
            return None, f"{len(lines)} rounds that fit plan and ledger; no digest: {OLD}"
        size = len(b"".join(METRICS.of(self.folder).read_bytes().splitlines(True)[: self.done]))
        body = METRICS.of(self.folder).read_bytes()
        if hashlib.sha256(body[:size]).hexdigest() != self.state.metrics:
            return False, f"{METRICS} is not what {CHECKPOINT} was written with"
        if len(body) > size:
            if self.run.closed is not None or self.run.next_round == self.done:
                return False, f"{METRICS} tells more than the {self.done} rounds that were played"
            return None, f"as {CHECKPOINT} says, and a round that is under way"
        return True, f"{counted(len(lines), 'round')}, byte for byte as {CHECKPOINT} says"

    @cached_property
    def run_data(self) -> RunData:
        """The run as the report sees it."""
        return load_run(self.folder, self.folder.resolve().name)

    def check_model(self) -> Verdict:
        run, ended = self.run, self.done == self.plan.rounds or self.run.stopped_itself
        if not MODEL.of(self.folder).exists():
            if run.closed == "finished" or run.stopped_itself:
                return False, f"the run is finished, but there is no {MODEL}"
            return True, "none yet: the run is not finished"
        found = self.sealed(MODEL.name)
        if self.state is None:
            return False, f"there is a {MODEL}, but no round is done"
        if found.about.get("plan") != self.plan.hash:
            return False, f"{MODEL} names another plan"
        if found.about.get("randomness") != ("seeded" if self.facts.simulation else "os"):
            return False, f"{MODEL} names another kind of randomness"
        if not _same_numbers(found, self.state.state.handed_out):
            return False, f"{MODEL} is not the model of {CHECKPOINT}"
        if not found.as_written:
            return False, f"{MODEL} is not as it was written"
        if found.digest is None:
            return None, f"has the numbers of {CHECKPOINT}; no digest: {OLD}"
        if not ended:
            return True, f"is that of {CHECKPOINT}: the run was stopped there"
        recorded = run.ending.get(MODEL.name)
        if recorded is None and run.closed is None:
            return None, f"has the numbers of {CHECKPOINT}; its digest is not in the ledger yet"
        if recorded is not None and found.digest != recorded:
            return False, f"{MODEL} is not the one that the ledger has seen"
        if recorded is None:
            return None, f"has the numbers of {CHECKPOINT}; its digest is not in the ledger"
        return True, f"is that of {CHECKPOINT}, with the digest that is in the ledger"

    def check_report(self) -> Verdict:
        path = REPORT.of(self.folder)
        if not path.exists():
            return None, "there is none; write one with: fedspend report"
        body = path.read_bytes()
        page = body.decode("utf-8", "replace")
        title = re.search(r"<title>(.*?) · fedspend</title>", page)
        day = re.search(r" · report of (\d{4}-\d{2}-\d{2})</p>", page)
        again: bytes | None = None
        if title is not None and day is not None:
            name, when = html.unescape(title[1]), begun(self.folder)
            dates = Dates(day[1], {} if when is None else {name: when})
            again = render([replace(self.run_data, name=name)], dates).encode("utf-8", "replace")
        if again != body:
            understated = self._understated(page)
            if understated is not None:
                return False, understated
            return False, (
                f"{REPORT} does not show this run as it is now: it was changed, or written at "
                f"another time or by another version; write it again with: fedspend report "
                f"{self.folder}"
            )
        return True, "shows these files, byte for byte; only its date is not tied to anything"

    def _understated(self, page: str) -> str | None:
        """A sentence about the report of a run that its own rule stopped, if it counts only the
        rounds that were played, as version 0.2.0 did.
        """
        run = self.run_data
        if run.plan is None or not run.stopped:
            return None
        (_, played), (_, charged) = spent(run, run.done), spent(run)

        def plain(words: str) -> str:
            return words.replace(NO_BREAK, " ")

        text = html.unescape(page)
        if played not in text or charged in text:
            return None
        return (
            f"{REPORT} says, as version 0.2.0 did, what the {counted(run.done, 'round')} that were "
            f"played cost ({plain(played)}), but the account was charged all {run.rounds} "
            f"({plain(charged)}); write it anew with: "
            f"{shlex.join(['fedspend', 'report', str(self.folder)])}"
        )

    def check_place(self) -> Verdict:
        if self.run.closed is not None:
            return True, "the run is over, so it cannot go on anywhere"
        if self.run.place is None:
            return None, f"not known: {OLD}"
        if self.run.place != place_of(self.folder):
            return None, (
                f"the run is in {self.run.place.folder}; this is a copy, or it was moved, and it "
                "cannot go on here without --moved"
            )
        return True, "the run can go on here, and nowhere else"

    def check_others(self) -> Verdict:
        """Not a failure: what else is there, and who may read it."""
        own = {file.name for file in FILES} | {f"{LEDGER}-wal", f"{LEDGER}-shm"}
        others = sorted(path.name for path in self.folder.iterdir() if path.name not in own)
        open_to_all = sorted(
            path.name
            for path in self.folder.iterdir()
            if path.name in own and path.stat().st_mode & 0o077
        )
        notes = []
        if others:
            logs = f" ({LOGS} repeats {METRICS})" if LOGS in others else ""
            notes.append(f"not checked: {', '.join(others)}{logs}")
        if open_to_all:
            notes.append(f"others may read {', '.join(open_to_all)}: chmod 600 them")
        if self.inside and not LEDGER_HEAD.of(self.folder).exists():
            notes.append(f"there is no {LEDGER_HEAD}")
        return (None, "; ".join(notes)) if notes else (True, "none, and only the owner may read")

    @property
    def inside(self) -> bool:
        named = self.facts.ledger
        return self.named is None and named is not None and is_inside(named.location)


def _same_numbers(model: Sealed, expected: Float32Array) -> bool:
    """Whether the tensors of a model file are those of a checkpoint. Version 0.1 did not record
    their order, so there only the numbers are compared.
    """
    frozen = model.about.get("frozen")  # no part of the checkpoint: nothing trains them
    left_out = set(map(str, frozen)) if isinstance(frozen, list) else set()
    stated, names = model.about.get("parameters"), sorted(set(model.arrays) - left_out)
    known = isinstance(stated, list) and sorted(map(str, stated)) == names
    parts = [model.arrays[name] for name in (map(str, stated or ()) if known else names)]
    flat = np.concatenate([part.ravel() for part in parts]) if parts else np.zeros(0, np.float32)
    if flat.dtype != np.float32 or flat.shape != expected.shape:
        return False
    if not known:
        flat, expected = np.sort(flat), np.sort(expected)
    return flat.tobytes() == np.ascontiguousarray(expected).tobytes()
