"""Does k from a small public sample serve another number of clients and other rates? Holds it
against a search that trained them.

    python examples/design/two_step.py designs/sample designs/rates

For every setting of the second search with a T on the curve `k sigma^2 T = q K`, k being the first
one's: its loss, and the least loss that the second search found at the same rate with the same
proxy or less.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def read(folder: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((Path(folder) / "pareto.json").read_text())
    return document


def main(sample: str, target: str) -> None:
    k, search = read(sample)["k"]["k"], read(target)
    candidates, gaps = search["candidates"], []
    print(f"k = {k:.4g} from {sample}, {search['clients']} clients in {target}")
    for one in candidates:
        rounds = round(one["rate"] * search["clients"] / (k * one["noise_level"] ** 2))
        if not 1 <= rounds < search["max_rounds"]:
            continue
        same_rate = [other for other in candidates if other["rate"] == one["rate"]]
        # NaN where a training diverged
        loss = np.array([other["loss"] for other in same_rate], dtype=np.float64)
        proxy = np.array([other["proxy"] for other in same_rate])
        best = np.nanmin(loss[proxy <= one["proxy"][rounds - 1] * (1 + 1e-9)])
        gaps.append(one["loss"][rounds - 1] - best)
        setting = f"q = {one['rate']:g}, sigma = {one['noise_level']:g}, T = {rounds}"
        print(
            f"{setting:36} loss {one['loss'][rounds - 1]:.4f}, best {best:.4f}, above it "
            f"{gaps[-1]:.4f}"
        )
    print(
        f"{len(gaps)} settings: {np.mean(gaps):.4f} above the best on average, {max(gaps):.4f} at "
        "most"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
