"""Verdicts on the tables and figures of Cheng et al. (2022).

Tables 1 and 2 go by BLUR and LUS with learning rate, clip, sparsity and lambda chosen, and with
the gradient of LUS at the final local model, as in the paper; how the paper's defaults do is said
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cheng
import norms
import numpy as np
import shaping
from experiment import Arm, Finished, outcome
from judging import (
    Gain,
    Item,
    Verdict,
    accuracy_of,
    clear_of,
    cut,
    is_clear,
    judged,
    negative,
    over,
    rows_of,
)

from fedspend.runs.comparison import interval

WRITERS = "femnist"  # the paper's EMNIST by writer; it has nothing on MNIST by writer
OTHER = "mnist-writers"
Make = Callable[[str, float], Arm]  # from data and epsilon
ByAlpha = Callable[[float], Arm]


def by_epsilon(results: Finished, data: str, ours: Make, base: Make) -> list[Gain | None]:
    """One method against another, at every epsilon of Table 1."""
    return [over(results, ours(data, epsilon), base(data, epsilon)) for epsilon in shaping.EPSILONS]


def over_alphas(results: Finished, ours: ByAlpha, base: ByAlpha) -> list[Gain | None]:
    """The same for every alpha of Table 2."""
    return [over(results, ours(alpha), base(alpha)) for alpha in shaping.ALPHAS]


def both_ways(gains: Sequence[Gain | None]) -> str:
    """How many are clear of 0, and how many the other way.

    >>> both_ways([(2.0, 1.0), (-2.0, 1.0), (0.0, 1.0), None]), both_ways([None])
    ('in 1 of 3 (the other way: 1)', 'not run')
    """
    if not any(gains):
        return "not run"
    against = sum(is_clear(negative(one)) for one in gains if one is not None)
    return f"in {clear_of(gains)}" + (f" (the other way: {against})" if against else "")


def shaped_over(base: Make, named: str) -> Callable[[Finished], Verdict | None]:
    """Table 1: BLUR and LUS over another method, on FEMNIST."""

    def judge(results: Finished) -> Verdict | None:
        found = judged(
            by_epsilon(results, WRITERS, cheng.chosen, base),
            f"BLUR and LUS, sparsity and lambda chosen, over {named}",
        )
        if found is None:
            return None
        defaults = by_epsilon(results, WRITERS, cheng.final_gradient, base)
        mnist, at_defaults = (
            both_ways(by_epsilon(results, OTHER, make, base))
            for make in (cheng.chosen, cheng.final_gradient)
        )
        why = (
            f"{found[1]}; at the paper's defaults {both_ways(defaults)}; on MNIST by writer, "
            f"which the paper does not have, {mnist}, at the defaults {at_defaults}"
        )
        return found[0], f"{why}; study `{cheng.STUDY}`"

    return judge


def shaped_by_alpha(base: ByAlpha, named: str) -> Callable[[Finished], Verdict | None]:
    """Table 2: the same on CIFAR-10."""

    def judge(results: Finished) -> Verdict | None:
        found = judged(
            over_alphas(results, cheng.chosen_by_alpha, base),
            f"BLUR and LUS, sparsity and lambda chosen, over {named}",
        )
        if found is None:
            return None
        defaults = both_ways(over_alphas(results, cheng.final_by_alpha, base))
        why = f"{found[1]}; at the paper's defaults {defaults}"
        return found[0], f"{why}; study `{cheng.STUDY}`"

    return judge


def in_this_order(upper: Sequence[Gain | None], lower: Sequence[Gain | None]) -> list[Gain | None]:
    """Of each line the gain that decides whether both are clear: the one that is not, if there is
    one.

    >>> in_this_order([(9.0, 1.0), (9.0, 1.0), None], [(2.0, 1.0), (-5.0, 1.0), (2.0, 1.0)])
    [(2.0, 1.0), (-5.0, 1.0), None]
    """
    pairs = zip(upper, lower, strict=True)
    return [None if one is None else one if not is_clear(one) else other for one, other in pairs]


def around_votes(
    ours_over: Sequence[Gain | None], votes_over: Sequence[Gain | None], voters: str
) -> Verdict | None:
    """The paper's order: BLUR and LUS ahead of AE-DPFL, and that ahead of DP-FedAvg. A lead over
    votes that plain DP-FedAvg has as well says nothing about BLUR and LUS.
    """
    found = judged(
        in_this_order(ours_over, votes_over),
        "the paper's order, BLUR and LUS over votes and votes over plain,",
    )
    if found is None:
        return None
    behind = sum(is_clear(negative(one)) for one in votes_over if one is not None)
    why = f"{found[1]}; BLUR and LUS ahead of one-shot votes in {clear_of(ours_over)}"
    if behind:
        why += f", but plain is ahead of them in {behind}, too: {voters}"
    return found[0], f"{why}; study `{cheng.STUDY}`"


def around_votes_by_epsilon(results: Finished) -> Verdict | None:
    """Table 1."""
    ours = by_epsilon(results, WRITERS, cheng.chosen, cheng.one_shot)
    votes = by_epsilon(results, WRITERS, cheng.one_shot, cheng.plain)
    return around_votes(ours, votes, "300 voters where the paper has 3,400")


def around_votes_by_alpha(results: Finished) -> Verdict | None:
    """Table 2."""
    ours = over_alphas(results, cheng.chosen_by_alpha, cheng.one_shot_by_alpha)
    votes = over_alphas(results, cheng.one_shot_by_alpha, cheng.plain_by_alpha)
    return around_votes(ours, votes, "500 voters; the paper does not state how many it has")


def stronger_pulls(results: Finished) -> Verdict | None:
    """BLUR alone against none, at the paper's clip; MNIST by writer has larger ones, too."""

    def gains(data: str, clip: float) -> list[Gain | None]:
        plain = shaping.blur_alone(data, clip, 0.0)
        return [
            over(results, shaping.blur_alone(data, clip, pull), plain) for pull in shaping.PULLS
        ]

    small = shaping.SMALL_CLIP
    claim = f"BLUR alone over none at clip {small:g}, the paper's,"
    found = judged(gains(WRITERS, small), claim)
    larger = [one for clip in shaping.CLIPS if clip != small for one in gains(OTHER, clip)]
    at_small = gains(OTHER, small)
    mnist = (
        f"MNIST by writer, which the paper does not have: {clear_of(at_small)} lines at clip "
        f"{small:g}, {clear_of(larger)} at larger ones; study `{shaping.STUDY}`"
    )
    if found is None:
        seen = any(one is not None for one in at_small)
        return ("not run", f"not run on FEMNIST; {mnist}") if seen else None
    return found[0], f"{found[1]}; {mnist}"


