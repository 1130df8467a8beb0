"""Works through the experiments in order, one run after the other, and goes on where it stopped.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --results FOLDER [--only time]

One process, one thread. Every finished run is one line in FOLDER/STUDY.jsonl, so that it may be
killed at any time; the same command goes on. The process id is in FOLDER/run_all.pid.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import as_printed
import by_influence
import cheng
import client_losses
import gu
import influence
import kiani
import networks
import over_time
import pooled
import records_cnn
import shaping
import targets
from experiment import Arm, Results, run_arms

HERE = Path(__file__).parent


def of_arms(arms: Callable[[], list[Arm]]) -> Callable[[Results], None]:
    return lambda results: run_arms(results, arms())


STUDIES: dict[str, Callable[[Results], None]] = {
    influence.STUDY: influence.run,  # a few minutes, for what has been tuned so far
    over_time.STUDY: of_arms(over_time.arms),
    by_influence.STUDY: by_influence.run,
    kiani.STUDY: of_arms(kiani.arms),
    as_printed.STUDY: of_arms(as_printed.arms),
    client_losses.STUDY: client_losses.run,
    shaping.STUDY: of_arms(shaping.arms),
    pooled.STUDY: pooled.run,
    cheng.STUDY: of_arms(cheng.arms),
    networks.STUDY: of_arms(networks.arms),
    records_cnn.STUDY: of_arms(records_cnn.arms),
    targets.STUDY: targets.run,
    **gu.STUDIES,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=STUDIES, action="append", help="default: everything")
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="folder of the results files"
    )
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / "run_all.pid").write_text(f"{os.getpid()}\n")
    for study in args.only or STUDIES:
        others = sorted(args.results.glob("*.jsonl"))
        STUDIES[study](Results.read(args.results / f"{study}.jsonl", also=others))


if __name__ == "__main__":
    main()
