"""What a verification checked and found: so far (`Findings`) and in the end (`Verification`).

Guarantee: every condition that does not hold is counted and fails its check; the first `LISTED` are
also written out. A comparison with NaN must reach `record` as false, so write comparisons that NaN
fails. A check that cannot be computed is a check that fails: `never_raises` sees to that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.tables import Table
from fedspend.basics.words import counted
from fedspend.errors import FedspendError
from fedspend.verification.observers import Observer

if TYPE_CHECKING:
    from fedspend.planning.protocol import AnyPlan

P = TypeVar("P", bound="AnyPlan")
Options = ParamSpec("Options")
Verifier = Callable[Concatenate[P, Options], "Verification"]

LISTED = 20  # failures written out; the rest are counted


@dataclass(frozen=True)
class Check:
    """One condition: whether it holds, for how many schedules, by which accountant.

    `worst` is the number nearest to failing, and `meaning` says what it is.
    """

    name: str
    passed: bool
    schedules: int
    accountant: str
    worst: float
    meaning: str


@dataclass
class Findings:
    """The checks made and the failures found so far."""

    schedules: int
    checks: list[Check] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failure_count: int = 0

    @property
    def ok(self) -> bool:
        return all(check.passed for check in self.checks) and self.failure_count == 0

    def record(
        self,
        name: str,
        good: BoolArray,
        accountant: str,
        worst: float,
        meaning: str,
        sentence: Callable[..., str],
    ) -> None:
        """Record a check of an array of conditions; `sentence` describes one that fails."""
        bad = np.argwhere(~good)
        # conditions are per schedule or per client
        looked_at = min(int(good.shape[-1]), self.schedules)
        self.checks.append(Check(name, len(bad) == 0, looked_at, accountant, worst, meaning))
        self.fail(len(bad), (sentence(*map(int, place)) for place in bad))

    def fail(self, count: int, sentences: Iterable[str]) -> None:
        """Count failures, and write out the first ones."""
        self.failures += islice(sentences, max(0, LISTED - len(self.failures)))
        self.failure_count += count


@dataclass(frozen=True, eq=False, repr=False)
class Verification:
    """What was checked, by which accountant, and what failed.

    Attributes:
        ok: whether the plan keeps all that it promises.
        epsilon: what an independent accountant finds for each client or record.
        by_pld: for which of them that is by privacy loss distributions.
        checks: each condition: name, whether it passed, by which accountant, and the worst number.
        failures: the first sentences about what failed; `failure_count` says how many there are.
        observers: the epsilon against each kind of observer, those who see more included.
        worst_margin: the smallest part of a budget that PLD leaves; NaN if none was computed.
        warnings: what holds as claimed, and yet protects less than it seems to.
    """

    ok: bool
    plan_hash: str
    # (clients,) by PLD where `by_pld`, else the reproduced Rényi bound
    epsilon: FloatArray = field(repr=False)
    by_pld: BoolArray = field(repr=False)
    worst_margin: float  # smallest 1 - PLD epsilon / budget; NaN if no PLD was computed
    schedules: int
    pld_schedules: int
    failures: tuple[str, ...]
    failure_count: int
    checks: tuple[Check, ...]
    observers: tuple[Observer, ...]
    # what holds as claimed, and yet protects less than it seems to
    warnings: tuple[str, ...] = ()

    @property
    def sampled(self) -> bool:
        """Whether PLD was computed for only some of the schedules."""
        return self.pld_schedules < self.schedules

    def __repr__(self) -> str:
        """
        >>> from fedspend import plan, verify
        >>> verify(plan([2.0, 8.0], delta=1e-2, rounds=3, rate=1.0, accountant="rdp"))
        <Verification: ok, 7 of 7 checks of 2 schedules passed, PLD leaves 13.0% of a budget>
        """
        passed = sum(check.passed for check in self.checks)
        said = f"{passed} of {counted(len(self.checks), 'check')} of "
        said += f"{counted(self.schedules, 'schedule')} passed"
        if not math.isnan(self.worst_margin):
            said += f", PLD leaves {self.worst_margin:.1%} of a budget"
        if self.failures:
            said += f"; {self.failures[0]}"
        return f"<Verification: {'ok' if self.ok else 'FAILED'}, {said}>"

    def _repr_html_(self) -> str:
        rows = [
            [
                check.name,
                "passed" if check.passed else "FAILED",
                check.accountant,
                check.schedules,
                f"{check.worst:.3g} ({check.meaning})",
            ]
            for check in self.checks
        ]
        header = ("check", "", "by", "schedules", "nearest to failing")
        notes = " ".join([*self.failures, *self.warnings])
        return Table(header, rows, notes).html(repr(self).strip("<>"))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; numbers that are not finite become None."""
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "sampled": self.sampled
        }
        whole["checks"] = [asdict(one) for one in self.checks]
        whole["observers"] = [asdict(one) for one in self.observers]
        plain: dict[str, Any] = _jsonable(whole)
        return plain


def warnings_about(delta: float, unit: str, units: int) -> tuple[str, ...]:
    """What the plan's claims do not say by themselves.

    >>> warnings_about(0.1, "client", 10)
    ('delta 0.1 is at or above 1/clients = 0.1: it would permit exposing one client completely',)
    >>> warnings_about(0.01, "client", 10)
    ()
    """
    if units < 1 or delta < 1 / units:
        return ()
    return (
        f"delta {delta:g} is at or above 1/{unit}s = {1 / units:g}: it would permit exposing one "
        f"{unit} completely",
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def never_raises(verifier: Verifier[P, Options]) -> Verifier[P, Options]:
    """The verifier, for any plan at all: numbers that overflow become infinite or NaN, which every
    comparison fails, and whatever an accountant cannot compute is a plan that fails.
    """

    @wraps(verifier)
    def guarded(plan: P, /, *args: Options.args, **options: Options.kwargs) -> Verification:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                return verifier(plan, *args, **options)
        except Exception as error:  # an accountant may fail in any way on numbers nobody plans with
            return unreadable(plan, error)

    return guarded


def unreadable(plan: AnyPlan, error: Exception) -> Verification:
    """The verdict on a plan that the accountants cannot read."""
    known = isinstance(error, FedspendError)
    why = " ".join(str(error).split()) if known else type(error).__name__
    try:
        plan_hash = plan.hash
    except (FedspendError, ValueError):  # JSON cannot hold NaN
        plan_hash = ""
    units = len(plan.names)
    return Verification(
        ok=False,
        plan_hash=plan_hash,
        epsilon=np.full(units, np.inf),
        by_pld=np.zeros(units, dtype=bool),
        worst_margin=math.nan,
        schedules=plan.schedules.count,
        pld_schedules=0,
        failures=(f"the accountants cannot read the plan: {why}",),
        failure_count=1,
        checks=(Check("readable", False, plan.schedules.count, "none", 1.0, "unreadable plans"),),
        observers=(),
    )
