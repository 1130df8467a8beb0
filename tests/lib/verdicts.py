"""Verdicts of the independent verifier on plans that begin a run or are approved, each found once.

Guarantee: `fedspend.verify` always computes, and so does every test that breaks it; remembered is
only what the two callers below were told, of a plan of the same kind and hash, and only if it
passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# module: its name for the verifier, and the plan among what it is given
SEAMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "fedspend.runs.certifying": ("verify", lambda plan: plan),
    "fedspend.approval.node_ledger": ("verified", lambda slice: slice.plan),
}


def remember_verdicts() -> None:
    """From now on, in the modules that are loaded; once more changes nothing."""
    for name, (verifier, plan_of) in SEAMS.items():
        module = sys.modules.get(name)
        if module is not None and not hasattr(module, "verdicts_remembered"):
            setattr(module, verifier, remembering(getattr(module, verifier), plan_of))
            module.verdicts_remembered = True  # type: ignore[attr-defined]


def remembering(
    find: Callable[..., Any], plan_of: Callable[[Any], Any] = lambda plan: plan
) -> Callable[..., Any]:
    """A verifier that looks at no plan twice that passed."""
    known: dict[Any, Any] = {}

    def found(given: Any, **options: Any) -> Any:
        plan = plan_of(given)
        key = (type(plan), plan.hash, *sorted(options.items()))
        if key not in known:
            verdict = find(given, **options)
            if not verdict.ok:
                return verdict
            known[key] = verdict
        return known[key]

    return found


class Passed:
    """A verdict that passed at once."""

    ok, failures = True, ()

    def __init__(self, plan: Any) -> None:
        self.plan, self.epsilon = plan, plan.epsilon

    def to_dict(self) -> dict[str, Any]:
        return {"ok": True, "plan_hash": self.plan.hash}
