"""How long the planner page waits for an answer: CPU milliseconds, median of several changes.

    .venv/bin/python benchmarks/speed/planner.py

The quick answer is what a person sees at once; the exact one replaces it.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import json
import statistics
import time

from fedspend.pages.planner.answers import answer
from fedspend.pages.planner.settings import Settings

CHANGES = {
    "rounds": [{"rounds": rounds} for rounds in (24, 26, 27, 28, 29, 30, 31)],
    "rate": [{"rate": rate} for rate in (0.5, 0.6, 0.7, 0.8, 0.85, 0.95, 1.0)],
    "budgets": [
        {"groups": ((epsilon, 34), (20.0, 43), (30.0, 23))} for epsilon in (5, 6, 7, 8, 9, 11, 12)
    ],
}


def milliseconds(settings: Settings, exact: bool) -> float:
    began = time.process_time()
    json.dumps(answer(settings, exact=exact))
    return 1000 * (time.process_time() - began)


def main() -> None:
    for exact in (False, True):
        answer(Settings(), exact=exact)
    print(f"{'policy':<12}{'change':<10}{'quick ms':>10}{'exact ms':>10}")
    for policy in ("uniform", "optimal"):
        for name, changes in CHANGES.items():
            found = [Settings(policy=policy, **change) for change in changes]
            quick, exact = (
                statistics.median(milliseconds(one, exact) for one in found)
                for exact in (False, True)
            )
            print(f"{policy:<12}{name:<10}{quick:>10.0f}{exact:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
