"""How fast the account is: 100,000 clients or a million records charged in one round, the balance
of all of them, and how the file grows.

    .venv/bin/python benchmarks/speed/ledger.py                                  # SQLite in a
    temporary folder .venv/bin/python benchmarks/speed/ledger.py --ledger postgresql://...        #
    an empty database

One core, one process. `charge` is what a round costs: reserve and commit, each on disk before it
returns. `admit` happens once a run: everyone's past, everything held and the whole plan are
composed and checked against every budget. Wall-clock and CPU seconds, medians of --repeats; memory
is the peak of the process beyond what it had with the plan in memory.
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
from pathlib import Path
from typing import Any

import numpy as np

import fedspend
from fedspend.ledger import Ledger
from fedspend.planning.protocol import AnyPlan
from fedspend.records.planning import plan_records
from fedspend.records.terms import Terms


def seconds(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall-clock seconds, CPU seconds, result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def median(times: list[tuple[float, float, Any]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _, _ in times), statistics.median(
        cpu for _, cpu, _ in times
    )


def charge_round(ledger: Ledger, round: int) -> None:
    ledger.reserve("run", round)
    ledger.commit("run", round, "x" * 43)


def measure(place: str, plan: AnyPlan, repeats: int, rounds: int) -> dict[str, Any]:
    before, unit = peak_memory(), plan.unit
    with Ledger.create(place, simulation=True) as ledger:
        admit = seconds(lambda: ledger.admit("run", plan.proposal(), simulation=True))
        stored = [len(row[1]) + len(row[2]) + 8 for row in ledger._storage.rows_after(0)]
        charge = median([seconds(lambda t=t: charge_round(ledger, t)) for t in range(rounds)])
        rows = ledger._storage.rows_after(len(stored))
    opened, balanced = [], []
    for _ in range(repeats):
        opened.append(seconds(lambda: Ledger.open(place)))
        with opened[-1][2] as reader:
            balanced.append(seconds(lambda: reader.balances(unit)))
    balances = balanced[-1][2]
    assert np.all(balances.total <= balances.budget)
    table = plan.schedules
    distinct = int(
        np.unique(
            np.stack([table.sampling_rate.ravel(), table.noise_multiplier.ravel()]), axis=1
        ).shape[1]
    )
    return {
        f"{unit}s": plan.budget.size,
        "classes": table.count,
        "distinct mechanisms": distinct,
        "admit: seconds, CPU seconds": admit[:2],
        "charge a round": charge,
        "open and check the chain": median(opened),
        "balance of all": median(balanced),
        "memory MiB": peak_memory() - before,
        "run entry, bytes per distinct mechanism": stored[-1] / distinct,
        "bytes per entry of a round": max(len(row[1]) + len(row[2]) + 8 for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ledger", help="an empty PostgreSQL database, for the first case only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    budgets = np.random.default_rng(0).uniform(0.5, 30, args.clients)
    terms = {"delta": 0.1 / args.clients, "rounds": args.rounds, "rate": args.rate}
    cases = {
        "distinct budgets, uniform": (budgets, {}),
        "three groups, uniform": (
            np.repeat([10.0, 20.0, 30.0], args.clients)[::3][: args.clients],
            {},
        ),
        "distinct budgets, saving then spending": (budgets, {"saving_rate": args.rate / 2}),
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (epsilons, options)) in enumerate(cases.items()):
            if args.ledger and number:
                break
            plan = fedspend.plan(epsilons, **terms, **options)
            place = args.ledger or str(Path(folder) / f"{number}.db")
            results[name] = measure(place, plan, args.repeats, rounds=5)
        if not args.ledger:
            budgets = np.random.default_rng(1).uniform(0.1, 10, args.records)
            terms = Terms(
                delta=1e-6, rounds=15, local_steps=50, client_rate=0.8, noise_multiplier=5.0
            )
            plan = plan_records(
                budgets,
                np.arange(args.records) % 10,
                terms,
                clients=[f"hospital-{n}" for n in range(10)],
            )
            results["distinct budgets of records"] = measure(
                str(Path(folder) / "records.db"), plan, args.repeats, rounds=5
            )
    if args.json:
        print(json.dumps(results, indent=1))
        return
    for name, figures in results.items():
        print(name)
        for what, value in figures.items():
            shown = [
                f"{part:>12,.4g}" if isinstance(part, float) else f"{part:>12,}"
                for part in np.atleast_1d(value).tolist()
            ]
            print(f"  {what:<42}{''.join(shown)}")


if __name__ == "__main__":
    main()
