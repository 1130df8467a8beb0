"""What docs/results/papers.md has of Liu et al. (2024)."""

from __future__ import annotations

import liu_curves
import pooled_page
import records_cnn
import records_page
from experiment import Finished, outcome
from judging import NUMBERS, Item, Verdict, accuracy_of, cut, fewer_seeds, judged, over, rows_of
from tables import against, markdown, with_seconds

PAPER = "Liu et al. (2024)"


def with_its_cnn(results: Finished) -> Verdict | None:
    """One of the six lines of this panel: three distributions of budgets, two other methods."""
    base, ours = records_cnn.arms()
    one = over(results, ours, base)
    found = one and judged([one, *[None] * 5], "rpdp over minimum, three-levels,")
    if not found:
        return None
    return found[0], f"{found[1]}; study `{records_cnn.STUDY}`{fewer_seeds(len(ours.seeds), 3)}"


def with_cnn(results: Finished) -> str:
    found = {arm.label[-1]: outcome(results, arm) for arm in records_cnn.arms()}
    body = [
        [
            name,
            "-" if one is None else f"{one.choice[0]:g} ({one.tried} tried)",
            accuracy_of(one),
            "" if name == "rpdp" else against(found["rpdp"], one),
        ]
        for name, one in found.items()
    ]
    base, ours = records_cnn.arms()
    seeds, fewer = NUMBERS[len(ours.seeds)].capitalize(), len(ours.seeds) < 3
    about = (
        f"{seeds} seeds{' where three are wanted' if fewer else ''}, and no `dropout`. The "
        f"learning rate of `minimum` is searched by {base.tries} tries at most. That of `rpdp`, at "
        f"half an hour of CPU a run, is not: {ours.start[0]:g} was set beforehand, when three "
        "tries had given `minimum` 0.025. Batches of `rpdp` are 5.5 times as large, so that with "
        "5.5 times that learning rate a step would have as much noise; it was rounded down. A "
        "search could only help `rpdp`, so a lead of it is, but for chance, a lower bound."
    )
    table = markdown(
        ["MNIST-IID, three-levels, CNN", "learning rate", "accuracy", "rpdp minus this method"],
        body,
    )
    return f"{about}\n\n{table}"


def rows(results: Finished) -> list[tuple[str, str, str]]:
    """Every table and figure: its name, its verdict, what that rests on. Figures 2, 5 and 6 are
    accounting: computed here, nothing is trained.
    """
    computed = [
        (
            f"{name}, curves by order",
            liu_curves.curve(terms).as_claimed,
            "every rate has one epsilon, which grows with it",
        )
        for name, terms in liu_curves.FIGURES.items()
    ] + [
        (
            "Figure 2 (left), divergence by order",
            liu_curves.bends().as_claimed,
            "a straight line at rate 1, and a bend below it",
        ),
        (
            "Figure 5 (right), the curve fit",
            liu_curves.fits_well(),
            f"R^2 is {liu_curves.r_squared():.3f} (the paper: above 99%); as a bound, which the "
            "paper does not call it, the fit fails for small budgets where noise is small",
        ),
        (
            "Figure 6, budget by rate and noise",
            liu_curves.noise_as_claimed(),
            "epsilon grows with the rate and falls with the noise",
        ),
    ]
    told = [
        (name, "reproduced" if there else "not reproduced", f"computed, below; {why}")
        for name, there, why in computed
    ]
    return [*told, *rows_of(ITEMS, results)]


ITEMS = (
    *pooled_page.items(),
    *records_page.items(),
    Item(
        "Figure 8, MNIST-IID, the paper's CNN",
        cut("records-cnn"),
        with_its_cnn,
    ),
)
BLOCKS = {
    **pooled_page.BLOCKS,
    "records-cnn": with_seconds(with_cnn),
    "liu-curves": lambda _: liu_curves.curves(),
    "liu-divergence": lambda _: liu_curves.divergences(),
    "liu-noise": lambda _: liu_curves.noises(),
    "liu-overspending": lambda _: liu_curves.overspending(),
    "liu-accountant": lambda _: liu_curves.accountant(),
}
