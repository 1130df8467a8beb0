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

import kiani
import networks
import over_time
import shaping
from experiment import Arm, Results, finish

HERE = Path(__file__).parent
STUDIES: dict[str, Callable[[], list[Arm]]] = {
    over_time.STUDY: over_time.arms,
    kiani.STUDY: kiani.arms,
    shaping.STUDY: shaping.arms,
    networks.STUDY: networks.arms,
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
        results = Results.read(args.results / f"{study}.jsonl", also=others)
        for arm in STUDIES[study]():
            finish(results, arm)


if __name__ == "__main__":
    main()
