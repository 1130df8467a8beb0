"""What docs/results/papers.md says of Gu et al. (2023): k, fronts against theory, verdicts.

Theory's front is the one that f1 and f2 have on the very grid that was trained, with its limits on
noise and rounds. A point of the measured front *lies where theory says* if it is on theory's front
of its rate; and that counts only if no k that is wrong does clearly better. The settings that
theory picks must also be good ones: their loss must be near the lowest that is as private. k is
that of case I, of the base of a figure or of the sample: where the paper claims that another
panel's k serves, it is not estimated anew. Verdicts are on the curve, not on the value of k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import gu_cost
import gu_epsilon
import gu_theory
import numpy as np
from experiment import Finished
from gu import CASES, PAPER_K, Grid, Panel, panels
from gu_window import Window, window
from judging import CANNOT_TELL, Item, cut, rows_of, together
from tables import markdown, with_seconds

from fedspend.design.estimation import KEstimate

PAPER = "Gu et al. (2023)"
THERE, PARTLY = 2 / 3, 1 / 2  # shares of the front that lie where theory says
PRICE = 1 / 20  # what theory's picks may lose on average, of the range of losses on the front
MODELS = {"logistic": "logistic", "lenet": "LeNet"}  # how they are called on the page
WRONG = 4.0  # the control: how many times too large or too small k is then
MARGIN = 1 / 10  # of the front: by how much a wrong k must do better. Less is chance, with one seed
SLOPE_LEVELS = 4  # a slope through fewer says nothing


@dataclass(frozen=True, eq=False)
class Reading:
    """A panel as far as it is finished: `k` is its own, `theory` the one that it is held to."""

    panel: Panel
    grid: Grid
    seen: Window
    k: KEstimate | None
    theory: float | None

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """What of the front lies where theory says, and would with a k that is too small or too
        large; nothing, if there is no k.
        """
        factors = () if self.theory is None else (1.0, 1 / WRONG, WRONG)
        return tuple(self.seen.as_theory_says(one * (self.theory or 0.0)) for one in factors)

    @cached_property
    def with_paper_k(self) -> float:
        """What of the front would lie where theory says if k were the paper's."""
        return self.seen.as_theory_says(self.panel.paper_k)

    @property
    def misplaced(self) -> bool:
        """Whether a wrong k puts clearly more of the front in its place."""
        return any(wrong > self.shares[0] + MARGIN for wrong in self.shares[1:])

    @property
    def indifferent(self) -> bool:
        """Whether a wrong k would pass, or do as well: then the front says nothing about k."""
        return any(wrong >= min(THERE, self.shares[0]) for wrong in self.shares[1:])

    @property
    def slope(self) -> float | None:
        """None if it would rest on too few noise levels."""
        return None if self.k is None or self.k.levels < SLOPE_LEVELS else self.k.exponent

    @property
    def excludes(self) -> bool | None:
        """Whether the interval of k leaves out the paper's; None if there is no interval."""
        if self.k is None or self.k.levels < 2:
            return None
        return not self.k.low <= self.panel.paper_k <= self.k.high

    @cached_property
    def lost(self) -> list[float]:
        return [] if self.theory is None else self.seen.lost(self.theory)

    @property
    def price(self) -> float:
        """What theory's picks lose on average, as a share of the range of losses on the front; 0 if
        the limits leave it nothing to pick.
        """
        row, rounds = self.seen.front()
        losses = self.seen.loss[row, rounds - 1]
        return float(np.mean(self.lost) / np.ptp(losses)) if self.lost else 0.0

    @property
    def verdict(self) -> str:
        share = 0.0 if not self.shares or self.misplaced else self.shares[0]
        if share < PARTLY:
            return "not reproduced"
        if self.indifferent:
            return CANNOT_TELL
        return "reproduced" if share >= THERE and self.price <= PRICE else "reproduced in part"

    @property
    def told(self) -> str:
        if not self.shares:
            return "no k"
        said = f"{100 * self.shares[0]:.0f}%"
        wrong = " and ".join(f"{100 * share:.0f}%" for share in self.shares[1:])
        if self.misplaced:
            said += f", less than with a wrong k ({wrong})"
        elif self.indifferent:
            said += f", but {wrong} with a wrong k"
        said += ", no k of its own" if self.k is None else f", k = {self.k.k:.0f}"
        said += f", the paper's {self.panel.paper_k:g}"
        if self.slope is not None:
            said += f", slope {self.slope:.2f} (theory: 1)"
        return said + (f", but picks lose {100 * self.price:.0f}%" if self.price > PRICE else "")

    @property
    def part(self) -> str:
        """How much of the paper's grid it is."""
        ours, theirs = self.grid, self.panel.grid
        levels = sorted({len(ours.levels_at(rate)) for rate in ours.rates})
        said = []
        if levels[0] < len(theirs.levels):
            many = " to ".join(str(count) for count in dict.fromkeys((levels[0], levels[-1])))
            said.append(f"{many} of {len(theirs.levels)} noise levels")
        if len(ours.rates) < len(theirs.rates):
            said.append(f"{len(ours.rates)} of {len(theirs.rates)} rates")
        return ", ".join(said) or "all"


def reading(results: Finished, panel: Panel) -> Reading | None:
    for grid in panel.grids:
        seen = window(results, grid, panel)
        if seen is None:
            continue
        own = seen.estimate()
        if panel.k_of is None:
            return Reading(panel, grid, seen, own, None if own is None else own.k)
        other = reading(results, panel.k_of)
        if other is not None:
            return Reading(panel, grid, seen, own, other.theory)
    return None


