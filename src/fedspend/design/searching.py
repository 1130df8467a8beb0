"""Runs or resumes a search: trains every candidate with every seed, in parallel over cores; then
sorts, estimates k and writes `pareto.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.basics.workers import workers as started_workers
from fedspend.configuration.config import Config, any_config
from fedspend.design.analysis import Findings, analyse
from fedspend.design.candidates import Candidate, Search, read_search
from fedspend.design.trainings import Line, Trainings, train_one
from fedspend.errors import FedspendError, InvalidInput


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search found, and each candidate's seconds per round on this machine (median over
    seeds, one core).
    """

    findings: Findings
    seconds: tuple[float, ...]


def run_search(
    config: str | Path | Mapping[str, Any],
    output: str | Path,
    *,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Outcome:
    """Train what is missing in the folder `output`, then analyse everything in the config.

    Candidates and seeds may be added later: trainings under the same settings are reused.

    Arguments:
        config: a TOML file or a dict of sections, with a [design] section, on public data.
        output: the folder where finished trainings are kept.
        overrides: `["design.seeds=10", ...]`.
        workers: trainings at the same time. Default: one for each core.
        progress: called with (done, total) after each training.

    Returns:
        An `Outcome`: `.findings` (the front, k and how near theory comes), and `.seconds` for a
        round of each candidate on this machine.
    """
    if workers is not None and not workers >= 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    search = read_search(any_config(config, overrides))
    assert search.plans  # every setting has a plan before anything is written
    trainings = Trainings(Path(output), search.settings(), Line)
    jobs = [(candidate, seed) for seed in search.seeds for candidate in search.candidates]
    missing = [
        (candidate, seed) for candidate, seed in jobs if trainings.get(candidate.key, seed) is None
    ]
    done = len(jobs) - len(missing)
    if progress is not None:
        progress(done, len(jobs))
    for finished in _trained(search, missing, workers):
        trainings.add(finished)
        done += 1
        if progress is not None:
            progress(done, len(jobs))
    lines = [
        [line for seed in search.seeds if (line := trainings.get(one.key, seed))]
        for one in search.candidates
    ]
    findings = analyse(search, lines)
    body = json.dumps(findings.document(), indent=1, allow_nan=False) + "\n"
    write_whole(Path(output) / "pareto.json", body.encode())
    seconds = tuple(sorted(line["seconds"] for line in each)[len(each) // 2] for each in lines)
    return Outcome(findings, seconds)


def _trained(
    search: Search, jobs: list[tuple[Candidate, int]], workers: int | None
) -> Iterator[Line]:
    """Yields trainings in the order in which they finish."""
    from fedspend.engines.local import cores

    count = min(workers or cores(), len(jobs))
    if count <= 1:
        for candidate, seed in jobs:
            yield _line(search.config(candidate, seed), candidate, seed)
        return
    try:
        with started_workers(count) as submit:
            waiting = [
                submit(_line, search.config(candidate, seed), candidate, seed)
                for candidate, seed in jobs
            ]
            for future in as_completed(waiting):
                yield future.result()
    except BrokenExecutor:
        raise FedspendError(
            "a training process ended unexpectedly, perhaps for lack of memory; run the same "
            "command again to resume, with fewer --workers"
        ) from None


def _line(config: Config, candidate: Candidate, seed: int) -> Line:
    loss, accuracy, seconds = train_one(config)
    return Line(
        candidate=candidate.fields, seed=seed, loss=loss, accuracy=accuracy, seconds=seconds
    )
