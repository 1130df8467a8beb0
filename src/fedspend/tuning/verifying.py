"""`fedspend verify RUN_DIR` for the winner of a private tune.

Guarantee: if it is ok, the second accountant finds the price in `tune.json` and it is within every
budget; the ledger has charged exactly that, before the first trial, to exactly those clients; the
winner is one of the tune's settings, under the plan that the tune has for it; and every file is the
one that the ledger has seen. It cannot tell how many trials there were: that is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from fedspend.basics.words import counted
from fedspend.budgets.identity import normal
from fedspend.configuration.config import override_value
from fedspend.runs.verifying import Checker, Verdict
from fedspend.stored.files import CERTIFICATE, METRICS, MODEL, PLAN, RUN, TUNE
from fedspend.tuning.checking import verify_tune
from fedspend.tuning.plan import TunePlan, load_tune_plan, summary
from fedspend.tuning.winner import ENDING, TUNED, digest

UNCLOSED = "the tune was killed before the ledger had their digests"


class TunedChecker(Checker):
    """Checks the directory of a private tune."""

    def checks(self) -> list[tuple[str, Callable[[], Verdict]]]:
        return [
            ("tune", self.check_tune),
            ("plan", self.check_plan),
            ("accountants", self.check_accountants),
            ("certificate", self.check_certificate),
            ("settings", self.check_settings),
            ("ledger", self.check_ledger),
            ("account", self.check_account),
            ("balances", self.check_balances),
            ("files", self.check_files),
            ("metrics", self.check_metrics),
            ("model", self.check_model),
            ("report", self.check_report),
            ("other files", self.check_others),
        ]

    @cached_property
    def tune(self) -> TunePlan:
        return load_tune_plan(TUNE.of(self.folder))

    @property
    def told(self) -> dict[str, Any]:
        """What run.json says of the tune."""
        found = self.facts.content.get(TUNED)
        return found if isinstance(found, dict) else {}

    def check_run(self) -> Verdict:
        if not self.stored.begun:
            return False, ("a private tune without a winner: it was interrupted; it stays charged")
        return super().check_run()

    def check_tune(self) -> Verdict:
        tune, told = self.tune, self.told
        if {key: told.get(key) for key in summary(tune)} != summary(tune):
            return False, f"{RUN} does not say of the tune what {TUNE} says"
        chosen = tuple(map(str, told.get("setting") or ()))
        if (chosen, self.plan.hash) not in zip(
            tune.settings, (one.hash for one in tune.plans), strict=True
        ):
            return False, f"{PLAN} is not the plan that {TUNE} has for the winner's setting"
        expected = f"{tune.trials.mean:.4g} trials expected"
        return True, f"{', '.join(chosen)}: best of {expected}, among {len(tune.settings)} settings"

    def check_accountants(self) -> Verdict:
        found = verify_tune(self.tune)
        self.verification = found.plans.get(self.plan.hash)
        if found.failures:
            return False, f"the tune fails: {found.failures[0]}"
        return True, "the price of the tune was found independently and is within the budgets"

    def check_certificate(self) -> Verdict:
        found = self.stored.certificate()
        if found is not None and found.get(TUNED) != self.told:
            return False, f"{CERTIFICATE} does not say of the tune what {RUN} says"
        return super().check_certificate()

    def check_settings(self) -> Verdict:
        for text in self.told.get("setting") or ():
            name, _, value = str(text).partition("=")
            stated = self.facts.settings.get(name)
            if stated != override_value(value.strip(), str(text)):
                return False, f"{RUN} has {name} {stated!r}, but the winner's setting is {text}"
        return super().check_settings()

    def check_account(self) -> Verdict:
        run, asked = self.run, self.tune.proposal()
        if run.curves is None or run.about["plan"] != asked.plan:
            return False, "the ledger has charged something else to this tune"
        names = self.book.accounts(run.unit).names
        if [normal(names[n]) for n in run.accounts] != [normal(name) for name in asked.names]:
            return False, "the ledger has charged other clients than those of the tune"
        same = np.array_equal(run.orders, self.tune.orders) and np.array_equal(
            run.curves[run.of_class], self.tune.curves[self.tune.of_class]
        )
        if not same:
            return False, "the ledger has charged other curves than those of the tune"
        over = "is open" if run.closed is None else f"is closed ({run.closed})"
        return True, f"run {run.id} {over}: charged as a whole to {self.tune.who}, as planned"

    def check_files(self) -> Verdict:
        if self.run.files != {TUNE.name: digest(TUNE.of(self.folder))}:
            return False, f"{TUNE} is not the file that the tune was admitted with"
        if self.run.closed is None:
            return None, f"{TUNE} is what the ledger has admitted; of the others, {UNCLOSED}"
        for file in ENDING:
            if self.run.ending.get(file.name) != digest(file.of(self.folder)):
                return False, f"{file} is not the one that the ledger has seen"
        return True, f"{TUNE} and {counted(len(ENDING), 'file')} are what the ledger has seen"

    def check_metrics(self) -> Verdict:
        rounds = list(range(1, self.plan.rounds + 1))
        if [line["round"] for line in self.metrics] != rounds:
            return False, f"{METRICS} does not tell the {len(rounds)} rounds of the plan"
        wrong = self.run_data.disagreement()
        if wrong is not None:
            return False, wrong
        return True, f"{counted(len(rounds), 'round')} of the winner, which fit its plan"

    def check_model(self) -> Verdict:
        if not MODEL.of(self.folder).exists():
            return False, f"there is no {MODEL}"
        found = self.sealed(MODEL.name)
        if found.about.get("plan") != self.plan.hash:
            return False, f"{MODEL} names another plan"
        if found.about.get("randomness") != ("seeded" if self.facts.simulation else "os"):
            return False, f"{MODEL} names another kind of randomness"
        if not found.as_written:
            return False, f"{MODEL} is not as it was written"
        if self.run.closed is None:
            return None, f"undamaged; {UNCLOSED}"
        if found.digest is None or found.digest != self.run.ending.get(MODEL.name):
            return False, f"{MODEL} is not the one that the ledger has seen"
        return True, "is the winner's, with the digest that is in the ledger"
