"""Works through the experiments in order, and goes on where it stopped.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py [--only time] [--cores 4]

Every finished run is one line in FOLDER/STUDY.jsonl, so that it may be killed at any time; the same
command goes on. With several cores there is a process of one thread on each; they share the arms
among them, and the results file. The process to end is in FOLDER/run_all.pid; the others end with
it. The same command, started once more, helps.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import as_printed
import by_influence
import cheng
import client_losses
import gu
import influence
import kiani
import networks
import norms
import over_time
import pooled
import record_budgets as records
import records_cnn
import shaping
import targets
import writers_cnn
from claims import claimed
from experiment import Arm, Results, run_arms

HERE = Path(__file__).parent


def of_arms(arms: Callable[[], list[Arm]]) -> Callable[[Results], None]:
    return lambda results: run_arms(results, arms())


def by_one(study: str, run: Callable[[Results], None]) -> Callable[[Results], None]:
    """A study that is not divided: left to the process that is at it."""

    def alone(results: Results) -> None:
        with claimed(results.path.parent, study) as ours:
            if ours:
                run(results)

    return alone


STUDIES: dict[str, Callable[[Results], None]] = {
    influence.STUDY: by_one(
        influence.STUDY, influence.run
    ),  # a few minutes, for what has been tuned so far
    over_time.STUDY: of_arms(over_time.arms),
    by_influence.STUDY: by_one(by_influence.STUDY, by_influence.run),
    kiani.STUDY: of_arms(kiani.arms),
    as_printed.STUDY: of_arms(as_printed.arms),
    client_losses.STUDY: by_one(client_losses.STUDY, client_losses.run),
    shaping.STUDY: of_arms(shaping.arms),
    records.STUDY: records.run,
    pooled.STUDY: pooled.run,
    cheng.STUDY: of_arms(cheng.arms),
    cheng.CNN_STUDY: of_arms(cheng.cnn_arms),
    norms.STUDY: by_one(norms.STUDY, norms.run),
    writers_cnn.STUDY: of_arms(writers_cnn.arms),
    networks.STUDY: of_arms(networks.arms),
    records_cnn.STUDY: of_arms(records_cnn.arms),
    targets.STUDY: by_one(targets.STUDY, targets.run),
    **gu.STUDIES,
}


def work(studies: Sequence[str], folder: Path) -> None:
    """What is left of these studies, or of it, if other processes are at work in the folder."""
    for study in studies:
        others = sorted(folder.glob("*.jsonl"))
        STUDIES[study](Results.read(folder / f"{study}.jsonl", also=others))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=STUDIES, action="append", help="default: everything")
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="folder of the results files"
    )
    parser.add_argument(
        "--cores", type=_cores, default=1, metavar="N", help="processes, one a core; default: 1"
    )
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / "run_all.pid").write_text(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the helpers, too
    studies = args.only or list(STUDIES)
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=work, args=(studies, args.results)) for _ in range(args.cores - 1)
    ]
    try:
        for helper in helpers:
            helper.start()
        work(studies, args.results)
        for helper in helpers:
            helper.join()
    except BaseException:
        for helper in multiprocessing.active_children():
            helper.terminate()
        raise
    if any(helper.exitcode for helper in helpers):
        sys.exit("a process ended with an error, see above; the same command goes on")


def _cores(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores, as 1 or 4")
    return int(text)


if __name__ == "__main__":
    main()
