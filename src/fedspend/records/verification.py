"""The independent check of a record-level plan, by the second accountant: nothing here comes from
`accounting`.

Guarantee: if it is ok, every record's claim is reproduced to 1e-6 at its order and is within its
budget. If every client takes part in every round, dp-accounting's pessimistic PLD independently
confirms some of the budgets; with client sampling there is no PLD for the two stages together, and
the guarantee rests on the reproduced Rényi bound alone.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.errors import InvalidInput
from fedspend.records.planning import RecordPlan
from fedspend.verification.findings import Findings, Verification, never_raises, warnings_about
from fedspend.verification.observers import Observer, spread
from fedspend.verification.second_accountant import epsilon_at, pld_epsilon, renyi_divergence

NO_COLLUDERS = (
    "is only for client-level plans; in a record-level plan each client adds its own noise, and "
    "others know none of it"
)
TOLERANCE = 1e-6
SHOWN, BY_PLD = 20, 4  # classes shown by observer, and classes checked by PLD


def verify_records(plan: RecordPlan, *, colluders: int = 0) -> Verification:
    """Check a plan against all that it promises. Does not raise if the plan breaks its promise."""
    if colluders:
        raise InvalidInput(f"colluders {NO_COLLUDERS}")
    return _verified(plan)


@never_raises
def _verified(plan: RecordPlan) -> Verification:
    table = plan.schedules
    used = np.flatnonzero((table.sampling_rate.max(axis=0) > 0) & (table.clients_of > 0))
    strictest = np.full(table.count, np.inf)
    np.minimum.at(strictest, table.of_client, plan.budget)
    findings = Findings(used.size)
    check_claims(findings, plan)
    reproduced = check_reproduced(findings, plan, used, strictest)
    pld = check_pld(findings, plan, used, strictest)
    seen = np.isfinite(pld)
    epsilon = np.zeros(table.count)
    epsilon[used] = reproduced
    epsilon[seen] = pld[seen]
    return Verification(
        ok=findings.ok,
        plan_hash=plan.hash,
        epsilon=epsilon[table.of_client],
        by_pld=seen[table.of_client],
        worst_margin=float((1 - pld[seen] / strictest[seen]).min()) if seen.any() else math.nan,
        schedules=used.size,
        pld_schedules=int(seen.sum()),
        failures=tuple(findings.failures),
        failure_count=findings.failure_count,
        checks=tuple(findings.checks),
        observers=observers_of_records(plan, used, strictest),
        warnings=warnings_about(plan.delta, "record", len(plan.records)),
    )


def check_claims(findings: Findings, plan: RecordPlan) -> None:
    """No record claims more than its budget, and none claims anything that is never sampled."""
    table, claim = plan.schedules, plan.epsilon
    findings.record(
        "claim within budget",
        claim <= plan.budget,
        "none",
        float((claim / plan.budget).max()),
        "largest claim / budget",
        lambda n: (
            f"record {plan.records[n]!r} claims epsilon {claim[n]:.9g}, its budget is "
            f"{plan.budget[n]:g}"
        ),
    )
    unused = np.flatnonzero(table.sampling_rate.max(axis=0) == 0)
    findings.record(
        "left out means nothing spent",
        table.epsilon[unused] == 0,
        "none",
        float(table.epsilon[unused].max(initial=0.0)),
        "largest claim at rate 0",
        lambda n: (
            f"class {int(unused[n])} is never sampled and claims epsilon "
            f"{table.epsilon[unused[n]]:.9g}"
        ),
    )


def check_reproduced(
    findings: Findings, plan: RecordPlan, used: IntArray, strictest: FloatArray
) -> FloatArray:
    """Every claim is what the second accountant finds at its order; returns what it found."""
    claim = plan.schedules.epsilon[used]
    reproduced = reproduce(plan, used)
    off = np.abs(reproduced - claim) / np.maximum(claim, 1e-9)
    findings.record(
        "claim reproduced",
        (off <= TOLERANCE) & (reproduced <= strictest[used] * (1 + TOLERANCE)),
        "second Rényi accountant",
        float(off.max(initial=0.0)),
        "largest relative difference",
        lambda n: (
            f"class {int(used[n])} claims epsilon {claim[n]:.9g}, reproduced {reproduced[n]:.9g}"
        ),
    )
    return reproduced


def check_pld(
    findings: Findings, plan: RecordPlan, used: IntArray, strictest: FloatArray
) -> FloatArray:
    """Some classes by dp-accounting; NaN for the others, and for all if clients are sampled."""
    pld = np.full(plan.schedules.count, np.nan)
    if plan.terms.client_rate != 1:
        return pld
    chosen = spread(used, strictest, BY_PLD)
    pld[chosen] = [by_pld(plan, int(k)) for k in chosen]
    findings.record(
        "PLD within budget",
        pld[chosen] <= strictest[chosen],
        "dp-accounting PLD",
        float((pld[chosen] / strictest[chosen]).max()),
        "largest PLD epsilon / budget",
        lambda n: (
            f"class {int(chosen[n])}: PLD epsilon {pld[chosen[n]]:.9g} is over the budget "
            f"{strictest[chosen[n]]:g}"
        ),
    )
    return pld


def reproduce(plan: RecordPlan, classes: IntArray) -> FloatArray:
    """Epsilon of each class at the order of its claim."""
    orders = plan.schedules.order[classes]
    return epsilon_at(
        divergence(plan, classes, orders[:, None], picked=False)[:, 0], orders, plan.delta
    )


def divergence(
    plan: RecordPlan, classes: IntArray, orders: FloatArray, *, picked: bool
) -> FloatArray:
    """Sum over rounds, (classes, orders), of `log(1 - p + p exp((a-1) steps R)) / (a-1)`, or of
    `steps R` if the server picks the clients.
    """
    p = plan.terms.client_rate
    total = np.zeros(np.broadcast_shapes(orders.shape, (classes.size, 1)))
    for row, k in enumerate(classes):
        a = np.broadcast_to(orders, total.shape)[row]
        for (q, steps), count in rounds_of(plan, int(k)):
            exponent = (a - 1) * steps * renyi_divergence(q, plan.terms.noise_multiplier, a)
            grown = (
                exponent
                if picked or p == 1
                else np.logaddexp(math.log1p(-p), math.log(p) + exponent)
            )
            total[row] += count * grown / (a - 1)
    return total


def rounds_of(plan: RecordPlan, k: int) -> list[tuple[tuple[float, float], int]]:
    """The distinct rounds that a class takes part in: (rate, steps), and how many there are of
    each.
    """
    steps = (
        plan.schedules.sampling_rate.shape[0] * [plan.terms.local_steps]
        if plan.short is None
        else plan.short[:, k].tolist()
    )
    found = Counter(zip(plan.schedules.sampling_rate[:, k].tolist(), steps, strict=True))
    return sorted((one, count) for one, count in found.items() if one[0] > 0)


def by_pld(plan: RecordPlan, k: int) -> float:
    rounds = rounds_of(plan, k)
    # Squared norms add up to those of one Gaussian mechanism (Koskela, Tobaben, Honkela 2023).
    if plan.by_norm:
        paid = sum(count * steps for (_, steps), count in rounds)
        return pld_epsilon([1.0], [plan.terms.noise_multiplier / math.sqrt(paid)], [1], plan.delta)
    steps = [int(count * steps) for (_, steps), count in rounds]
    return pld_epsilon(
        [q for (q, _), _ in rounds], [plan.terms.noise_multiplier] * len(rounds), steps, plan.delta
    )


def observers_of_records(
    plan: RecordPlan, used: IntArray, budget: FloatArray
) -> tuple[Observer, ...]:
    """Epsilon against the plan's observer and against a server that picks who takes part; by budget
    if there are few.
    """
    shown = spread(used, budget, SHOWN)
    if not shown.size:
        return ()
    # If every client is in every round, there is nothing to pick.
    picks = plan.schedules.epsilon[shown]
    if plan.terms.client_rate < 1:
        orders = np.asarray(plan.orders)
        picks = epsilon_at(
            divergence(plan, shown, orders[None, :], picked=True), orders, plan.delta
        ).min(axis=1)
    rows = (
        (
            "plan",
            "other clients and the public, who see every model",
            plan.schedules.epsilon[shown],
        ),
        (
            "server sees who takes part",
            "sees every client's own update; does not choose who takes part",
            plan.schedules.epsilon[shown],
        ),
        (
            "server picks who takes part",
            "can let a client take part in every round: client sampling hides nothing",
            picks,
        ),
    )
    named = used.size <= SHOWN
    return tuple(
        Observer(
            name,
            assumption,
            tuple(zip(budget[shown].tolist(), values.tolist(), strict=True)) if named else (),
            float(values.min()),
            float(np.median(values)),
            float(values.max()),
        )
        for name, assumption, values in rows
    )
