"""How fast non-dominated points are found among a million, beside comparing all pairs of a few
thousand.

    .venv/bin/python benchmarks/speed/sorting.py --points 1000000

One core, medians of CPU seconds. Every kind of set is first checked against all pairs on a small
sample. `all optimal` is the worst case of two objectives for most algorithms and for this one like
any other; with three objectives the cost is points times front.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.design import non_dominated

Points = npt.NDArray[np.float64]


def all_pairs(points: Points) -> npt.NDArray[np.bool_]:
    """Every point against all others, one row of comparisons at a time."""
    dominated = [
        bool(((points <= point).all(axis=1) & (points < point).any(axis=1)).any())
        for point in points
    ]
    return ~np.array(dominated)


def sets(count: int) -> dict[str, Points]:
    generator = np.random.default_rng(0)
    one = generator.normal(size=count)
    return {
        "random, 2 objectives": generator.normal(size=(count, 2)),
        "all optimal, 2 objectives": np.column_stack([one, -one]),
        "many ties, 2 objectives": generator.integers(0, 1000, size=(count, 2)).astype(np.float64),
        "random, 3 objectives": generator.normal(size=(count, 3)),
    }


def cpu_seconds(points: Points, repeats: int, find: Any = non_dominated) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        find(points)
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument(
        "--pairs", type=int, default=4000, help="points that are compared pair by pair"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    result: dict[str, Any] = {}
    for (name, points), small in zip(
        sets(args.points).items(), sets(args.pairs).values(), strict=True
    ):
        assert (non_dominated(small) == all_pairs(small)).all(), name
        result[name] = {
            "points": args.points,
            "optimal": int(non_dominated(points).sum()),
            "cpu_seconds": round(cpu_seconds(points, args.repeats), 3),
            "all_pairs_points": args.pairs,
            "all_pairs_cpu_seconds": round(cpu_seconds(small, 1, all_pairs), 3),
            "same_points_cpu_seconds": round(cpu_seconds(small, 20), 6),
        }
    if args.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        print(
            f"{name:28} {row['points']:,} points, {row['optimal']:,} optimal: {row['cpu_seconds']} "
            "s of CPU"
        )
        few = f"{row['all_pairs_points']:,} points: {row['same_points_cpu_seconds']} s"
        print(f"{'':28} {few}, all pairs {row['all_pairs_cpu_seconds']} s")


if __name__ == "__main__":
    main()
