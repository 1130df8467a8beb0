"""What the studies have not run, and about how much CPU time it would take.

A study that is finished has no line. Hours are those of the runs that are there, of the same
network or, for Gu et al. (2023), of trainings with as many steps; where there are none, there is a
dash. Searches are counted in full, so that it may well be less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import cheng
import gu
import networks
import records_cnn
from experiment import Arm, Finished, chosen_with, outcome
from tables import markdown

Line = dict[str, Any]


@dataclass(frozen=True)
class Left:
    """Runs of a study that are not there; `seconds` is None if nothing tells how long they take."""

    study: str
    what: str
    runs: int
    seconds: float | None

    def row(self) -> list[str]:
        hours = "-" if self.seconds is None else f"{self.seconds / 3600:.1f}"
        return [f"`{self.study}`", self.what, f"{self.runs:,}", hours]


def table(results: Finished) -> str:
    found = [*of_arms(results), *of_gu(results)]
    if not found:
        return "Every study is finished."
    return markdown(
        ["study", "left out", "runs, at most", "CPU hours, about"], [one.row() for one in found]
    )


# --- arms -----------------------------------------------------------------------------------------


def of_arms(results: Finished) -> Iterable[Left]:
    """The studies that train networks, each by the first words of its labels."""
    lines = list(results.found.values())
    for words, arms in ((2, networks.arms()), (1, cheng.cnn_arms()), (1, records_cnn.arms())):
        for name, some in groupby(arms, key=lambda arm: arm.label[:words]):
            of_name = list(some)
            missing = [arm for arm in of_name if outcome(results, arm) is None]
            runs = sum(runs_of(results, arm) for arm in missing)
            if runs:
                study = missing[0].study
                mine = [line for line in lines if line["study"] == study]
                alike = [line for line in mine if line["label"][0] == name[0]]
                said = f"{', '.join(name)}: {len(missing)} of {len(of_name)} arms"
                yield Left(study, said, runs, _times(runs, alike))


def runs_of(results: Finished, arm: Arm) -> int:
    """How many runs an arm lacks, at most: those of its search, unless that is another's, and its
    seeds. Runs of a search that was begun are not counted.
    """
    own_search = arm.tries > 1 and chosen_with(arm) is arm
    begun = [
        line
        for line in results.found.values()
        if (line["study"], tuple(line["label"])) == (arm.study, arm.label)
    ]
    return max((arm.tries if own_search else 0) + len(arm.seeds) - len(begun), 1)


def _times(runs: float, alike: Sequence[Line]) -> float | None:
    """What so many runs like these take."""
    return runs * sum(line["seconds"] for line in alike) / len(alike) if alike else None


# --- Gu et al. ------------------------------------------------------------------------------------


def of_gu(results: Finished) -> Iterable[Left]:
    """Trainings; what one takes goes by its steps: clients in a round, and steps of each."""
    for study in gu.STUDIES:
        lines = [line for line in results.found.values() if line["study"] == study]
        a_step = _mean_of_a_step(lines or _of_lenet(results))
        missing = [one for one in gu.trainings(study) if one.key not in results.found]
        for said, some in groupby(missing, key=_told if study == gu.LENET else _all):
            left = list(some)
            seconds = None if a_step is None else a_step * sum(map(_steps, left))
            yield Left(study, said, len(left), seconds)


def _all(_: gu.Training) -> str:
    return "the other noise levels and rates"


def _told(one: gu.Training) -> str:
    share = one.settings["data.share"]
    rows = "" if share == 1 else f", {100 * share:g}% of the rows"
    return (
        f"K = {one.settings['data.clients']}, rate {one.rate:g}, "
        f"E = {one.settings['train.local_steps']}{rows}"
    )


def _steps(one: gu.Training) -> float:
    return float(one.settings["data.clients"] * one.rate * one.settings["train.local_steps"])


def _mean_of_a_step(lines: Sequence[Line]) -> float | None:
    """By the labels of its lines: model, clients, steps, share, rate, level."""
    steps = [
        float(line["label"][1]) * float(line["label"][2]) * float(line["label"][4])
        for line in lines
    ]
    return sum(line["seconds"] for line in lines) / sum(steps) if lines else None


def _of_lenet(results: Finished) -> list[Line]:
    return [line for line in results.found.values() if line["study"] == gu.LENET]