def by_sparsity(results: Finished) -> Verdict | None:
    """Table 3, without the line of BLUR alone, which it does not have."""
    on_writers, on_mnist = (
        [
            over(results, arm, shaping.arm(data, 6.0, 0.0, 0.0))
            for arm in shaping.ablation(data)
            if arm.settings["shape.lus"]
        ]
        for data in (WRITERS, OTHER)
    )
    found = judged(on_writers, "gain over plain, at its learning rate and clip,")
    if found is None:
        return None
    why = f"{found[1]}; on MNIST by writer, which the paper does not have, {both_ways(on_mnist)}"
    return found[0], f"{why}; LUS by the last batch; study `{shaping.STUDY}`"


def with_its_cnn(results: Finished) -> Verdict | None:
    """One of the four lines of Table 1; not counted if the model drowns in the noise."""
    plain, ours = cheng.with_cnn(0.0), cheng.with_cnn(cheng.CNN_PULL)
    base, gained = outcome(results, plain), over(results, ours, plain)
    if base is None or gained is None:
        return None
    if base.percent().mean() < cheng.CNN_DROWNS:
        return "not run", (
            f"a first try drowned in the noise: DP-FedAvg has {accuracy_of(base)} (settled "
            f"beforehand: below {cheng.CNN_DROWNS:g} it is not counted)"
        )
    found = judged([gained, None, None, None], "BLUR and LUS over plain", cheng.CNN_STUDY)
    assert found is not None
    return found


# --- Figures 2, 3 and 4 ---


def shorter_norms(results: Finished) -> Verdict | None:
    """Figure 2: with both, norms are smaller, vary less, and are below the clip in most cases."""
    plain, both = (norms.line_of(results, form) for form in ("plain", "BLUR and LUS"))
    if plain is None or both is None:
        return None
    rounds = len(plain["norm"])
    lower, narrower = (
        sum(b < a for a, b in zip(of(plain), of(both), strict=True)) for of in (means, spreads)
    )
    below = sum(share < 0.5 for share in both["clipped"])
    claims = [2 * count > rounds for count in (lower, narrower, below)]
    word = "reproduced" if all(claims) else "reproduced in part" if any(claims) else None
    return word or "not reproduced", (
        f"of {rounds} rounds, norms are lower than plain's in {lower}, vary less in {narrower} and "
        f"are mostly below the clip in {below}; one seed; study `{norms.STUDY}`"
    )


