"""Random schedules planned by our privacy loss accountant, read again by dp-accounting.

    .venv/bin/python benchmarks/accounting/pld.py --schedules 1000

Every schedule has a few different rounds, with rates from 0.01 to 1 and noises up to a factor of 8
apart, and is scaled to a random budget between 0.2 and 60 at a random delta. dp-accounting then
reads it on a grid of 1e-3 (1e-4 where a round's loss deviates by less than 0.01). None may be over
its budget. For every tenth, the noise is compared with the least that dp-accounting allows at 1e-4.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.accountants import ACCOUNTANTS
from fedspend.accounting.calibration import uniform
from fedspend.accounting.fitting import scaled_to_budget
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.pld import Rounds
from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import FloatArray


def random_schedule(seed: int, one: int) -> tuple[FloatArray, FloatArray, float, float]:
    """Relative noise and rate by round, budget and delta."""
    rng = np.random.default_rng([seed, one])
    kinds = int(rng.integers(2, 7))
    times = rng.integers(1, 30, kinds)
    noise = np.exp(rng.uniform(0, math.log(8), kinds))
    rate = np.where(rng.random(kinds) < 0.1, 1.0, 10 ** rng.uniform(-2, 0, kinds))
    budget = float(np.exp(rng.uniform(math.log(0.2), math.log(60))))
    return np.repeat(noise, times), np.repeat(rate, times), budget, float(10 ** rng.uniform(-7, -3))


def by_renyi(noise: FloatArray, rate: FloatArray, budget: float, delta: float) -> FloatArray:
    """The schedule of this shape that spends the budget by Rényi curves."""
    enough = uniform(np.array([budget]), delta, float(rate.max()), noise.size, ORDERS).noise[0, 0]
    scaled = scaled_to_budget(
        noise[:, None] * (enough / noise.min()),
        rate[:, None],
        np.ones((noise.size, 1), dtype=bool),
        np.array([budget]),
        delta,
        Mechanisms.none(1),
        ORDERS,
    )
    column: FloatArray = scaled.noise[:, 0]
    return column


def by_dp_accounting(noise: FloatArray, rate: FloatArray, delta: float, interval: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    rounds, total = Rounds.of(noise, rate), None
    for q, s, k in zip(rounds.rate, rounds.noise, rounds.count, strict=True):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            float(s), sampling_prob=float(q), value_discretization_interval=interval
        ).self_compose(int(k))
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


def excess_noise(
    noise: FloatArray, rate: FloatArray, budget: float, delta: float, interval: float
) -> float:
    """How much more noise this is than dp-accounting needs: two secant steps on logarithms."""
    points = [0.0, -1e-3]
    found = [by_dp_accounting(noise * math.exp(x), rate, delta, interval) for x in points]
    slope = math.log(found[1] / found[0]) / (points[1] - points[0])
    return -math.log(budget / found[0]) / slope


def one_row(seed: int, one: int, compare: bool) -> dict[str, Any]:
    """One schedule, planned by us and read by dp-accounting."""
    shape, rate, budget, delta = random_schedule(seed, one)
    start = by_renyi(shape, rate, budget, delta)
    begun = time.process_time()
    noise, _ = ACCOUNTANTS["pld"].fit_one(start, rate, budget, delta)
    seconds = time.process_time() - begun
    interval = min(Rounds.of(noise, rate).interval(), 1e-3)
    return {
        "seed": seed,
        "schedule": one,
        "reading_over_budget": by_dp_accounting(noise, rate, delta, interval) / budget,
        "noise_below_renyi": 1 - noise[0] / start[0],
        "planning_cpu_seconds": seconds,
        "excess": excess_noise(noise, rate, budget, delta, 1e-4) if compare else None,
    }


def read_rows(path: Path | None, seed: int, wanted: range) -> dict[int, dict[str, Any]]:
    """The rows of this seed that an earlier call wrote; it may have been interrupted."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        row["schedule"]: row for row in rows if row["seed"] == seed and row["schedule"] in wanted
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["reading_over_budget"] for row in rows]
    excess = [row["excess"] for row in rows if row["excess"] is not None]
    return {
        "schedules": len(rows),
        "over": sum(not ratio <= 1 for ratio in ratios),
        "largest_reading_over_budget": max(ratios),
        "least_reading_over_budget": min(ratios),
        "noise_compared_at_1e-4": len(excess),
        "most_noise_above_dp_accounting_at_1e-4": max(excess, default=None),
        "least_noise_above_dp_accounting_at_1e-4": min(excess, default=None),
        "noise_below_renyi_median": float(np.median([row["noise_below_renyi"] for row in rows])),
        "planning_cpu_seconds_each": float(np.mean([row["planning_cpu_seconds"] for row in rows])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="begin with this schedule")
    parser.add_argument("--schedules", type=int, default=1000, help="end before this one")
    parser.add_argument("--compared", type=int, default=10, help="compare noise for every n-th")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="keep each schedule here; goes on where it ended")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    wanted = range(args.first, args.schedules)
    rows = read_rows(args.rows, args.seed, wanted)
    for one in wanted:
        if one in rows:
            continue
        rows[one] = one_row(args.seed, one, one % args.compared == 0)
        if args.rows is not None:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[one]) + "\n")
        if len(rows) % 50 == 0:
            largest = max(row["reading_over_budget"] for row in rows.values())
            print(f"{len(rows)} schedules, at most {largest}", file=sys.stderr)
    result = summary([rows[one] for one in sorted(rows)])
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key.replace('_', ' '):44} {value}")
    raise SystemExit(0 if result["over"] == 0 else 1)


if __name__ == "__main__":
    main()