# --- verdicts -------------------------------------------------------------------------------------


def judge(model: str, figure: str, title: str = "") -> Callable[[Finished], tuple[str, str] | None]:
    """The verdict on a figure, or on one panel of it; None while nothing of it is finished."""

    def found(results: Finished) -> tuple[str, str] | None:
        asked = [one for one in panels(model) if one.figure == figure and title in ("", one.title)]
        # where the claim is that one k serves all, the panel that it comes from proves nothing
        asked = [one for one in asked if one.k_of is not None] or asked
        read = [one for panel in asked if (one := reading(results, panel)) is not None]
        if not read:
            return None
        told = [
            f"{one.panel.title}: {one.told}" + ("" if one.part == "all" else f" ({one.part})")
            for one in read
        ]
        why = f"one seed; of the front, where theory says: {'; '.join(told)}"
        word = together([one.verdict for one in read])
        if len(read) < len(asked):
            why += f"; {len(asked) - len(read)} of {len(asked)} panels cut"
            word = "reproduced in part" if word == "reproduced" else word
        return word, why

    return found


def as_stated(_: Finished) -> tuple[str, str]:
    """Case III as printed: its limits must keep k sigma^2 T below the number of clients a round."""
    stated, rounds, in_a_round = 0.50, CASES["logistic"]["III"][0], 10
    k = PAPER_K["logistic"][0]
    product = k * stated**2 * rounds
    assert product > in_a_round
    return "cannot be as printed", (
        f"k sigma^2 T is {product:.0f} with the paper's k = {k:g}, and has to be at most q K = "
        f"{in_a_round}; sigma up to {CASES['logistic']['III'][1]:g} is run in its place"
    )


# --- the page -------------------------------------------------------------------------------------


def table(results: Finished) -> str:
    body = []
    for model, name in MODELS.items():
        for panel in panels(model):
            read = reading(results, panel)
            limits = (
                ""
                if panel.most_noise is None
                else (f": T up to {panel.rounds}, sigma up to {panel.most_noise:g}")
            )
            body.append(
                [f"{panel.figure}, {name}, {panel.title}{limits}", _paper_k(panel)]
                + (["-"] * (len(HEADINGS) - 2) if read is None else _told(read))
            )
    return f"{markdown(HEADINGS, body)}\n\n{outside(results)}"


HEADINGS = [
    "",
    "k of the paper",
    "k",
    "from levels",
    "95% interval over levels",
    "slope (theory: 1)",
    "of the front, where theory says",
    "with the paper's k",
    f"with k / {WRONG:g} and {WRONG:g} k",
    "loss of theory's picks above the front: mean, most (mean, of its range)",
    "run",
]


def _paper_k(panel: Panel) -> str:
    return f"*{panel.paper_k:g}*" if panel.states_k else f"*({panel.paper_k:g})*"


def outside(results: Finished) -> str:
    """In how many panels the interval of k leaves out the paper's; one that two figures show counts
    once.
    """
    said = []
    for model, name in MODELS.items():
        once = {(one.grid, one.rounds, one.most_noise): one for one in panels(model)}
        read = [one for panel in once.values() if (one := reading(results, panel)) is not None]
        asked = [one.excludes for one in read if one.excludes is not None]
        if asked:
            said.append(f"{name} {sum(asked)} of {len(asked)}")
    return f"Panels whose interval leaves out the paper's k: {', '.join(said) or 'none run yet'}."


def _told(read: Reading) -> list[str]:
    k, lost = read.k, read.lost
    right, *wrong = [f"{100 * share:.0f}%" for share in read.shares] or ["-"]
    return [
        "none" if k is None else f"{k.k:.0f}",
        "none" if k is None else f"{k.levels}",
        "none" if k is None or k.levels < 2 else f"{k.low:.0f} to {k.high:.0f}",
        "none" if read.slope is None else f"{read.slope:.2f}",
        right,
        f"{100 * read.with_paper_k:.0f}%",
        ", ".join(wrong) or "-",
        f"{np.mean(lost):.3f}, {max(lost):.3f} ({100 * read.price:.0f}%)" if lost else "-",
        read.part,
    ]


def rows(results: Finished) -> list[tuple[str, str, str]]:
    return rows_of(ITEMS, results)


ITEMS = (
    Item("Tables II and III, cost", "", lambda _: gu_cost.judged(gu_cost.lines())),
    Item("Figure 1, theory", "", lambda _: gu_theory.judged(gu_theory.CASES)),
    Item("Figure 2a, logistic, free rate", cut("gu-logistic"), judge("logistic", "Figure 2")),
    Item("Figure 2b, LeNet, free rate", cut("gu-lenet"), judge("lenet", "Figure 2")),
    Item("Figure 3, logistic, case III with sigma up to 0.50", "", as_stated),
    *(
        Item(
            f"Figure 3, {name}, case {case}",
            cut(f"gu-{model}"),
            judge(model, "Figure 3", f"case {case}"),
        )
        for model, name in MODELS.items()
        for case in ("I", "II", "III")
    ),
    *(
        Item(f"{figure}, {name}, {about}", cut(f"gu-{model}"), judge(model, figure))
        for figure, about in (
            ("Figure 4", "epochs"),
            ("Figure 5", "clients"),
            ("Figure 6", "public data"),
        )
        for model, name in MODELS.items()
    ),
)
BLOCKS = {
    "gu": with_seconds(table),
    "gu-theory": lambda _: gu_theory.table(gu_theory.CASES),
    "gu-cost": lambda _: gu_cost.table(gu_cost.lines()),
    "gu-epsilon": with_seconds(gu_epsilon.tables),
}
