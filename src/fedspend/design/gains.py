"""Where saving pays: what `optimal` gains over `uniform`, by contraction and tail average.

Every number is read from a finished plan for these budgets, like the one that a plan states.
Planning spends nothing, and nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedspend.basics.progress import OnProgress
from fedspend.planning.policies.optimal import OPTIMAL
from fedspend.planning.request import PlanRequest

CONTRACTIONS = (1.0, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
TAILS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class GainMap:
    """Variance of the noise in the model, relative to uniform's, (contractions, tails)."""

    contractions: tuple[float, ...]
    tails: tuple[int, ...]
    ratio: tuple[tuple[float, ...], ...]
    rounds: int
    rate: float

    def numbers(self) -> dict[str, object]:
        return {
            "rounds": self.rounds,
            "rate": self.rate,
            "contractions": list(self.contractions),
            "tails": list(self.tails),
            "variance_of_uniform": [list(row) for row in self.ratio],
        }


def gain_map(request: PlanRequest, progress: OnProgress | None = None) -> GainMap:
    """The gain for every contraction and every tail of at most half of the rounds.

    By Rényi curves: another accountant scales all noise of a schedule alike, and takes longer.
    """
    plain = replace(
        request,
        policy=OPTIMAL.name,
        method=None,
        bit=False,
        bit_noise=None,
        saving_rate=None,
        transition=None,
        weights=None,
        influence=None,
        accountant="rdp",
        options={},
    )
    tails = tuple(tail for tail in TAILS if tail == 1 or tail <= request.rounds / 2)
    rows = []
    for done, contraction in enumerate(CONTRACTIONS):
        made = [replace(plain, contraction=contraction, tail=tail).plan() for tail in tails]
        rows.append(tuple(float(one.parameters["expected"]["variance_of_uniform"]) for one in made))
        if progress is not None:
            progress(done + 1, len(CONTRACTIONS))
    return GainMap(CONTRACTIONS, tails, tuple(rows), request.rounds, request.rate)