def means(line: dict[str, list[float]]) -> list[float]:
    return line["norm"]


def spreads(line: dict[str, list[list[float]]]) -> list[float]:
    """Between the 10% and the 90% quantile, in every round."""
    return [high - low for low, *_, high in line["quantiles"]]


Cell = Callable[[float, bool], Arm]  # from a value and whether it is ours


def fall(results: Finished, before: Arm, after: Arm) -> np.ndarray | None:
    """How much accuracy is lost from one cell to another, by seed."""
    first, second = outcome(results, before), outcome(results, after)
    if first is None or second is None:
        return None
    return first.percent() - second.percent()


def falls_less(
    results: Finished, cell: Cell, before: float, after: float, *, either_way: bool = False
) -> Gain | None:
    """How much more plain falls between two values than ours, paired by seed; `either_way`: how
    much more it changes, up or down.
    """
    plain, ours = (fall(results, cell(before, one), cell(after, one)) for one in (False, True))
    if plain is None or ours is None:
        return None
    return interval(np.abs(plain) - np.abs(ours) if either_way else plain - ours)


def courses(results: Finished, cell: Cell, values: Sequence[float]) -> str:
    """How both go, and where ours is ahead: which is not what the figure is about."""
    plain, ours = (
        ", ".join(accuracy_of(outcome(results, cell(value, one)), short=True) for value in values)
        for one in (False, True)
    )
    ahead = [over(results, cell(value, True), cell(value, False)) for value in values]
    return (
        f"plain goes {plain}, with both {ours}; with both ahead of plain {both_ways(ahead)}; "
        f"study `{cheng.STUDY}`"
    )


def steps_cell(steps: float, ours: bool) -> Arm:
    return cheng.by_steps(int(steps), ours=ours)


def rate_cell(rate: float, ours: bool) -> Arm:
    return cheng.by_rate(rate, ours=ours)


def by_steps(results: Finished) -> Verdict | None:
    """Figure 3: plain falls at 40 steps, and ours falls less."""
    first, *_, usual, last = cheng.STEPS
    plain_falls = over(results, steps_cell(usual, False), steps_cell(last, False))
    less = [falls_less(results, steps_cell, start, last) for start in (usual, first)]
    claim = (
        f"plain falls from {usual} to {last} steps, and falls more than with both from {usual} "
        f"and from {first} to {last}:"
    )
    found = judged([plain_falls, *less], claim)
    if found is None:
        return None
    return found[0], f"{found[1]}; {courses(results, steps_cell, cheng.STEPS)}"


def by_rate(results: Finished) -> Verdict | None:
    """Figure 4: ours changes less between the extremes."""
    first, *_, last = cheng.RATES
    change = falls_less(results, rate_cell, first, last, either_way=True)
    claim = f"plain changes more than with both from rate {first:g} to {last:g}:"
    found = judged([change], claim)
    if found is None:
        return None
    return found[0], f"{found[1]}; {courses(results, rate_cell, cheng.RATES)}"


def rows(results: Finished) -> list[tuple[str, str, str]]:
    return rows_of(ITEMS, results)


ONLY = cut(cheng.STUDY)
ITEMS = (
    Item(
        "Table 1, fixed features in place of the CNN",
        ONLY,
        shaped_over(cheng.plain, "plain"),
    ),
    Item(
        "Table 1, a CNN of 1.0M parameters",
        cut(cheng.CNN_STUDY),
        with_its_cnn,
    ),
    Item(
        "Table 1, against DDGauss",
        ONLY,
        shaped_over(cheng.ddgauss, "discrete noise of the clients"),
    ),
    Item("Table 1, against AE-DPFL", ONLY, around_votes_by_epsilon),
    Item("Table 1, ResNet-18", "days on one core"),
    Item(
        "Table 2, fixed features in place of the CNN",
        ONLY,
        shaped_by_alpha(cheng.plain_by_alpha, "plain"),
    ),
    Item(
        "Table 2, against DDGauss",
        ONLY,
        shaped_by_alpha(cheng.ddgauss_by_alpha, "discrete noise of the clients"),
    ),
    Item("Table 2, against AE-DPFL", ONLY, around_votes_by_alpha),
    Item("Table 2, ResNet-18", "days on one core"),
    Item("Table 3, sparsity", cut("shaping"), by_sparsity),
    Item("Figure 1, strength of BLUR", cut("shaping"), stronger_pulls),
    Item("Figure 2, norms by round", cut("norms"), shorter_norms),
    Item("Figure 3, local steps", ONLY, by_steps),
    Item("Figure 4, participation", ONLY, by_rate),
)
