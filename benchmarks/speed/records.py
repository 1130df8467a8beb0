"""How fast a million records get their rates, and whether the rates keep their promise.

    .venv/bin/python benchmarks/speed/records.py

One core, one process; CPU seconds. `table` is made once for a set of terms; `assign` is every
further set of budgets. An independent accountant reads the epsilon of a random 1,000 of the records
at `records.ORDERS`. Per-record binary search and the paper's curve fit are timed on some of the
same budgets and scaled to 6,000 records, the number for which the paper reports 64 minutes (search)
and 8 seconds (curve fit).
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedspend import records
from fedspend.records.table import ladder
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

TERMS: dict[str, Any] = {
    "delta": 1e-3,
    "rounds": 20,
    "local_steps": 5,
    "client_rate": 0.5,
    "noise_multiplier": 1.0,
}
PAPER_RECORDS = 6000


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def independent(rate: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Epsilon by the second accountant, which shares no code with the first."""
    a, p = np.asarray(records.ORDERS), TERMS["client_rate"]
    inner = TERMS["local_steps"] * renyi_divergence(rate[:, None], TERMS["noise_multiplier"], a)
    outer = np.logaddexp(math.log1p(-p), math.log(p) + (a - 1) * inner) / (a - 1)
    return np.asarray(epsilon_at(TERMS["rounds"] * outer, a, TERMS["delta"]).min(axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--searched", type=int, default=60, help="records that the binary search is timed on"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    generator = np.random.default_rng(0)
    budgets = generator.uniform(0.1, 10, args.records)
    table, rungs = seconds(lambda: ladder(records.Terms(**TERMS)))
    assign, rates = seconds(lambda: records.rates(budgets, **TERMS))
    some = generator.choice(budgets.size, min(1000, budgets.size), replace=False)
    spent, allowed, inner = (
        independent(rates[some]),
        budgets[some],
        (rates[some] > 0) & (rates[some] < 1),
    )
    search, _ = seconds(lambda: records.rates(budgets[: args.searched], **TERMS, method="search"))
    fit, _ = seconds(lambda: records.rates(budgets[:PAPER_RECORDS], **TERMS, method="scf"))
    exact, _ = seconds(lambda: records.rates(budgets[:PAPER_RECORDS], **TERMS))
    result = {
        "records": args.records,
        "table_seconds": table,
        "rungs": rungs.rate.size,
        "assign_seconds": assign,
        "distinct_rates": int(np.unique(rates).size),
        "checked": int(some.size),
        "over": int((spent > allowed).sum()),
        "largest_unspent_share": float((1 - spent[inner] / allowed[inner]).max()),
        f"search_seconds_for_{PAPER_RECORDS}": search / args.searched * PAPER_RECORDS,
        f"curve_fit_seconds_for_{PAPER_RECORDS}": fit,
        f"exact_seconds_for_{PAPER_RECORDS}_after_table": exact,
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(
            f"{name.replace('_', ' '):<42} {value:>12,.4g}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<42} {value:>12,}"
        )


if __name__ == "__main__":
    main()
