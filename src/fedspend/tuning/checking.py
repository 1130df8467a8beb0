"""The independent check of a tune's plan, by the second accountant.

Guarantee: if there is no failure, every trial's plan passes the verifier of plans, no client's
curve is below what the second accountant finds for the costliest setting, and what it reads from
the curve is within the budget. What was spent before is for the ledger to add. Nothing here uses
the planner's price.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import FedspendError
from fedspend.planning.plan import Plan
from fedspend.tuning.plan import TunePlan
from fedspend.verification.findings import Verification
from fedspend.verification.second_accountant import best_of, divergence_of_schedule, epsilon_at
from fedspend.verification.verify import accounted_part, verify_clients

# a curve must not be below the second accountant's by more than its own accuracy
TOLERANCE = 1e-7


@dataclass
class TuneVerdict:
    """What is wrong with a tune, and the verdict on the plan of every trial, by its hash."""

    failures: list[str] = field(default_factory=list)
    plans: dict[str, Verification] = field(default_factory=dict)


def verify_tune(plan: TunePlan) -> TuneVerdict:
    """Check that the plan keeps its promise. Never raises."""
    found = TuneVerdict()
    try:
        with np.errstate(all="ignore"):
            _check_trials(plan, found)
            found.failures += _curves(plan)
    except Exception as error:  # numbers that nobody plans with may fail in any way
        why = " ".join(str(error).split()) if isinstance(error, FedspendError) else ""
        found.failures.append(
            f"the accountants cannot read the tune: {why or type(error).__name__}"
        )
    return found


def _check_trials(plan: TunePlan, found: TuneVerdict) -> None:
    """Check the plans of single trials; settings may share one."""
    for setting, one in zip(plan.settings, plan.plans, strict=True):
        if one.hash in found.plans:
            continue
        verdict = found.plans[one.hash] = verify_clients(one)
        if one.accountant != "rdp":
            found.failures.append(
                f"{', '.join(setting)}: read by {one.accountant!r}, not by Rényi curves"
            )
        if not verdict.ok:
            found.failures.append(f"{', '.join(setting)}: {verdict.failures[0]}")


def _curves(plan: TunePlan) -> list[str]:
    """Failures of the price: each class of clients against every setting."""
    orders, found = np.array(plan.orders), []
    tables = {_key(one): one for one in plan.plans}
    for number, curve in enumerate(plan.curves):
        members = np.flatnonzero(plan.of_class == number)
        if not members.size:
            continue
        known: dict[tuple[bytes, int], FloatArray] = {}
        for key, one in tables.items():
            for schedule in np.unique(one.schedules.of_client[members]).tolist():
                known[key, schedule] = _divergence(one, schedule, orders)
        base = np.max(list(known.values()), axis=0)
        mine = best_of(base, orders, plan.trials.content())
        who = f"client {plan.clients[int(members[0])]!r}"
        if len(members) > 1:
            who += f" (and {len(members) - 1} alike)"
        if not bool(np.all(curve >= mine * (1 - TOLERANCE))):
            at = int(np.argmax(mine / curve))
            found.append(
                f"{who}: the tune's curve says {curve[at]:.9g} at order {orders[at]:g}, but the "
                f"best of its trials costs {mine[at]:.9g}"
            )
        if not bool(np.all(np.diff(curve) >= 0)):
            found.append(f"{who}: the tune's curve falls, so it is none")
        read = float(np.min(epsilon_at(curve, orders, plan.delta)))
        least = float(plan.budget[members].min())
        if not read <= least:
            found.append(f"{who}: the tune costs {read:.9g}, over the budget of {least:.9g}")
    return found


def _key(plan: Plan) -> bytes:
    table = plan.schedules
    tables = (table.noise_multiplier, table.sampling_rate, table.of_client)
    return repr(plan.grid_steps).encode() + b"".join(one.tobytes() for one in tables)


def _divergence(plan: Plan, schedule: int, orders: FloatArray) -> FloatArray:
    """What one trial costs under a schedule, by quadrature."""
    table = plan.schedules
    noise = table.noise_multiplier[:, schedule] * accounted_part(plan.grid_steps)
    rounds, counts = np.unique(
        np.stack([table.sampling_rate[:, schedule], noise]), axis=1, return_counts=True
    )
    return divergence_of_schedule(rounds[0], rounds[1], counts, orders)
