"""Tables II and III of Gu et al. (2023), what guidance costs beside a search: counted on the grids
of its Figures 2 and 6 for logistic regression. No training.

Guidance is a search on a small public sample, the pre-run (the paper's t0), and then one training,
or the trainings of one rate. All of it is for one seed: both sides have as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gu import ROUNDS, Grid, panels
from judging import Verdict, word_for
from tables import markdown


@dataclass(frozen=True)
class Cost:
    """`passes` over all rows of the data are what an epoch would cost if it were a pass over the
    rows of a client. In the paper's Algorithm 1 it is one batch, whatever the client has.
    """

    rounds: float
    updates: float  # of clients: q K in a round
    passes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, one) + getattr(other, one) for one in COUNTS))

    def over(self, other: Cost) -> dict[str, float]:
        """How many times the other's it is, by count."""
        return {name: getattr(self, one) / getattr(other, one) for one, name in COUNTS.items()}


COUNTS = {"rounds": "rounds", "updates": "client updates", "passes": "passes over the data"}


def search(grid: Grid) -> Cost:
    """Every rate with every level, to the last round: one training serves every T."""
    trainings = [rate for rate in grid.rates for _ in grid.levels_at(rate)]
    in_rounds = ROUNDS * sum(trainings)
    return Cost(ROUNDS * len(trainings), in_rounds * grid.clients, in_rounds * grid.share)


@dataclass(frozen=True)
class Line:
    """What is to be found, by guidance and by a search, in the paper's symbols and counted."""

    title: str
    claim: str
    guided: Cost
    searched: Cost

    @property
    def cheaper(self) -> list[str]:
        """By which counts guidance is cheaper."""
        return [name for name, times in self.guided.over(self.searched).items() if times < 1]


def grids() -> tuple[Grid, Grid, Grid]:
    """The sample, the real setting, and all rates."""
    free, *_, sample, real = (panel.grid for panel in panels("logistic"))
    return sample, real, free


def one_training(grid: Grid) -> Cost:
    return search(replace(grid, levels=grid.levels[:1], rates=grid.rates[:1]))


def lines() -> tuple[Line, ...]:
    sample, real, free = grids()
    before, training = search(sample), one_training(real)
    # by the paper's Remark 2 the levels of one rate give the whole front; here, the dearest rate
    dearest = search(replace(free, rates=(max(free.rates),)))
    setting = f"sigma for q = {real.rates[0]:g}, K = {real.clients}, T = {ROUNDS}"
    return (
        Line(f"Table II: {setting}", "t0 + T against n_sigma T", before + training, search(real)),
        Line("Table II: every further setting", "T against n_sigma T", training, search(real)),
        Line(
            f"Table III: all solutions, {len(free.rates)} rates",
            "t0 + n_sigma T against n_q n_sigma T",
            before + dearest,
            search(free),
        ),
    )


def judged(found: Sequence[Line]) -> Verdict:
    """The claim is that guidance is cheaper, the pre-run included."""
    there, all_counts = sum(len(line.cheaper) for line in found), len(found) * len(COUNTS)
    dearer = [
        f"{line.title}, in {name} ({times:.2g} times the search)"
        for line in found
        for name, times in line.guided.over(line.searched).items()
        if times >= 1
    ]
    told = f"; not for {'; '.join(dearer)}" if dearer else ""
    return word_for(there, all_counts), (
        f"computed, below: guidance is cheaper by {there} of {all_counts} counts{told}"
    )


def table(found: Sequence[Line]) -> str:
    body = [
        [
            line.title,
            line.claim,
            *(
                f"{getattr(line.guided, one):,.0f} against {getattr(line.searched, one):,.0f}"
                for one in COUNTS
            ),
        ]
        for line in found
    ]
    made = markdown(["guidance against search", "the paper", *COUNTS.values()], body)
    sample, real, _ = grids()
    before = search(sample).over(one_training(real))
    times = ", ".join(f"{times:.2g} in {name}" for name, times in before.items())
    last = found[-1]
    saved = ", ".join(
        f"{1 / times:.2g} in {name}" for name, times in last.guided.over(last.searched).items()
    )
    return (
        f"{made}\n\nHow many times a training the pre-run costs: {times}. By which factor guidance "
        f"to all solutions is cheaper: {saved}."
    )
