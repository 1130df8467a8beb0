"""How fast a plan is made and checked: 100,000 clients with distinct budgets, beside Opacus for one
client; and plans by privacy loss distributions, for three groups and for 200 distinct schedules.

    make bench                                   # or:
    .venv/bin/python benchmarks/speed/plan.py --clients 100000 --rounds 100 --verify

Everything runs on one core in one process, one after the other. Prints CPU seconds, peak memory,
how far any client is over or under its budget (recomputed at the plan's orders), and the ratio to
Opacus' `get_noise_multiplier`.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedspend
from fedspend.accounting import epsilon, rdp
from fedspend.accounting.curves import curve

PLD_TERMS: dict[str, Any] = {"delta": 1e-5, "rounds": 25, "rate": 0.9, "accountant": "pld"}
THREE_GROUPS, EVERY_ROUND_ANOTHER = [10.0, 20.0, 30.0], {"policy": "geometric", "weights": 1.08}
PLD_CASES: dict[str, tuple[Any, dict[str, Any]]] = {  # budgets, and terms of their own
    "uniform_three_groups": (THREE_GROUPS, {"policy": "uniform"}),
    "spend-as-you-go_three_groups": (THREE_GROUPS, {"saving_rate": 0.5}),
    "25_noises_three_groups": (THREE_GROUPS, EVERY_ROUND_ANOTHER),
    "25_noises_200_schedules": (np.linspace(1, 30, 200), EVERY_ROUND_ANOTHER),
}


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def with_workers() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def final_epsilon(plan: fedspend.Plan, schedule: int) -> float:
    """Composed afresh, at all of the plan's orders."""
    noise, rate = (
        plan.schedules.noise_multiplier[:, schedule],
        plan.schedules.sampling_rate[:, schedule],
    )
    pairs, times = np.unique(np.stack([rate, noise]), axis=1, return_counts=True)
    return float(
        epsilon(
            (times[:, None] * rdp(pairs[0], pairs[1], plan.orders)).sum(axis=0),
            plan.orders,
            plan.delta,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.9)
    parser.add_argument("--saving-rate", type=float, help="spend-as-you-go; else the default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pld", action="store_true", help="only the plans by PLD")
    parser.add_argument("--verify", action="store_true", help="also verify the large plan")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.pld:
        show(by_pld(), args.json)
        return

    budgets = np.random.default_rng(0).uniform(0.5, 30, args.clients)
    delta = 0.1 / args.clients
    terms = {
        "delta": delta,
        "rounds": args.rounds,
        "rate": args.rate,
        **({} if args.saving_rate is None else {"saving_rate": args.saving_rate}),
    }

    times = []
    for _ in range(args.repeats):
        curve.cache_clear()  # every repeat starts cold
        seconds, plan = cpu_seconds(lambda: fedspend.plan(budgets, **terms))
        times.append(seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    sample = np.random.default_rng(1).choice(
        plan.schedules.count, min(60, plan.schedules.count), replace=False
    )
    reached = np.array([final_epsilon(plan, k) for k in sample])
    strictest = np.array([plan.budget[plan.schedules.of_client == k].min() for k in sample])
    claim_ratio = plan.epsilon / plan.budget

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_seconds, _ = cpu_seconds(lambda: plan.save(path))
        load_seconds, loaded = cpu_seconds(lambda: fedspend.Plan.load(path))
        assert loaded.hash == plan.hash
        size = path.stat().st_size / 2**20

    result: dict[str, Any] = {
        "clients": args.clients,
        "rounds": args.rounds,
        "rate": args.rate,
        "policy": plan.parameters["policy"],
        "accountant": plan.accountant,
        "plan_cpu_seconds": round(statistics.median(times), 2),
        "peak_gib": round(peak, 2),
        "schedules": plan.schedules.count,
        "most_over_budget": float((reached / strictest).max() - 1),
        "most_under_budget": float(1 - claim_ratio.min()),
        "save_cpu_seconds": round(save_seconds, 2),
        "load_cpu_seconds": round(load_seconds, 2),
        "file_mib": round(size, 1),
    }
    assert (plan.epsilon <= plan.budget).all()
    assert result["most_over_budget"] <= 0
    try:
        from opacus.accountants.utils import get_noise_multiplier
    except ImportError:
        result["opacus"] = "not installed: run `make bench`"
    else:
        one = [
            cpu_seconds(
                lambda e=e: get_noise_multiplier(
                    target_epsilon=float(e),
                    target_delta=delta,
                    sample_rate=args.rate,
                    steps=args.rounds,
                    accountant="rdp",
                )
            )[0]
            for e in budgets[:5]
        ]
        result["opacus_seconds_per_client"] = round(statistics.median(one), 4)
        result["times_faster_per_client"] = round(
            statistics.median(one) / (statistics.median(times) / args.clients)
        )
    if args.verify:
        start, before = time.perf_counter(), with_workers()
        verdict = fedspend.verify(plan)
        assert verdict.ok
        result["verify_wall_seconds"] = round(time.perf_counter() - start, 1)
        result["verify_cpu_seconds_with_workers"] = round(with_workers() - before, 1)
        result["verify_pld_readings"] = verdict.pld_schedules
    show(result, args.json)


def by_pld() -> dict[str, Any]:
    """CPU seconds of plans by privacy loss distributions."""
    fedspend.plan([5.0], **PLD_TERMS)  # what is imported at first use is not counted
    result: dict[str, Any] = {}
    for name, (budgets, options) in PLD_CASES.items():
        work = partial(fedspend.plan, budgets, **PLD_TERMS, **options)
        seconds, plan = cpu_seconds(work)
        assert (plan.epsilon <= plan.budget).all()
        result[f"{name}_cpu_seconds"] = round(seconds, 2)
    return result


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key.replace('_', ' '):40} {value}")


if __name__ == "__main__":
    main()
